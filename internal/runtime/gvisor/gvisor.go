// Package gvisor makes sandboxes with gVisor's runsc, as root or as an
// unprivileged user, with nothing else installed. Each sandbox has a folder of its own
// in the state folder, with everything that the next server needs to take the sandbox
// over after a crash.
//
// A box is one sandbox of this package. A kind is the hash of everything that a preboot
// image depends on: sandboxes of one kind can start from the same image.
package gvisor

import (
	"cmp"
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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/gvisor/frozen"
	"sandlot/internal/runtime/gvisor/root"
	"sandlot/internal/runtime/program"
	"sandlot/internal/runtime/socket"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// Config says which programs and folders a Runtime uses, and how it makes sandboxes.
type Config struct {
	Runsc string // path of sandlot-runsc
	Agent string // path of sandlot-agent; empty: the one in this program, or else AgentBeside
	// AgentBeside is where sandlot-agent may be.
	AgentBeside string
	// StateDir is an existing folder for this instance alone. No part of its path is a
	// symbolic link.
	StateDir string
	Log      *slog.Logger
	// HostNetwork gives sandboxes the machine's own network. Without it they have none but
	// the agent's connection to the host.
	HostNetwork bool
	// Bare: programs of root have no capabilities, except in builds.
	Bare bool
	// Preboot: start sandboxes from preboot images.
	Preboot bool
	// Platform is systrap, kvm, or auto; empty: systrap. Choose tries what has to be tried.
	Platform string
	// Rootless makes sandboxes as an unprivileged user does. New sets it when the process
	// is not root, or is root without CAP_SYS_ADMIN.
	Rootless bool
}

// Runtime implements sandbox.Runtime. Lock order: the mutexes here from top to bottom,
// then box.seal.mu, then box.mu.
type Runtime struct {
	Config
	agent   *program.Agent
	cgroups cgroup.Groups
	warning string
	// weightWarning: that the weight of the sandboxes' cgroup cannot be set is logged once.
	weightWarning sync.Once
	ctx           context.Context
	cancel        context.CancelFunc
	background    sync.WaitGroup

	prebootMu sync.Mutex // one preboot image is made at a time
	frozen    *frozen.Store

	watchesMu    sync.Mutex
	writeWatches map[string]*writeWatch // by the source folder of a full volume

	roots *root.Store // its lock is taken after all others

	platform atomic.Pointer[string] // of new sandboxes; nil: systrap

	mu     sync.Mutex
	boxes  map[string]*box
	images map[string]*prebootImage // by kind; nil: there is none on the disk
}

// New returns the runtime. As root it creates and removes a cgroup, to find out whether
// it is allowed to; it changes nothing else.
func New(c Config) (*Runtime, error) {
	for _, p := range []string{c.Runsc, cmp.Or(c.Agent, "/"), c.StateDir} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("gvisor: %q must be an absolute path", p)
		}
	}
	c.Rootless = c.Rootless || os.Getuid() != 0
	r := &Runtime{Config: c, boxes: map[string]*box{}, images: map[string]*prebootImage{},
		writeWatches: map[string]*writeWatch{}, frozen: frozen.New(c.StateDir)}
	r.agent = &program.Agent{Path: c.Agent, Beside: c.AgentBeside, Dir: filepath.Join(c.StateDir, "agents"),
		InUse: func() ([]string, error) { return specfile.Agents(r.sandboxesDir()) }}
	if !c.Rootless {
		r.chooseMode()
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.roots = root.New(r.ctx, filepath.Join(c.StateDir, "roots"), c.HostNetwork, r.imagesInUse)
	r.background.Go(r.watchBoxes)
	return r, nil
}

// chooseMode decides how root makes sandboxes. Without CAP_SYS_ADMIN it makes them as an
// unprivileged user does. Where no cgroup can be made, sandboxes have none. Other errors
// of cgroups may be temporary: runsc reports them when it starts a sandbox, and a sandbox
// never runs without its limits because of them.
func (r *Runtime) chooseMode() {
	if !hasSysAdmin() {
		r.Rootless = true
		r.warning = "the server is root without the capability CAP_SYS_ADMIN, so sandboxes are made as an " +
			"unprivileged user's, without cgroups: " + noCgroupsAdvice
		return
	}
	c := cgroup.Find(r.StateDir)
	why := "this machine has none at " + cgroup.Root
	if c.Usable() {
		err := c.Probe()
		if !cgroup.IsPermanent(err) {
			r.cgroups = c
			return
		}
		why = err.Error()
	}
	r.warning = "sandboxes have no cgroups (" + why + "): " + noCgroupsAdvice
}

// noCgroupsAdvice says what follows from having no cgroups, and what the operator can do.
const noCgroupsAdvice = "the kernel bounds neither their memory, which the server watches instead, nor their CPU, " +
	"nor gVisor's threads; give the server CAP_SYS_ADMIN and a writable " + cgroup.Root +
	", or bound all of it from outside (a container's memory and CPUs), and start it again"

