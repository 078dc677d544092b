//go:build !linux || mac

package proc

// KernelRelease returns "": containers of Linux have no kernel of this machine.
func KernelRelease() string { return "" }

// MaxProcesses returns -1: this machine has no limit for the processes of a user in a container of Linux.
func MaxProcesses() int64 { return -1 }

// MountsBelow returns none: containers of Linux have no mounts of this machine.
func MountsBelow(string) []string { return nil }
