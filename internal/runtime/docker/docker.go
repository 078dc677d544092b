// Package docker makes sandboxes as containers of a Docker daemon, or of Podman, on this machine. It owns the
// containers that carry the label of its instance, and touches no others.
//
// A box is one sandbox of this package. What is needed to find it again is stored in a folder of its own in the
// state folder, before the container is made.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/sync/singleflight"

	"sandlot/internal/atomicfile"
	"sandlot/internal/dockercommand"
	"sandlot/internal/runtime/docker/volumes"
	"sandlot/internal/runtime/program"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Labels of what this package makes.
const (
	labelInstance = volumes.LabelInstance // random, one for each state folder
	labelID       = "dev.sandlot.sandbox"
	labelTemplate = "dev.sandlot.template"
	labelState    = "dev.sandlot.state" // the path of the state folder
	labelSaved    = "dev.sandlot.saved" // of images that Save makes: the instance
	labelName     = "dev.sandlot.name"  // of these images: the name that Save gave them
)

// Runtime implements sandbox.Runtime. Lock order: setupMu, mu, box.mu.
type Runtime struct {
	Config
	agent      *program.Agent
	client     *dockercommand.Daemon
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup

	setupMu   sync.Mutex
	instance  string            // the value of labelInstance; empty: not read yet
	skeletons map[string]string // ids of the images of templates without image, by the template's name
	warning   *string           // nil: the daemon was not asked yet

	idleInterval time.Duration // the constant; tests have less

	asked atomic.Pointer[daemon] // nil: the daemon was not asked yet
	once  singleflight.Group     // for asking the daemon

	filesMode    atomic.Pointer[bool] // whether the daemon is separate; nil: not found out yet
	volumes      *volumes.Store
	sizes        *volumes.Sizes // of the volumes of a separate daemon
	checkedPaths sync.Map       // images and mount points that checkPaths has passed

	mu    sync.Mutex
	boxes map[string]*box
}

// New returns the runtime. It reads the settings of the docker command, and does not call the daemon.
func New(c Config) (*Runtime, error) {
	for _, p := range []string{cmp.Or(c.Agent, c.StateDir), c.StateDir} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("docker: %q must be an absolute path", p)
		}
	}
	to, err := dockercommand.ClientAfter(daemonFile(c.StateDir), c.Host, c.Context)
	if err != nil {
		return nil, err
	}
	r := &Runtime{Config: c, client: to, boxes: map[string]*box{}, skeletons: map[string]string{},
		idleInterval: idleInterval}
	r.agent = &program.Agent{Path: c.Agent, Beside: c.AgentBeside, Dir: filepath.Join(r.dir(), "agents"),
		InUse: func() ([]string, error) { return specfile.Agents(r.sandboxesDir()) }}
	r.volumes = &volumes.Store{Daemon: to.Client,
		Agent:    func() (string, error) { return r.agent.File(r.known().machine) },
		Instance: r.instanceID, Import: r.importArchive, Log: c.Log}
	r.sizes = &volumes.Sizes{Daemon: to.Client, Interval: sizeInterval}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Name implements sandbox.Runtime.
func (r *Runtime) Name() string { return "docker" }

func (r *Runtime) dir() string                 { return filepath.Join(r.StateDir, "docker") }
func (r *Runtime) instanceFile() string        { return filepath.Join(r.dir(), "instance") }
func (r *Runtime) sandboxesDir() string        { return filepath.Join(r.dir(), "sandboxes") }
func (r *Runtime) sandboxDir(id string) string { return filepath.Join(r.sandboxesDir(), id) }

// Check implements sandbox.Runtime.
func (r *Runtime) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	info, err := r.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return r.unanswered(err)
	}
	if info.Info.OSType != "" && info.Info.OSType != "linux" {
		return fmt.Errorf("%w: the Docker daemon runs %s containers; switch it to Linux containers",
			sandbox.ErrUnavailable, info.Info.OSType)
	}
	if err := r.agent.Check(info.Info.Architecture); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if _, found := info.Info.Runtimes[r.OCIRuntime]; r.OCIRuntime != "" && !found && len(info.Info.Runtimes) > 0 &&
		!strings.Contains(r.OCIRuntime, ".") { // io.containerd.kata.v2 need not be listed
		return fmt.Errorf("%w: the Docker daemon has no runtime %s (docker.runtime); install it and add it to the "+
			"runtimes in the daemon's settings", sandbox.ErrUnavailable, r.OCIRuntime)
	}
	d, err := r.ask(ctx)
	if err != nil {
		return r.explain(err)
	}
	if separate, err := r.checkFiles(ctx); err != nil || separate {
		return err
	}
	return r.checkUser(d)
}