// hasSysAdmin says whether this process has CAP_SYS_ADMIN.
func hasSysAdmin() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData // each has 32 capabilities
	return unix.Capget(&h, &has[0]) != nil || has[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Capabilities implements sandbox.Runtime.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Users: r, Files: r, Preboot: r, Freezer: r, Doctor: r}
}

// Searched implements sandbox.Doctor. The settings name its program.
func (r *Runtime) Searched(context.Context) (chosen string, tried []string) { return "", nil }

// Warning implements sandbox.Doctor.
func (r *Runtime) Warning() string { return r.warning }

// CanRunAs implements sandbox.Users. On the host, a program's files belong to the program's user.
func (r *Runtime) CanRunAs() error {
	if r.Rootless {
		return errors.New("the server is not root, so that it can give files to no other user")
	}
	return nil
}

// HostUser implements sandbox.Users.
func (r *Runtime) HostUser(_ context.Context, u image.User) (uid, gid int, err error) {
	return int(u.UID), int(u.GID), nil
}

// Name implements sandbox.Runtime.
func (r *Runtime) Name() string { return "gvisor" }

func (r *Runtime) sandboxesDir() string        { return filepath.Join(r.StateDir, "sandboxes") }
func (r *Runtime) runscRoot() string           { return filepath.Join(r.StateDir, "runsc") }
func (r *Runtime) sandboxDir(id string) string { return filepath.Join(r.sandboxesDir(), id) }

// Check implements sandbox.Runtime.
func (r *Runtime) Check(ctx context.Context) error {
	if st, err := os.Stat(r.Runsc); err != nil || st.Mode()&0o111 == 0 {
		return fmt.Errorf("%w: the program sandlot-runsc is not at %s; run `make build`", sandbox.ErrUnavailable,
			r.Runsc)
	}
	if err := r.agent.Check(runtime.GOARCH); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if err := r.executes(); err != nil {
		return err
	}
	if !r.Rootless {
		return nil
	}
	for _, want := range []struct{ file, bad, advice string }{
		{"user/max_user_namespaces", "0", "user namespaces are turned off; as root: sysctl " +
			"user.max_user_namespaces=10000"},
		{"kernel/unprivileged_userns_clone", "0", "unprivileged user namespaces are turned off; as root: sysctl " +
			"kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor keeps unprivileged programs from user " +
			"namespaces; as root: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run the server as root"},
	} {
		text, err := os.ReadFile("/proc/sys/" + want.file)
		if err == nil && strings.TrimSpace(string(text)) == want.bad {
			return fmt.Errorf("%w: %s", sandbox.ErrUnavailable, want.advice)
		}
	}
	return ctx.Err()
}

// executes returns an error if what is in the state folder cannot be executed: the memory of sandboxes is there.
func (r *Runtime) executes() error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.StateDir, &st); err != nil || st.Flags&unix.ST_NOEXEC == 0 {
		return nil // a folder that is not there yet is looked at later
	}
	return fmt.Errorf("%w: %s is on a file system that is mounted with noexec, where gVisor does not run; let "+
		"`state_dir` name a folder elsewhere, and for `sandlot doctor` TMPDIR", sandbox.ErrUnavailable, r.StateDir)
}

// record is what this runtime stores of a sandbox.
type record struct {
	specfile.Record
	HostNetwork bool         `json:"open"`            // the sandbox has the machine's own network
	PID         int          `json:"pid"`             // of the sandbox's process; 0 while it boots
	Started     uint64       `json:"started"`         // of that process, in clock ticks since boot
	Image       string       `json:"image,omitempty"` // the EROFS file that is its root file system
	Kept        keptPrograms `json:"kept,omitzero"`
	Platform    string       `json:"platform,omitempty"`
}

