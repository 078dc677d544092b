package egress

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows"
)

// readable returns nil: sockets of Windows wait for bytes.
func readable(syscall.Conn) syscall.RawConn { return nil }

// readNow is not called: readable returns nothing to read from.
func readNow(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// errConnRefused is the system's error for a port without a listener.
const errConnRefused = windows.WSAECONNREFUSED