// checkTimeout is how long the daemon may take to answer Check.
const checkTimeout = 10 * time.Second

// maxInstance is more than the bytes of an instance's id, which validID bounds.
const maxInstance = 100

// instanceID returns the random id of this state folder. The first call makes it.
func (r *Runtime) instanceID() (string, error) {
	r.setupMu.Lock()
	defer r.setupMu.Unlock()
	if r.instance != "" {
		return r.instance, nil
	}
	path := r.instanceFile()
	text, err := atomicfile.Read(path, maxInstance)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(secret.ID())
		if err = os.MkdirAll(r.dir(), 0o700); err == nil {
			// After a crash of the machine an empty instance would disown all containers.
			err = atomicfile.WriteThrough(path, text)
		}
	}
	if err != nil {
		return "", fmt.Errorf("docker: the id of this instance: %w", err)
	}
	if !validID.Match(text) {
		return "", fmt.Errorf("docker: %s is broken; remove it, and the containers with the label %s=%s", path,
			labelState, r.StateDir)
	}
	r.instance = string(text)
	return r.instance, nil
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
	r.volumes.Close()
	return r.client.Close()
}

// Capabilities implements sandbox.Runtime.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Users: r, Storage: r, Images: r, Doctor: r}
}

// Choose implements sandbox.Doctor. The daemon chooses.
func (r *Runtime) Choose(context.Context) error { return nil }

// TryAll implements sandbox.Doctor.
func (r *Runtime) TryAll(context.Context) []sandbox.Trial { return nil }

// Warning implements sandbox.Doctor.
func (r *Runtime) Warning() string {
	r.setupMu.Lock()
	defer r.setupMu.Unlock()
	if r.warning == nil {
		ctx, cancel := context.WithTimeout(r.ctx, checkTimeout)
		defer cancel()
		text, err := r.findWarnings(ctx)
		if err != nil { // Check returns it
			return ""
		}
		r.warning = &text
	}
	return *r.warning
}

// Arguments of gVisor's program runsc.
const (
	rawSockets  = "--net-raw"       // the agent redirects connections to the broker by a raw socket
	daemonFiles = "--overlay2=none" // what sandboxes write is where the daemon looks for it, and not in memory
)

// findWarnings asks the daemon what it does not guarantee.
func (r *Runtime) findWarnings(ctx context.Context) (string, error) {
	d, err := r.ask(ctx)
	if err != nil {
		return "", err
	}
	var all []string
	if d.endsSandboxes {
		all = append(all, "sandboxes end when the Docker daemon does: set \"live-restore\": true in its daemon.json")
	}
	if !d.hasLimits {
		all = append(all, "the kernel bounds not all of memory, processors and processes of a sandbox: give the "+
			"daemon cgroups with these controllers")
	}
	if d.lacks(rawSockets) {
		all = append(all, "programs reach the network only by the variables for proxies: add "+rawSockets+
			" to the runtimeArgs of runsc in the daemon's daemon.json")
	}
	if r.WritableRoot {
		all = append(all, "what sandboxes write outside /workspace is not limited (docker.writable_root)")
	}
	return strings.Join(all, "; "), nil
}

// explain marks the error of a daemon that does not answer as the runtime's.
func (r *Runtime) explain(err error) error {
	if client.IsErrConnectionFailed(err) && !errors.Is(err, sandbox.ErrUnavailable) {
		return r.unanswered(err)
	}
	return err
}

// unanswered returns the error of a runtime whose daemon has not answered.
func (r *Runtime) unanswered(err error) error {
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, r.client.Unanswered(err))
}

// isMissing reports whether the daemon says that there is no such container or image.
func isMissing(err error) bool { return errdefs.IsNotFound(err) }
