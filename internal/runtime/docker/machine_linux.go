//go:build !mac

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
)

// seesProcesses reports whether the daemon's processes are processes of the server's machine, and not outside of a
// container in which the server runs, or on another machine.
func (r *Runtime) seesProcesses() bool {
	if !strings.HasPrefix(r.client.DaemonHost(), "unix://") {
		return false
	}
	peer := r.peer()
	return peer == nil || peer.Pid != 0
}

// peer returns the daemon's process and user, as the kernel knows them from its socket; nil: that is not known.
func (r *Runtime) peer() *unix.Ucred {
	name, isPath := strings.CutPrefix(r.client.DaemonHost(), "unix://")
	if !isPath {
		return nil
	}
	conn, err := net.Dial("unix", name)
	if err != nil {
		return nil
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil
	}
	var peer *unix.Ucred
	raw.Control(func(fd uintptr) {
		if found, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			peer = found
		}
	})
	return peer
}

// socketDeleted reports whether the kernel marks the folder of the agent's socket as deleted in the mounts of the
// container's process. That the folder cannot be seen from here is not enough: it may be a folder of another machine,
// or belong to a living server in another mount namespace. Neither is the process id: the daemon may be elsewhere.
// Both together are: no other process has this folder, whose name nobody can guess.
func (b *box) socketDeleted(pid int) bool {
	folder := strings.TrimPrefix(b.socketDir(), b.runtime.StateDir)
	return slices.ContainsFunc(proc.Mounts(pid), func(m proc.Mount) bool {
		return m.Target == wire.SocketDir && strings.HasSuffix(m.Root, folder+"//deleted")
	})
}

// checkAgent proves, after the start, that the path that the first process was started from is the server's agent, and
// its socket's folder the server's: no program in a container can mount anything. That the paths lead there without
// a link can be seen from the outside, where the container is a process of this machine.
func (b *box) checkAgent(ctx context.Context) error {
	isNative := slices.Contains([]string{"", "runc", "crun", "youki"}, b.runtime.OCIRuntime)
	if b.separate || !isNative || !b.runtime.seesProcesses() {
		return nil // its file systems may be inside of a virtual machine, or another kernel
	}
	state, err := b.inspect(ctx)
	if err != nil {
		return err
	}
	if state == nil || state.Pid == 0 {
		return errors.New("the container ended at its start; the daemon has its log")
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", state.Pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the root file system of the container's first process: %w", err)
	}
	defer unix.Close(root)
	mounted := map[string]string{wire.AgentPath: b.agent, wire.SocketDir: b.socketDir()}
	for target, source := range mounted {
		if err := isMounted(root, target, source); err != nil {
			return fmt.Errorf("in the container, %s is something else than %s, which was mounted there; the image, "+
				"or a shared folder, has links: %w", target, source, err)
		}
	}
	return b.checkFolders(root, proc.Mounts(state.Pid))
}

// checkFolders proves that the folders of this machine that a container has are what the server sees at their paths: a
// daemon with mounts of its own may see something else there. What is mounted in read-only ones is read-only, too.
func (b *box) checkFolders(root int, mounts []proc.Mount) error {
	folders := slices.Clone(b.spec.Mounts)
	for _, x := range b.spec.Template.Binds {
		if image.IsLibrary(x.Target) { // it is in another one, which is read-only here
			continue
		}
		folders = append(folders, whole(x.Source, x.Target)...)
	}
	var writable []string
	for _, m := range folders {
		if err := isMounted(root, m.Target, m.Source); err != nil {
			return fmt.Errorf("in the container, %s is something else than %s, which was mounted there; if this was "+
				"mounted on the machine after the daemon's start, start the daemon again: %w", m.Target, m.Source, err)
		}
		if !m.ReadOnly {
			writable = append(writable, m.Target)
		}
	}
	for _, m := range folders {
		if at := writableIn(mounts, m.Target); m.ReadOnly && at != "" && !isBelow(at, writable) {
			return fmt.Errorf("in the container, %s, in %s, is not read-only", at, m.Target)
		}
	}
	return nil
}

// writableIn returns where something that is not read-only is mounted in a folder; "": nowhere. What is mounted over
// counts no more.
func writableIn(mounts []proc.Mount, folder string) string {
	for _, m := range mounts {
		isCovered := slices.ContainsFunc(mounts, func(over proc.Mount) bool {
			return over.Parent == m.ID && over.Target == m.Target
		})
		if isIn(m.Target, folder) && !m.ReadOnly && !isCovered {
			return m.Target
		}
	}
	return ""
}

// isMounted returns an error unless a path in a root file system is a file of this machine, without links on the way.
func isMounted(root int, target, source string) error {
	fd := root
	for part := range strings.SplitSeq(strings.TrimPrefix(target, "/"), "/") {
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: part, Err: err}
		}
		defer unix.Close(next)
		fd = next
	}
	var found, want unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &found), unix.Stat(source, &want)); err != nil {
		return err
	}
	if found.Dev != want.Dev || found.Ino != want.Ino {
		return errors.New("it is another file")
	}
	return nil
}
