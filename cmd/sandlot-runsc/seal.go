package main

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Descriptors that the server passes to `sandlot-runsc seal`: the user namespace and the
// mount namespace of a sandbox's gofer, gVisor's file server.
const (
	userNamespace  = 3
	mountNamespace = 4
)

// seal makes mounts of a sandbox's gofer read-only ("ro") or writable ("rw"). The further
// arguments are the gofer's root folder and the mount points in it. It returns the exit
// status: 0, or the errno of the system call that failed, which is below 128.
//
// A server that is root does this itself. Without root, the mounts belong to the sandbox's
// user namespace, which only a process with one thread can enter. A Go program has several
// threads, so the system calls are made in a child process, which has one.
func seal(args []string) int {
	if len(args) < 3 || args[0] != "ro" && args[0] != "rw" {
		fmt.Fprintln(os.Stderr, "usage: sandlot-runsc seal ro|rw ROOT MOUNT...")
		return int(unix.EINVAL)
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if args[0] == "ro" {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	var paths []*byte
	for _, p := range args[1:] {
		b, err := unix.BytePtrFromString(p)
		if err != nil {
			return int(unix.EINVAL)
		}
		paths = append(paths, b)
	}
	if err := changeInChild(paths[0], paths[1:], &attr); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-runsc seal:", err)
		if no := unix.Errno(0); errors.As(err, &no) {
			return int(no)
		}
		return int(unix.EIO)
	}
	return 0
}

// changeInChild changes the mounts in a child process, and waits for it.
func changeInChild(root *byte, mounts []*byte, attr *unix.MountAttr) error {
	pid, _, no := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if no != 0 {
		return no
	}
	if pid == 0 {
		changeMounts(root, mounts, attr)
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(int(pid), &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	switch {
	case status.Signaled():
		return unix.EIO
	case status.ExitStatus() != 0:
		return unix.Errno(status.ExitStatus())
	}
	return nil
}

// changeMounts runs in the child, which has a copy of a Go program's memory, but only one of its
// threads: so it makes only system calls, and uses nothing that needs Go's runtime. It does
// not return.
//
//go:norace
//go:nosplit
func changeMounts(root *byte, mounts []*byte, attr *unix.MountAttr) {
	atFDCWD := -100 // unix.AT_FDCWD
	_, _, no := unix.RawSyscall(unix.SYS_SETNS, userNamespace, unix.CLONE_NEWUSER, 0)
	if no == 0 {
		_, _, no = unix.RawSyscall(unix.SYS_SETNS, mountNamespace, unix.CLONE_NEWNS, 0)
	}
	if no == 0 {
		_, _, no = unix.RawSyscall(unix.SYS_CHROOT, uintptr(unsafe.Pointer(root)), 0, 0)
	}
	for i := 0; i < len(mounts) && no == 0; i++ {
		_, _, no = unix.RawSyscall6(unix.SYS_MOUNT_SETATTR, uintptr(atFDCWD), uintptr(unsafe.Pointer(mounts[i])),
			unix.AT_SYMLINK_NOFOLLOW, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr), 0)
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(no), 0, 0)
	}
}
