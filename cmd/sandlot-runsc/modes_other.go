//go:build !amd64

package main

import "golang.org/x/sys/unix"

// The system calls that set a file's mode, and which argument has it. Mkdir takes
// no such bits from anybody.
var (
	modeArgument  = map[uintptr]int{unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2}
	nodeArgument  = map[uintptr]int{unix.SYS_MKNODAT: 2}
	openArguments = map[uintptr]int{unix.SYS_OPENAT: 2} // flags, and the mode after them
)
