package hostfile

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// SetReadOnly makes mounts of a sandbox read-only or writable, in the mount namespace of its gofer, which it enters as
// root. Targets are paths in the sandbox. IsGofer reports whether the process is the gofer: it is asked once there is
// a pidfd, which cannot come to mean another process. The error is unix.ESRCH if it is not, and unix.EBUSY if a file is
// open for writing.
func SetReadOnly(gofer int, isGofer func() bool, targets []string, readOnly bool) error {
	fd, err := unix.PidfdOpen(gofer, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !isGofer() {
		return unix.ESRCH // another process has the id by now
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNS)
		}
		if err == nil {
			err = unix.Chroot(GoferRoot)
		}
		for _, t := range targets {
			if err == nil {
				err = unix.MountSetattr(unix.AT_FDCWD, t, unix.AT_SYMLINK_NOFOLLOW, &attr)
			}
		}
		done <- err
	}()
	return <-done
}

// SetReadOnlyByHelper does the same as SetReadOnly without root. The mounts then belong to a user namespace, which only
// a process with one thread can enter: the command "seal" of the program runsc makes one.
func SetReadOnlyByHelper(ctx context.Context, runsc string, gofer int, isGofer func() bool, targets []string,
	readOnly bool) error {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	cmd := exec.CommandContext(ctx, runsc, append([]string{"seal", mode, GoferRoot}, targets...)...)
	cmd.Env, cmd.Dir = []string{}, "/"
	for _, name := range []string{"user", "mnt"} {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(gofer), "ns", name))
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if !isGofer() { // the gofer still lives, so the namespaces that were opened are its own
		return unix.ESRCH
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return unix.Errno(exit.ExitCode())
	}
	return err
}
