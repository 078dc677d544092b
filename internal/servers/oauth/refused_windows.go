package oauth

import "golang.org/x/sys/windows"

// errConnRefused is the system's error for a port where nobody listens.
const errConnRefused = windows.WSAECONNREFUSED
