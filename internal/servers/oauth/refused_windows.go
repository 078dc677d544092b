package oauth

import "golang.org/x/sys/windows"

// errConnRefused is the system's error for a port without a listener.
const errConnRefused = windows.WSAECONNREFUSED
