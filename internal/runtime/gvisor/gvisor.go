// Package gvisor makes sandboxes with gVisor's runsc, as root or as an
// unprivileged user, with nothing else installed. Each sandbox has a folder of
// its own, which holds all that is needed to find it again after a crash.
package gvisor

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
)

// Config says where things are.
type Config struct {
	Runsc string // path of sandlot-runsc
	Agent string // path of sandlot-agent
	// StateDir is an existing folder, without symbolic links, for this instance alone.
	StateDir string
	Log      *slog.Logger
	// Open gives sandboxes the machine's own network, in place of none.
	Open bool
	// Preboot: start sandboxes from preboot images.
	Preboot bool
	// Rootless forces the way of an unprivileged user; it is the only one for them,
	// and for root without CAP_SYS_ADMIN.
	Rootless bool
}

// Runtime implements sandbox.Runtime. Its locks are taken in the order in which they
// stand here; after them that of a box's seal, and then that of the box.
type Runtime struct {
	Config
	cgroups cgroups
	warning string
	// weightless: that the sandboxes' weight cannot be set is logged once.
	weightless sync.Once
	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	prebooting sync.Mutex // one preboot image is made at a time

	watchesMu sync.Mutex
	watches   map[string]*writeWatch // by the volume that is full

	mu     sync.Mutex
	boxes  map[string]*box
	roots  map[string]string        // skeletons, by template's name
	over   map[string][]image.Bind  // what is mounted over them
	images map[string]*prebootImage // by kind; nil for none
}

// New returns the runtime. All that it changes is a cgroup, which it makes and
// removes as root to see whether it may.
func New(c Config) (*Runtime, error) {
	for _, p := range []string{c.Runsc, c.Agent, c.StateDir} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("gvisor: %q must be an absolute path", p)
		}
	}
	c.Rootless = c.Rootless || os.Getuid() != 0
	r := &Runtime{Config: c, boxes: map[string]*box{}, roots: map[string]string{}, over: map[string][]image.Bind{},
		images: map[string]*prebootImage{}, watches: map[string]*writeWatch{}}
	if !c.Rootless {
		r.chooseMode()
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.work.Go(r.watch)
	return r, nil
}

// chooseMode decides how root's sandboxes are made. Without CAP_SYS_ADMIN they are made
// as an unprivileged user's; where no cgroup can be made they have none. Any other
// trouble with cgroups is left for runsc to report, each time: a sandbox never loses its
// limits for an error that passes.
func (r *Runtime) chooseMode() {
	if !administers() {
		r.Rootless = true
		r.warning = "the server is root without the capability CAP_SYS_ADMIN, so sandboxes are made as an " +
			"unprivileged user's, without cgroups: " + unbound
		return
	}
	c := findCgroups(r.StateDir)
	why := "this machine has none at " + cgroupRoot
	if c.usable() {
		err := c.try()
		if !refused(err) {
			r.cgroups = c
			return
		}
		why = err.Error()
	}
	r.warning = "sandboxes have no cgroups (" + why + "): " + unbound
}

// unbound is what it means to have no cgroups.
const unbound = "the kernel bounds neither their memory, which the server watches instead, nor their CPU, nor " +
	"gVisor's threads; give the server CAP_SYS_ADMIN and a writable " + cgroupRoot +
	", or bound all of it from outside (a container's memory and CPUs), and start it again"

