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

// seal is what is known of how a sandbox's mounts are.
type seal struct {
	mu       sync.Mutex
	server   int             // the process of gVisor's file server; 0: not looked for
	readOnly map[string]bool // by source; what an earlier server did is not in it
	failed   bool            // which was said
	next     time.Time       // when it is tried again, where a try costs something
}

// Seal implements sandbox.Sealer. A sandbox's mounts are in the mount namespace of
// gVisor's file server. The kernel refuses it while a file of the folder is open for
// writing. Where all is as it is wanted, it costs nothing.
func (r *Runtime) Seal(ctx context.Context, source string, readOnly bool) (left int) {
	var writers []*box // which the kernel lets go on, as they have a file open for writing
	defer func() { r.blame(source, writers) }()
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
			if b.seal.news(err) {
				r.Log.Warn("could not change how a sandbox sees a volume", "sandbox", b.Spec().ID, "volume", source,
					"error", err)
			}
		}
	}
	return left
}

// writableAt is where a folder is mounted for a sandbox that may write it.
func writableAt(mounts []sandbox.Mount, source string) (targets []string) {
	for _, m := range mounts {
		if m.Source == source && !m.ReadOnly {
			targets = append(targets, m.Target)
		}
	}
	return targets
}

// fresh says that the mounts are as they were asked for: of a sandbox that has
// just started.
func (s *seal) fresh(mounts []sandbox.Mount) {
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
	return !time.Now().Before(s.next)
}

// sealAgain is the time between two tries that need a process each.
const sealAgain = 5 * time.Second

// setSeal changes the mounts of a folder, of which there may be several.
func (r *Runtime) setSeal(ctx context.Context, b *box, source string, targets []string, readOnly bool) (err error) {
	b.mu.Lock()
	id, started := b.spec.ID, b.started
	b.mu.Unlock()
	s := &b.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Rootless {
		defer func() {
			if err != nil {
				s.next = time.Now().Add(sealAgain)
			}
		}()
	}
	if s.server == 0 {
		s.server = r.fileServer(id)
	}
	if !r.isServer(s.server, id, started) {
		s.server = 0
		return unix.ESRCH
	}
	if s.readOnly == nil {
		s.readOnly = map[string]bool{}
	}
	delete(s.readOnly, source) // some may be changed, and others not
	if r.Rootless {
		err = r.setByHelper(ctx, s.server, id, started, targets, readOnly)
	} else {
		err = r.setReadOnly(s.server, id, started, targets, readOnly)
	}
	if err != nil {
		return err
	}
	s.readOnly[source] = readOnly
	return nil
}

// news says whether an error is to be said: not that a file is open for writing, or
// that the sandbox ends, and nothing twice.
func (s *seal) news(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ESRCH) {
		return false
	}
	s.failed = true
	return true
}

// fileServer returns the process of a sandbox's file server, as gVisor has written it
// down for itself, or 0.
func (r *Runtime) fileServer(id string) int {
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

// setReadOnly changes the mounts of the file server pid, which must be that of the
// sandbox id: root enters what its process names, so that it is looked at again when
// the process can no longer become another.
func (r *Runtime) setReadOnly(pid int, id string, started uint64, targets []string, readOnly bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !r.isServer(pid, id, started) {
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

// setByHelper does what setReadOnly does where the mounts belong to a user namespace,
// which a program with one thread can enter: sandlot-runsc's "seal".
func (r *Runtime) setByHelper(ctx context.Context, pid int, id string, started uint64, targets []string, readOnly bool) error {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	ctx, cancel := context.WithTimeout(ctx, sealAgain)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Runsc, append([]string{"seal", mode, goferRoot}, targets...)...)
	cmd.Env, cmd.Dir = []string{}, "/"
	for _, name := range []string{"user", "mnt"} {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns", name))
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if !r.isServer(pid, id, started) { // it is alive after they were opened: they are its own
		return unix.ESRCH
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return unix.Errno(exit.ExitCode())
	}
	return err
}
