package main

import "golang.org/x/sys/unix"

// The system calls that set a file's mode, and which argument has it. Mkdir takes
// no such bits from anybody.
var (
	modeArgument = map[uintptr]int{unix.SYS_CHMOD: 1, unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_CREAT: 1}
	nodeArgument  = map[uintptr]int{unix.SYS_MKNOD: 1, unix.SYS_MKNODAT: 2}
	openArguments = map[uintptr]int{unix.SYS_OPEN: 1, unix.SYS_OPENAT: 2} // flags, and the mode after them
)