// administers says whether this process has CAP_SYS_ADMIN.
func administers() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData // of 32 capabilities each
	return unix.Capget(&h, &has[0]) != nil || has[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Warning implements sandbox.Warner.
func (r *Runtime) Warning() string { return r.warning }

// Name implements sandbox.Runtime.
func (r *Runtime) Name() string { return "gvisor" }

func (r *Runtime) dir() string           { return filepath.Join(r.StateDir, "sandboxes") }
func (r *Runtime) runscRoot() string     { return filepath.Join(r.StateDir, "runsc") }
func (r *Runtime) path(id string) string { return filepath.Join(r.dir(), id) }

// Check implements sandbox.Runtime.
func (r *Runtime) Check(ctx context.Context) error {
	for name, p := range map[string]string{"sandlot-runsc": r.Runsc, "sandlot-agent": r.Agent} {
		st, err := os.Stat(p)
		if err != nil || st.Mode()&0o111 == 0 {
			return fmt.Errorf("%w: the program %s is not at %s; run `make build`", sandbox.ErrUnavailable, name, p)
		}
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

// record is a sandbox's record on the disk, with mode 0600.
type record struct {
	ID       string          `json:"id"`
	Template string          `json:"template"`
	Limits   sandbox.Limits  `json:"limits"`
	Mounts   []sandbox.Mount `json:"mounts"`
	Secret   string          `json:"secret"`
	Open     bool            `json:"open"`    // it has the machine's own network
	PID      int             `json:"pid"`     // of the sandbox's process; 0 while it boots
	Started  uint64          `json:"started"` // of that process, in clock ticks since boot
}

func (r *Runtime) store(rec record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(r.path(rec.ID), "sandbox.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("gvisor: the spec is incomplete")
	}
	root, err := r.skeleton(spec.Template)
	if err != nil {
		return nil, fmt.Errorf("making the root file system: %w", err)
	}
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.path(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", err)
	}
	b := newBox(r, spec)
	err = r.start(ctx, b, root)
	if err == nil {
		return b, nil
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	left := b.Stop(stop)
	if b.kind == "" || ctx.Err() != nil || left != nil {
		return nil, errors.Join(err, left)
	}
	r.Log.Warn("a sandbox did not start from its preboot image, and boots", "template", spec.Template.Name,
		"error", err)
	r.DropImage(spec)
	return r.Create(ctx, spec)
}

// start boots the sandbox of a folder that exists, or restores it from the
// preboot image of its kind.
func (r *Runtime) start(ctx context.Context, b *box, root string) error {
	rec := b.record()
	if err := r.store(rec); err != nil {
		return err
	}
	if err := r.bundle(b, root); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	if err := b.listen(); err != nil {
		return err
	}
	pidFile := filepath.Join(b.dir, "pid")
	how := []string{"run", "-bundle", b.dir, "-detach", "-pid-file", pidFile}
	if i := r.image(b.spec); i != nil {
		if err := b.writeSecret(); err != nil {
			return err
		}
		b.kind = i.Kind
		how = []string{"restore", "-bundle", b.dir, "-detach", "-pid-file", pidFile, "-image-path", i.dir}
	}
	if err := r.runsc(ctx, b, append(how, b.spec.ID)...); err != nil {
		return err
	}
	if b.cgroups.usable() {
		if err := b.cgroups.weigh(); err != nil { // sandboxes are slower among many programs, and no more
			r.weightless.Do(func() { r.Log.Warn("could not set the weight of the sandboxes' cgroup", "error", err) })
		}
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(text), &rec.PID); err != nil {
		return fmt.Errorf("runsc wrote no process id: %w", err)
	}
	if rec.Started, err = proc.Started(rec.PID); err != nil {
		return fmt.Errorf("%w: it died at once", sandbox.ErrGone)
	}
	if err := r.store(rec); err != nil {
		return err
	}
	b.seal.started(b.spec.Mounts)
	r.mu.Lock()
	r.boxes[b.spec.ID] = b
	r.mu.Unlock()
	return b.supervise(rec.PID, rec.Started)
}

// Left implements sandbox.Runtime.
func (r *Runtime) Left(context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.dir())
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
		return nil, fmt.Errorf("gvisor: %q is no sandbox's id", id)
	}
	b, err := r.recover(id)
	if err == nil {
		return b, nil
	}
	if scarce(err) { // it lives, and can be recovered later
		b.detach()
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	b.stale = true
	if serr := b.Stop(ctx); serr != nil {
		r.Log.Error("could not remove what is left of a sandbox", "sandbox", id, "error", serr)
	}
	return nil, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
}

// recover recovers one sandbox. With an error the box is good for Stop alone.
func (r *Runtime) recover(id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id, Template: &image.Template{}})
	rec, err := r.read(id)
	if err != nil {
		return b, err
	}
	secret, err := hex.DecodeString(rec.Secret)
	if err != nil || len(secret) != wire.SecretLen {
		return b, errors.New("its record is broken")
	}
	b.spec = sandbox.Spec{ID: id, Template: &image.Template{Name: rec.Template}, Limits: rec.Limits, Mounts: rec.Mounts,
		Secret: secret}
	if rec.PID == 0 {
		return b, errors.New("it had not finished booting")
	}
	if rec.Open != r.Open {
		return b, errors.New("its network is of another kind than the settings want")
	}
	if now, err := proc.Started(rec.PID); scarce(err) {
		return b, err
	} else if err != nil || now != rec.Started {
		return b, errors.New("it died")
	}
	if !b.cgroups.has(id) { // it was made where there were none
		b.cgroups = cgroups{}
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
	r.work.Go(b.wake)
	return b, nil
}

// List implements sandbox.Lister.
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
	r.work.Wait()
	r.closeWatches()
	r.mu.Lock()
	defer r.mu.Unlock()
	if left, err := os.ReadDir(r.dir()); err == nil && len(left) == 0 {
		r.sweep()
	}
	r.cgroups.removeParent()
	return nil
}

// sweep removes what runsc keeps for all its sandboxes, when there is none: a
// network namespace without network, held by a mount.
func (r *Runtime) sweep() {
	netns := filepath.Join(r.runscRoot(), "null-netns")
	err := unix.Unmount(netns, unix.MNT_DETACH)
	for err == nil { // two that booted at once may each have made one
		err = unix.Unmount(netns, unix.MNT_DETACH)
	}
	if err != unix.EINVAL && err != unix.ENOENT && err != unix.EPERM {
		r.Log.Warn("could not unmount runsc's network namespace", "path", netns, "error", err)
	}
	os.Remove(netns)
}
