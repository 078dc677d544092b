//go:build unix

package oauth

import "syscall"

// errConnRefused is the system's error for a port without a listener.
const errConnRefused = syscall.ECONNREFUSED
