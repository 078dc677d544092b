package atomicfile

import "golang.org/x/sys/windows"

// passing are the errors of a machine that lacks something for a moment, or whose disk or network does not answer.
var passing = []error{windows.ERROR_TOO_MANY_OPEN_FILES, windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_NO_SYSTEM_RESOURCES,
	windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION, windows.ERROR_CRC, windows.ERROR_SEEK,
	windows.ERROR_READ_FAULT, windows.ERROR_WRITE_FAULT, windows.ERROR_GEN_FAILURE, windows.ERROR_IO_DEVICE,
	windows.ERROR_NOT_READY, windows.ERROR_WRITE_PROTECT, windows.ERROR_SEM_TIMEOUT, windows.ERROR_NETNAME_DELETED}
