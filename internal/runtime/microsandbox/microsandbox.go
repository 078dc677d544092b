// Package microsandbox makes sandboxes as virtual machines of microsandbox's program msb. It owns the machines in an
// MSB_HOME of its own, in the state folder, that carry the label of its instance.
//
// A machine has no port of msb's, and no network: the agent, its first process, dials a port of AF_VSOCK, which msb
// passes to a Unix socket in the sandbox's folder. One such connection carries all others (wire.Bridge), since msb
// allows 256 of them.
package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/runtime/program"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Config says which program and folders a Runtime uses.
type Config struct {
	Program     string // path of msb; empty: it is looked for
	Agent       string // path of sandlot-agent; empty: the one in this program, or else AgentBeside
	AgentBeside string // where sandlot-agent may be
	// StateDir is an existing folder for this instance alone. No part of its path is a symbolic link.
	StateDir string
	Log      *slog.Logger
}

// Runtime implements sandbox.Runtime. Lock order: mu, box.mu.
type Runtime struct {
	Config
	agent      *program.Agent
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	once       singleflight.Group // for questions to msb

	mu       sync.Mutex
	boxes    map[string]*box
	instance string          // the value of labelInstance; empty: not read yet
	msb      string          // the program, once its version was checked
	tried    *trialBoot      // nil: no trial machine has booted yet
	seen     measured        // what msb has measured last
	trials   map[string]bool // the ids of trial machines that are being tried
	remains  error           // of a trial machine that could not be removed
}

// New returns the runtime. It does not look for msb.
func New(c Config) (*Runtime, error) {
	for _, p := range []string{c.StateDir, c.Program, c.Agent} {
		if p != "" && !filepath.IsAbs(p) {
			return nil, fmt.Errorf("microsandbox: %q must be an absolute path", p)
		}
	}
	r := &Runtime{Config: c, boxes: map[string]*box{}, trials: map[string]bool{}}
	if len(c.StateDir) > maxStateDir || strings.ContainsAny(c.StateDir, ":,") {
		return nil, fmt.Errorf("microsandbox: msb needs a state folder (state_dir) whose path has at most %d characters, "+
			"and no colon or comma, and this one is %s", maxStateDir, c.StateDir)
	}
	r.agent = &program.Agent{Path: c.Agent, Beside: c.AgentBeside, Dir: filepath.Join(r.dir(), "agents"),
		InUse: func() ([]string, error) { return specfile.Agents(r.sandboxesDir()) }}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// maxStateDir is the longest path of a state folder, in bytes. A Unix socket has at most 103, on Linux and macOS, and
// msb's own are the longest here: MSB_HOME/run/sandboxes/, 24 characters, /agent.sock.
const maxStateDir = 45

// Name implements sandbox.Runtime.
func (r *Runtime) Name() string { return Name }

// Name is the word in the settings.
const Name = "microsandbox"

func (r *Runtime) dir() string                 { return filepath.Join(r.StateDir, "msb") }
func (r *Runtime) home() string                { return filepath.Join(r.dir(), "home") } // msb's
func (r *Runtime) sandboxesDir() string        { return filepath.Join(r.dir(), "boxes") }
func (r *Runtime) sandboxDir(id string) string { return filepath.Join(r.sandboxesDir(), id) }

// instanceID returns the random id of this state folder. The first call makes it.
func (r *Runtime) instanceID() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.instance != "" {
		return r.instance, nil
	}
	path := filepath.Join(r.dir(), "instance")
	text, err := atomicfile.Read(path, 100)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(secret.ID())
		if err = os.MkdirAll(r.dir(), 0o700); err == nil {
			err = atomicfile.WriteThrough(path, text)
		}
	}
	if err != nil {
		return "", explainErrno(fmt.Errorf("microsandbox: the id of this instance: %w", err))
	}
	if !validID.Match(text) {
		return "", fmt.Errorf("microsandbox: %s is broken; remove it, and the machines that `MSB_HOME=%s msb ls` lists",
			path, r.home())
	}
	r.instance = string(text)
	return r.instance, nil
}

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// List implements sandbox.Runtime.
func (r *Runtime) List() []sandbox.Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]sandbox.Sandbox, 0, len(r.boxes))
	for _, b := range r.boxes {
		all = append(all, b)
	}
	return all
}

