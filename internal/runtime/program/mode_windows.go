package program

// permissionsTell says whether the permissions of a file tell programs from other files: on Windows they do not.
const permissionsTell = false
