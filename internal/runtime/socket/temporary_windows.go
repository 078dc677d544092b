package socket

import "golang.org/x/sys/windows"

var temporary = []error{windows.WSAEMFILE, windows.WSAENOBUFS, windows.WSAECONNABORTED, windows.WSAEINTR,
	windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_NO_SYSTEM_RESOURCES}
