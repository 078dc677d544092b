package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
)

// seal is what is known of a sandbox's mounts. Its lock comes before that of the box.
type seal struct {
	mu       sync.Mutex
	server   int             // process id of gVisor's file server; 0: not known
	readOnly map[string]bool // by source; what an earlier server did is not in it
	failed   bool            // an error was logged
	retry    time.Time       // when setByHelper is tried again
}

// Seal implements sandbox.Sealer. A sandbox's mounts are in the mount namespace of
// gVisor's file server. The kernel refuses to make one read-only while a file of the
// folder is open for writing. Where all mounts are as they should be, it costs nothing.
func (r *Runtime) Seal(ctx context.Context, source string, readOnly bool) (left int) {
	var writers []*box // that have a file open for writing, and so keep their mounts
	defer func() { r.endWriters(source, writers) }()
	for _, sb := range r.List() {
		b, ok := sb.(*box)
		targets := writableAt(sb.Spec().Mounts, source)
		if !ok || len(targets) == 0 || b.seal.is(source, readOnly) {
			continue
		}
		if ctx.Err() != nil || !b.seal.due() {
			left++
			continue
		}
		if err := r.setSeal(ctx, b, source, targets, readOnly); err != nil {
			left++
			if readOnly && errors.Is(err, unix.EBUSY) {
				writers = append(writers, b)
			}
			if b.seal.reports(err) {
				r.Log.Warn("could not change how a sandbox sees a volume", "sandbox", b.spec.ID, "volume", source,
					"error", err)
			}
		}
	}
	return left
}

// writableAt lists where a folder is mounted for a sandbox that may write it.
func writableAt(mounts []sandbox.Mount, source string) (targets []string) {
	for _, m := range mounts {
		if m.Source == source && !m.ReadOnly {
			targets = append(targets, m.Target)
		}
	}
	return targets
}

// started says that a sandbox has just started: its mounts are as its spec has them.
func (s *seal) started(mounts []sandbox.Mount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readOnly = map[string]bool{}
	for _, m := range mounts {
		if !m.ReadOnly {
			s.readOnly[m.Source] = false
		}
	}
}

func (s *seal) is(source string, readOnly bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, known := s.readOnly[source]
	return known && now == readOnly
}

func (s *seal) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.retry)
}

// reports says whether an error is to be logged: the first one, unless it says that a
// file is open for writing, or that the sandbox ends.
func (s *seal) reports(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ESRCH) {
		return false
	}
	s.failed = true
	return true
}

// serverPID returns the process id of the file server, or 0 as long as it is not known.
func (s *seal) serverPID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// helperInterval is the time between two tries that need a process each.
const helperInterval = 5 * time.Second

// setSeal changes the mounts of a folder, of which there may be several.
func (r *Runtime) setSeal(ctx context.Context, b *box, source string, targets []string, readOnly bool) (err error) {
	_, started := b.process()
	s := &b.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Rootless {
		defer func() {
			if err != nil {
				s.retry = time.Now().Add(helperInterval)
			}
		}()
	}
	if s.server == 0 {
		s.server = r.findServer(b.spec.ID)
	}
	server := fileServer{s.server, b.spec.ID, started}
	if !r.isServer(server) {
		s.server = 0
		return unix.ESRCH
	}
	if s.readOnly == nil {
		s.readOnly = map[string]bool{}
	}
	delete(s.readOnly, source) // after an error some mounts may be changed, and others not
	if r.Rootless {
		err = r.setByHelper(ctx, server, targets, readOnly)
	} else {
		err = r.setReadOnly(server, targets, readOnly)
	}
	if err != nil {
		return err
	}
	s.readOnly[source] = readOnly
	return nil
}

// findServer returns the process id of a sandbox's file server, as gVisor has stored it,
// or 0.
func (r *Runtime) findServer(id string) int {
	files, _ := filepath.Glob(filepath.Join(r.runscRoot(), "*"+id+"*.state"))
	for _, f := range files {
		var state struct {
			Server int `json:"goferPid"`
		}
		text, err := os.ReadFile(f)
		if err == nil && json.Unmarshal(text, &state) == nil && state.Server > 1 {
			return state.Server
		}
	}
	return 0
}

// setReadOnly changes the mounts of a file server. It enters the process's namespace as
// root, so it checks the process again once the id can no longer become another's.
func (r *Runtime) setReadOnly(server fileServer, targets []string, readOnly bool) error {
	fd, err := unix.PidfdOpen(server.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !r.isServer(server) {
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

// setByHelper does the same where the mounts belong to a user namespace, which only a
// program with one thread can enter: sandlot-runsc's command "seal".
func (r *Runtime) setByHelper(ctx context.Context, server fileServer, targets []string, readOnly bool) error {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	ctx, cancel := context.WithTimeout(ctx, helperInterval)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Runsc, append([]string{"seal", mode, goferRoot}, targets...)...)
	cmd.Env, cmd.Dir = []string{}, "/"
	for _, name := range []string{"user", "mnt"} {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(server.pid), "ns", name))
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if !r.isServer(server) { // it lives now, after they were opened, so they are its own
		return unix.ESRCH
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return unix.Errno(exit.ExitCode())
	}
	return err
}
