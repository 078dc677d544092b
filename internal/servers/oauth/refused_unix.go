//go:build unix

package oauth

import "syscall"

// errConnRefused is the system's error for a port where nobody listens.
const errConnRefused = syscall.ECONNREFUSED