// Close implements sandbox.Runtime. It waits for a trial machine to be removed, which is bounded by stopTimeout, and
// returns why one could not be.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.cancel() // a trial that has not begun does not begin
	boxes := r.boxes
	r.boxes = map[string]*box{}
	r.mu.Unlock()
	for _, b := range boxes {
		b.disconnect()
	}
	r.background.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remains
}

// Capabilities implements sandbox.Runtime. msb's pause, fork and snapshots are not offered: no test has seen them.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Users: r, Images: r, Doctor: r, ImagesOnly: true}
}

// CanRunAs implements sandbox.Users.
func (r *Runtime) CanRunAs() error { return nil }

// HostUser implements sandbox.Users. msb serves a machine's folders with the rights of the server, and presents them as
// those of the machine's user.
func (r *Runtime) HostUser(context.Context, image.User) (uid, gid int, err error) {
	return max(os.Geteuid(), 0), max(os.Getegid(), 0), nil
}

// RootIsCapable implements sandbox.Users. The kernel is the machine's own.
func (r *Runtime) RootIsCapable(t *image.Template) bool { return t.User.IsRoot() }

// Warning implements sandbox.Doctor.
func (r *Runtime) Warning() string {
	return "no test of Sandlot has seen a machine of msb boot: KVM and macOS are untried. The processors of a sandbox " +
		"are whole ones"
}

// Searched implements sandbox.Doctor.
func (r *Runtime) Searched(context.Context) (chosen string, tried []string) { return "", nil }

// Choose implements sandbox.Doctor. There is one way. What a server leaves in the state folder here tells the next one
// that the folder is microsandbox's, whether or not msb is installed (config).
func (r *Runtime) Choose(context.Context) error {
	if _, err := r.instanceID(); err != nil {
		r.Log.Error("the state folder cannot say that it is microsandbox's", "error", err)
	}
	return nil
}

// TryAll implements sandbox.Doctor: it boots one machine.
func (r *Runtime) TryAll(ctx context.Context) []sandbox.Trial {
	start, err := r.boot(ctx)
	return []sandbox.Trial{{Platform: Name, Err: err, Start: start}}
}

// Check implements sandbox.Runtime. A machine has to boot: a device /dev/kvm that can be opened proves nothing. What a
// trial has found holds for as long as the server runs, or, if it has failed, for a while.
func (r *Runtime) Check(ctx context.Context) error {
	answer := r.once.DoChan("check", func() (any, error) {
		r.mu.Lock()
		last := r.tried
		if r.ctx.Err() != nil {
			r.mu.Unlock()
			return nil, r.ctx.Err()
		}
		r.background.Add(1)
		r.mu.Unlock()
		defer r.background.Done()
		if last != nil && (last.err == nil || time.Since(last.at) < retryTrial) {
			return nil, last.err
		}
		ctx, cancel := context.WithTimeout(r.ctx, trialTimeout)
		defer cancel()
		_, err := r.boot(ctx)
		if r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		r.mu.Lock()
		r.tried = &trialBoot{err: err, at: time.Now()}
		r.mu.Unlock()
		return nil, err
	})
	select {
	case a := <-answer:
		return a.Err
	case <-ctx.Done():
		return fmt.Errorf("%w: no trial machine of msb has booted yet: %w", sandbox.ErrUnavailable, ctx.Err())
	}
}

// trialBoot is what a trial has found.
type trialBoot struct {
	err error
	at  time.Time
}

const (
	// trialTimeout is how long a trial machine may take. A processor that cannot run machines was seen to take 32 s until
	// msb gave up.
	trialTimeout = time.Minute
	retryTrial   = 30 * time.Second
)

// machine is the processor of machines: this machine's.
const machine = runtime.GOARCH
