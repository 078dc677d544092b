package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Seal implements sandbox.Sealer. A sandbox's mounts are in the mount namespace of
// gVisor's file server, where root alone comes in. The kernel refuses it while a
// file of the folder is open for writing.
func (r *Runtime) Seal(ctx context.Context, source string, readOnly bool) (left int) {
	targets := map[string][]string{}
	for _, b := range r.List() {
		spec := b.Spec()
		for _, m := range spec.Mounts {
			if m.Source == source && !m.ReadOnly {
				targets[spec.ID] = append(targets[spec.ID], m.Target)
			}
		}
	}
	if len(targets) == 0 {
		return 0
	}
	servers := r.fileServers()
	for id, list := range targets {
		pid := servers[id]
		if pid == 0 || r.Rootless || ctx.Err() != nil {
			left++
			continue
		}
		if err := setReadOnly(pid, id, list, readOnly); err != nil {
			if !errors.Is(err, unix.EBUSY) {
				r.Log.Warn("could not change how a sandbox sees a volume", "sandbox", id, "volume", source, "error", err)
			}
			left++
		}
	}
	return left
}

// fileServers finds the processes of gVisor's file servers, by sandbox.
func (r *Runtime) fileServers() map[string]int {
	pids := map[string]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if args := commandLine(pid); slices.Contains(args, "--root="+r.runscRoot()) && slices.Contains(args, "gofer") {
			pids[args[len(args)-1]] = pid
		}
	}
	return pids
}

func commandLine(pid int) []string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// setReadOnly changes the mounts of the file server pid, which is that of the sandbox
// id.
func setReadOnly(pid int, id string, targets []string, readOnly bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if args := commandLine(pid); len(args) == 0 || args[len(args)-1] != id {
		return unix.ESRCH // the process id is another's by now
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
			err = unix.Chroot(goferRoot)
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