// pidName is the file in a sandbox's folder to which runsc writes the id of its process.
const pidName = "pid"

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("gvisor: the spec is incomplete")
	}
	if err := r.executes(); err != nil {
		return nil, err
	}
	b := newBox(r, spec)
	var err error
	if b.root, err = r.roots.For(spec.Template); err != nil {
		return nil, fmt.Errorf("making the root file system: %w", err)
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.sandboxDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", err)
	}
	err = r.start(ctx, b)
	if err == nil {
		return b, nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	stopErr := b.Stop(stopCtx)
	if stopErr != nil {
		return nil, errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	if b.imageKind == "" || ctx.Err() != nil {
		return nil, err
	}
	r.Log.Warn("a sandbox did not start from its preboot image, and boots", "template", spec.Template.Name,
		"error", err)
	r.DropImage(spec)
	return r.Create(ctx, spec)
}

// start boots a sandbox whose folder exists, or restores it from the preboot image of its
// kind.
func (r *Runtime) start(ctx context.Context, b *box) error {
	if err := b.findAgent(); err != nil {
		return err
	}
	if err := specfile.Write(b.dir, b.record()); err != nil {
		return err
	}
	if err := r.writeBundle(b); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	if err := b.listen(); err != nil {
		return err
	}
	pidFile := filepath.Join(b.dir, pidName)
	args := []string{"run", "-bundle", b.dir, "-detach", "-pid-file", pidFile}
	if i := r.imageFor(b.spec); i != nil {
		// The environment of the agent is that of the image.
		if err := b.socket.WriteSecret(b.spec.Secret, 0o600); err != nil {
			return err
		}
		b.imageKind = i.Kind
		args = []string{"wake", "-bundle", b.dir, "-pid-file", pidFile, "-image-path", i.dir}
	}
	return r.launch(ctx, b, args)
}

// launch runs the runsc command that starts a sandbox, whose record and socket are there.
func (r *Runtime) launch(ctx context.Context, b *box, args []string) error {
	if err := r.runRunsc(ctx, b, append(args, b.spec.ID)...); err != nil {
		return err
	}
	if b.cgroups.Usable() {
		if err := b.cgroups.SetWeight(); err != nil { // without the weight, sandboxes are only slower on a busy machine
			r.weightWarning.Do(func() { r.Log.Warn("could not set the weight of the sandboxes' cgroup", "error", err) })
		}
	}
	rec := b.record()
	text, err := os.ReadFile(filepath.Join(b.dir, pidName))
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(text), &rec.PID); err != nil {
		return fmt.Errorf("runsc wrote no process id: %w", err)
	}
	if rec.Started, err = proc.StartTicks(rec.PID); socket.IsTemporary(err) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: it died at once", sandbox.ErrGone)
	}
	if err := specfile.Write(b.dir, rec); err != nil {
		return err
	}
	b.seal.reset(b.spec.Mounts)
	r.mu.Lock()
	r.boxes[b.spec.ID] = b
	r.mu.Unlock()
	return b.supervise(rec.PID, rec.Started)
}

// Leftovers implements sandbox.Runtime.
func (r *Runtime) Leftovers(context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.sandboxesDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Recover implements sandbox.Runtime.
func (r *Runtime) Recover(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("gvisor: %q is not a sandbox id", id)
	}
	r.mu.Lock()
	b, found := r.boxes[id]
	r.mu.Unlock()
	if found { // Stop has failed
		return b, nil
	}
	b, err := r.recoverBox(id)
	if err == nil {
		return b, nil
	}
	if atomicfile.IsPassing(err) { // the sandbox may live, and can be recovered later
		b.detach()
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	b.stale = true
	stopErr := b.Stop(ctx)
	switch {
	case stopErr == nil:
		return nil, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	case errors.Is(err, errDied):
		return nil, errors.Join(sandbox.ErrGone, err, sandbox.ErrRemains, stopErr)
	}
	return nil, fmt.Errorf("%w: it cannot be used (%v), and may live on: %w", sandbox.ErrRemains, err, stopErr)
}

// errDied means that a sandbox's process has ended.
var errDied = errors.New("it died")

// recoverBox takes one sandbox over. The box that it returns with an error can only be
// stopped or detached.
func (r *Runtime) recoverBox(id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id, Template: &image.Template{}})
	rec, err := r.readRecord(id)
	if err != nil {
		return b, err
	}
	spec, err := rec.Spec(id)
	if err != nil {
		return b, err
	}
	b.spec = spec
	b.root.Image, b.kept, b.platform = rec.Image, rec.Kept, cmp.Or(rec.Platform, systrap)
	b.agent = cmp.Or(b.kept.Agent, r.agent.Named(rec.Agent))
	if rec.PID == 0 {
		return b, sandbox.ErrNotStarted
	}
	if rec.HostNetwork != r.HostNetwork {
		return b, errors.New("its network is of another kind than the settings want")
	}
	if now, err := proc.StartTicks(rec.PID); socket.IsTemporary(err) {
		return b, err
	} else if err != nil || now != rec.Started {
		return b, errDied
	}
	if !b.cgroups.Has(id) { // the sandbox was made without cgroups
		b.cgroups = cgroup.Groups{}
	}
	if err := b.listen(); err != nil {
		return b, err
	}
	if err := b.supervise(rec.PID, rec.Started); err != nil {
		return b, err
	}
	r.mu.Lock()
	r.boxes[id] = b
	r.mu.Unlock()
	r.background.Go(b.wakeAgent)
	return b, nil
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
	r.closeWatches()
	r.mu.Lock()
	defer r.mu.Unlock()
	if left, err := os.ReadDir(r.sandboxesDir()); err == nil && len(left) == 0 {
		r.removeSharedState()
	}
	r.cgroups.RemoveParent()
	return nil
}

// removeSharedState removes what runsc shares between all its sandboxes, once there are none: a
// network namespace without interfaces, which a mount keeps alive.
func (r *Runtime) removeSharedState() {
	netns := filepath.Join(r.runscRoot(), "null-netns")
	err := unix.Unmount(netns, unix.MNT_DETACH)
	for err == nil { // two sandboxes that booted at once may each have mounted one
		err = unix.Unmount(netns, unix.MNT_DETACH)
	}
	if err != unix.EINVAL && err != unix.ENOENT && err != unix.EPERM {
		r.Log.Warn("could not unmount runsc's network namespace", "path", netns, "error", err)
	}
	os.Remove(netns)
}
