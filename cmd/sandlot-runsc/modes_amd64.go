package main

import "golang.org/x/sys/unix"

// The system calls that set a file's mode, with the number of the argument that has it: calls that change
// or create a plain file, and calls that create a file of any type, whose mode has the type too. Of the
// calls that open a file, it is the number of the argument with the flags; the mode follows. Mkdir is
// missing, as the kernel ignores these bits in its mode.
var (
	modeArgument = map[uintptr]int{unix.SYS_CHMOD: 1, unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_CREAT: 1}
	nodeModeArgument = map[uintptr]int{unix.SYS_MKNOD: 1, unix.SYS_MKNODAT: 2}
	flagsArgument    = map[uintptr]int{unix.SYS_OPEN: 1, unix.SYS_OPENAT: 2}
)

// ownerCalls change the owner of a file.
var ownerCalls = []uintptr{unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}
