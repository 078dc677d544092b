//go:build linux && !mac

// Package qemu makes sandboxes as virtual machines of QEMU. It owns the machines whose processes have the lock of a
// sandbox's folder in its state folder, and touches no others.
//
// A machine has no network card and sees no folder of the server's machine: its disks are files, which the server opens,
// and QEMU gets as descriptors. Workspaces are disks, too: the kernels of distributions have no 9p, virtiofsd would run
// for each sandbox beside QEMU and make files of the host with the sandbox's modes, and neither sleeps. The price is that
// nobody sees a workspace's files on the host, and that two sandboxes cannot share one.
//
// KVM was never seen by its tests, which emulate machines. The settings do not offer the runtime yet.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/runtime/program"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Config is how machines are made.
type Config struct {
	Program string // QEMU's program; empty: the one in PATH
	Kernel  string // the file of a Linux kernel; empty: one of this machine's own
	Modules string // the folder of its modules; empty: it is found by the kernel's version
	Emulate bool   // machines are emulated where there is no KVM

	Agent, AgentBeside string // as in program.Agent
	StateDir           string
	Log                *slog.Logger
}

// defaultProgram is QEMU's program for machines with this one's processor.
const defaultProgram = "qemu-system-x86_64"

// Runtime implements sandbox.Runtime. Lock order: box.stopping, mu, box.mu.
type Runtime struct {
	Config
	agent      *program.Agent
	volumes    volumes
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup

	setup  sync.Mutex
	system *system // nil: not made yet
	accel  *accel  // nil: not found out yet

	mu    sync.Mutex
	boxes map[string]*box
}

// New returns the runtime. It does no I/O.
func New(c Config) (*Runtime, error) {
	for _, p := range []string{cmp.Or(c.Agent, c.StateDir), c.StateDir, cmp.Or(c.Kernel, "/"), cmp.Or(c.Modules, "/")} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("qemu: %q must be an absolute path", p)
		}
	}
	r := &Runtime{Config: c, boxes: map[string]*box{}}
	r.agent = &program.Agent{Path: c.Agent, Beside: c.AgentBeside, Dir: filepath.Join(r.dir(), "agents"),
		InUse: func() ([]string, error) { return specfile.Agents(r.sandboxesDir()) }}
	r.volumes = volumes{dir: filepath.Join(r.dir(), "volumes")}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Name implements sandbox.Runtime.
func (r *Runtime) Name() string { return "qemu" }

func (r *Runtime) dir() string                 { return filepath.Join(r.StateDir, "qemu") }
func (r *Runtime) sandboxesDir() string        { return filepath.Join(r.dir(), "sandboxes") }
func (r *Runtime) sandboxDir(id string) string { return filepath.Join(r.sandboxesDir(), id) }

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// unavailable returns an error of Check, which says what to do.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", sandbox.ErrUnavailable, fmt.Sprintf(format, args...))
}

// Check implements sandbox.Runtime.
func (r *Runtime) Check(ctx context.Context) error {
	if err := r.checkPrograms(); err != nil {
		return err
	}
	_, err := r.findAccel(ctx)
	return err
}

// checkPrograms returns an error if something is missing of which machines are made.
func (r *Runtime) checkPrograms() error {
	if runtime.GOARCH != "amd64" {
		return unavailable("the runtime qemu is for x86-64 so far, and this machine is %s: use gvisor or docker",
			runtime.GOARCH)
	}
	if _, err := r.program(); err != nil {
		return err
	}
	if _, err := mkfs(); err != nil {
		return err
	}
	if _, err := r.findKernel(); err != nil {
		return err
	}
	if err := r.agent.Check(runtime.GOARCH); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	return nil
}

// program returns the path of QEMU's program.
func (r *Runtime) program() (string, error) {
	name := cmp.Or(r.Program, defaultProgram)
	path, err := exec.LookPath(name)
	if err != nil {
		return "", unavailable("QEMU is missing: install it (Debian: apt-get install qemu-system-x86), or set "+
			"qemu.program to its path: %v", err)
	}
	return filepath.Abs(path)
}

// mkfs returns the program that makes the file systems of disks. It is often not in the PATH of users.
func mkfs() (string, error) {
	for _, name := range []string{"mke2fs", "/sbin/mke2fs", "/usr/sbin/mke2fs"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", unavailable("the program mke2fs is missing: install e2fsprogs")
}

// maxInstance is more than the bytes of an instance's id.
const maxInstance = 100

// instanceID returns the random id of this state folder. The first call makes it.
func (r *Runtime) instanceID() (string, error) {
	r.setup.Lock()
	defer r.setup.Unlock()
	path := filepath.Join(r.dir(), "instance")
	text, err := atomicfile.Read(path, maxInstance)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(secret.ID())
		if err = os.MkdirAll(r.dir(), 0o700); err == nil {
			err = atomicfile.WriteThrough(path, text)
		}
	}
	if err == nil && !validID.Match(text) {
		err = fmt.Errorf("%s is broken", path)
	}
	if err != nil {
		return "", fmt.Errorf("qemu: the id of this instance: %w", err)
	}
	return string(text), nil
}

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

// Close implements sandbox.Runtime.
func (r *Runtime) Close() error {
	r.cancel()
	r.mu.Lock()
	boxes := r.boxes
	r.boxes = map[string]*box{}
	r.mu.Unlock()
	for _, b := range boxes {
		b.detach()
	}
	r.background.Wait()
	return nil
}

// Capabilities implements sandbox.Runtime.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Users: r, Storage: r, Files: r, Doctor: r}
}

// CanRunAs implements sandbox.Users: all users of a machine are its own.
func (r *Runtime) CanRunAs() error { return nil }

// HostUser implements sandbox.Users. Files of a sandbox have no owner on the host, but in its disks.
func (r *Runtime) HostUser(_ context.Context, u image.User) (uid, gid int, err error) {
	return int(u.UID), int(u.GID), nil
}

// RootIsCapable implements sandbox.Users.
func (r *Runtime) RootIsCapable(t *image.Template) bool { return t.User.IsRoot() }

// Warning implements sandbox.Doctor.
func (r *Runtime) Warning() string {
	a, err := r.findAccel(r.ctx)
	if err == nil && a.name == emulated {
		return "sandboxes of the runtime qemu are emulated, as there is no KVM: programs are 10 to 50 times slower"
	}
	return ""
}

// Searched implements sandbox.Doctor.
func (r *Runtime) Searched(context.Context) (chosen string, tried []string) { return "", nil }

// Choose implements sandbox.Doctor. Check does it when it is needed.
func (r *Runtime) Choose(context.Context) error { return nil }

// TryAll implements sandbox.Doctor.
func (r *Runtime) TryAll(ctx context.Context) (all []sandbox.Trial) {
	if err := r.checkPrograms(); err != nil {
		return []sandbox.Trial{{Platform: hardware, Err: err}}
	}
	for _, name := range []string{hardware, emulated} {
		began := time.Now()
		err := r.try(ctx, name)
		all = append(all, sandbox.Trial{Platform: name, Err: err, Start: time.Since(began)})
	}
	return all
}
