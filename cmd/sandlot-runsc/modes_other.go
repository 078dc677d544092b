//go:build !amd64

package main

import "golang.org/x/sys/unix"

// The system calls as in modes_amd64.go: other architectures have only these.
var (
	modeArgument     = map[uintptr]int{unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2}
	nodeModeArgument = map[uintptr]int{unix.SYS_MKNODAT: 2}
	flagsArgument    = map[uintptr]int{unix.SYS_OPENAT: 2}
)

// ownerCalls change the owner of a file.
var ownerCalls = []uintptr{unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}
