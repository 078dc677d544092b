package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
)

// sealState is which of a sandbox's mounts of shared folders are read-only now. Its mu is
// taken before the box's.
type sealState struct {
	mu          sync.Mutex
	gofer       int             // process id of the sandbox's gofer; 0: not known
	readOnly    map[string]bool // by source; a source that this server has not set is missing
	errorLogged bool            // an error was logged
	retryAt     time.Time       // setReadOnlyByHelper is not tried before that time
}

// Seal implements sandbox.Files. A sandbox's mounts are in the mount namespace of its
// gofer, gVisor's process that serves the sandbox the host's files. The kernel refuses to
// make a mount read-only while one of its files is open for writing (EBUSY): a sandbox
// that keeps writing is ended, see endWriters. Seal makes no system call for a sandbox
// whose mounts are as they should be.
func (r *Runtime) Seal(ctx context.Context, source string, readOnly bool) (failed int) {
	var writers []*box // their mounts stay writable, as a file is open for writing
	defer func() { r.endWriters(source, writers) }()
	for _, sb := range r.List() {
		b, ok := sb.(*box)
		targets := writableTargets(sb.Spec().Mounts, source)
		if !ok || len(targets) == 0 || b.seal.matches(source, readOnly) {
			continue
		}
		if ctx.Err() != nil || !b.seal.retryDue() {
			failed++
			continue
		}
		if err := r.applySeal(ctx, b, source, targets, readOnly); err != nil {
			failed++
			if readOnly && errors.Is(err, unix.EBUSY) {
				writers = append(writers, b)
			}
			if b.seal.shouldLog(err) {
				r.Log.Warn("could not change how a sandbox sees a volume", "sandbox", b.spec.ID, "volume", source,
					"error", err)
			}
		}
	}
	return failed
}

// writableTargets returns the targets at which the folder source is mounted writable.
func writableTargets(mounts []sandbox.Mount, source string) (targets []string) {
	for _, m := range mounts {
		if m.Source == source && !m.ReadOnly {
			targets = append(targets, m.Target)
		}
	}
	return targets
}

// reset is called when a sandbox has just started: its mounts are as in its spec.
func (s *sealState) reset(mounts []sandbox.Mount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readOnly = map[string]bool{}
	for _, m := range mounts {
		if !m.ReadOnly {
			s.readOnly[m.Source] = false
		}
	}
}

// matches says whether the mounts of source are known to be as readOnly says.
func (s *sealState) matches(source string, readOnly bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, known := s.readOnly[source]
	return known && now == readOnly
}

// retryDue says whether setReadOnlyByHelper may be tried now.
func (s *sealState) retryDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.retryAt)
}

// shouldLog says whether to log an error: only the first one is logged. EBUSY (a file is open
// for writing) and ESRCH (the sandbox ends) are expected, and not logged.
func (s *sealState) shouldLog(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.errorLogged || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ESRCH) {
		return false
	}
	s.errorLogged = true
	return true
}

// knownGofer returns the process id of the gofer, or 0 as long as it is not known.
func (s *sealState) knownGofer() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gofer
}

// helperInterval is the pause after a failed try to set a mount by a helper process.
const helperInterval = 5 * time.Second

// applySeal makes the sandbox's mounts of the folder source, at targets, read-only or writable.
func (r *Runtime) applySeal(ctx context.Context, b *box, source string, targets []string, readOnly bool) (err error) {
	_, started := b.process()
	s := &b.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Rootless {
		defer func() {
			if err != nil {
				s.retryAt = time.Now().Add(helperInterval)
			}
		}()
	}
	if s.gofer == 0 {
		s.gofer = r.findGofer(b.spec.ID)
	}
	gofer := goferProcess{s.gofer, b.spec.ID, started}
	if !r.isGofer(gofer) {
		s.gofer = 0
		return unix.ESRCH
	}
	if s.readOnly == nil {
		s.readOnly = map[string]bool{}
	}
	delete(s.readOnly, source) // after an error some mounts may be changed, and others not
	if r.Rootless {
		err = r.setReadOnlyByHelper(ctx, gofer, targets, readOnly)
	} else {
		err = r.setReadOnly(gofer, targets, readOnly)
	}
	if err != nil {
		return err
	}
	s.readOnly[source] = readOnly
	return nil
}

// findGofer returns the process id of a sandbox's gofer, which it reads from runsc's state file, or 0.
func (r *Runtime) findGofer(id string) int {
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

// setReadOnly changes mounts in the gofer's mount namespace.
func (r *Runtime) setReadOnly(gofer goferProcess, targets []string, readOnly bool) error {
	return hostfile.SetReadOnly(gofer.pid, func() bool { return r.isGofer(gofer) }, targets, readOnly)
}

// setReadOnlyByHelper does the same as setReadOnly without root.
func (r *Runtime) setReadOnlyByHelper(ctx context.Context, gofer goferProcess, targets []string, readOnly bool) error {
	ctx, cancel := context.WithTimeout(ctx, helperInterval)
	defer cancel()
	return hostfile.SetReadOnlyByHelper(ctx, r.Runsc, gofer.pid, func() bool { return r.isGofer(gofer) }, targets,
		readOnly)
}
