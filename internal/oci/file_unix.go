//go:build unix

package oci

import "golang.org/x/sys/unix"

// nonblock opens a pipe without waiting for its other end.
const nonblock = unix.O_NONBLOCK
