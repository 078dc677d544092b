//go:build unix

package program

// permissionsTell says whether the permissions of a file tell programs from other files.
const permissionsTell = true
