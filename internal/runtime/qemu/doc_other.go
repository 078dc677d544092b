//go:build !linux || mac

// Package qemu makes sandboxes as virtual machines of QEMU, on Linux.
package qemu
