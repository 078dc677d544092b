package user

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setGroups sets the further groups of this thread alone.
func setGroups(groups []int) error {
	list := make([]uint32, len(groups)+1) // one more, so that there is a first element
	for i, g := range groups {
		list[i] = uint32(g)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
