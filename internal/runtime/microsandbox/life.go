package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// Labels of machines.
const (
	labelInstance = "dev.sandlot.instance" // random, one for each state folder
	labelID       = "dev.sandlot.sandbox"
	labelTemplate = "dev.sandlot.template"
)

const (
	// port is the port of AF_VSOCK at which a machine finds its sandbox's socket. Each machine has its own.
	port = "5000"
	// environmentFile is the file in a socket folder with the agent's environment. Arguments of msb would show it to all
	// users of the server's machine.
	environmentFile = "environment"
	// kernelMemory is what a machine has on top of the sandbox's limit, for its kernel, msb's part and the agent.
	kernelMemory = 160 << 20
	// leastMemory is that of a sandbox without a limit.
	leastMemory = 1 << 30
	// stopTimeout is how long Create may take to remove what a failed start has left.
	stopTimeout = 20 * time.Second
)

// reservedPaths are the places of a machine at and below which no folder of others may be mounted.
var reservedPaths = []string{path.Dir(wire.AgentPath), wire.SocketDir, "/proc", "/sys", "/dev", "/.msb"}

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("microsandbox: the spec is incomplete")
	}
	if spec.Template.Image == "" {
		return nil, fmt.Errorf("microsandbox: the template %s has no image; give it one, or `runtime: gvisor`",
			spec.Template.Name)
	}
	if _, err := r.find(ctx); err != nil {
		return nil, err
	}
	agentPath, err := r.agent.File(machine)
	if err = errors.Join(err, checkMounts(spec.Mounts)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return nil, explainErrno(err)
	}
	if err := os.Mkdir(r.sandboxDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", explainErrno(err))
	}
	b := newBox(r, spec)
	b.agent, b.unmade = agentPath, true
	if err = r.start(ctx, b); err == nil {
		return b, nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if stopErr := b.Stop(stopCtx); stopErr != nil {
		err = errors.Join(err, sandbox.ErrRemains, stopErr)
		r.mu.Lock()
		r.boxes[spec.ID] = b // List has it, so that it is not forgotten
		r.mu.Unlock()
	}
	return nil, err
}

// checkMounts refuses a mount without its folder, one in a folder that the machine has for something else, and paths
// that msb's flags cannot have.
func checkMounts(mounts []sandbox.Mount) error {
	for i, m := range mounts {
		st, err := os.Stat(m.Source)
		if err != nil || !st.IsDir() {
			return fmt.Errorf("microsandbox: the folder %s, which is to be mounted at %s, is missing", m.Source, m.Target)
		}
		if strings.ContainsAny(m.Source+m.Target, ":,") {
			return fmt.Errorf("microsandbox: the folder %s cannot be mounted at %s: msb takes no path with a colon or a comma",
				m.Source, m.Target)
		}
		taken := slices.Clone(reservedPaths)
		for j, other := range mounts {
			if i != j {
				taken = append(taken, other.Target)
			}
		}
		if isBelow(path.Clean(m.Target), taken) {
			return fmt.Errorf("microsandbox: the folder %s cannot be mounted at %s, in a folder that the sandbox has for "+
				"something else; choose a place of its own, such as /data", m.Source, m.Target)
		}
	}
	return nil
}

// start makes and starts the machine of a sandbox whose folder exists. What finds the machine again is written first.
func (r *Runtime) start(ctx context.Context, b *box) error {
	instance, err := r.instanceID()
	if err != nil {
		return err
	}
	if err := specfile.Write(b.dir, specfile.Of(b.spec, r.agent.Kept(b.agent))); err != nil {
		return explainErrno(err)
	}
	reference, err := r.reference(ctx, b.spec.Template.Image, b.spec.Template.ImageID)
	if err != nil {
		return err
	}
	if err := b.writeFiles(); err != nil {
		return explainErrno(err)
	}
	if err := b.listen(); err != nil {
		return err
	}
	if err := b.socket.WriteSecret(b.spec.Secret, 0o600); err != nil {
		return explainErrno(err)
	}
	b.unmade = false
	if err := r.run(ctx, b.arguments(reference, instance)...); err != nil {
		return fmt.Errorf("starting a machine: %w", explain(r.withLog(ctx, b.name, err)))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.adopt(b)
	return nil
}

// withLog adds to a failure of `msb create` what the machine's own log says, which has the cause.
func (r *Runtime) withLog(ctx context.Context, name string, err error) error {
	c, ok := errors.AsType[*complaint](err)
	if !ok || !strings.Contains(c.said, "msb logs") || ctx.Err() != nil {
		return err
	}
	path, findErr := r.find(ctx)
	if findErr != nil {
		return err
	}
	out, logErr := r.command(ctx, path, "logs", "--source", "system", name)
	if logErr != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "ERROR") {
			c.said += "\n" + line
		}
	}
	return c
}

// writeFiles makes the socket folder with the agent's environment, and the template's files.
func (b *box) writeFiles() error {
	if err := errors.Join(os.Mkdir(b.socketDir(), 0o755), os.Chmod(b.socketDir(), 0o755)); err != nil {
		return err
	}
	env, err := agent.Environment(b.spec, true)
	if err != nil {
		return err
	}
	env = slices.DeleteFunc(env, func(kv string) bool { // the secret has a file that is removed once it was said
		return strings.HasPrefix(kv, wire.EnvSecret+"=") || strings.HasPrefix(kv, wire.EnvSocket+"=")
	})
	if b.runtime.RootIsCapable(b.spec.Template) {
		env = append(env, wire.EnvCapable+"=1")
	}
	text := strings.Join(env, "\x00") + "\x00"
	if err := os.WriteFile(filepath.Join(b.socketDir(), environmentFile), []byte(text), 0o644); err != nil {
		return err
	}
	for name, content := range b.spec.Template.Files {
		file := filepath.Join(b.dir, "files", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// arguments returns those of the command that makes the machine: one without a network and without a port of msb's.
func (b *box) arguments(reference, instance string) []string {
	l := b.spec.Limits
	args := []string{"create", reference, "--name", b.name, "--quiet", "--pull", "never", "--no-net",
		"--cpus", fmt.Sprint(max(int(math.Ceil(l.CPUs)), 1)), "--memory", megabytes(max(l.MemoryBytes, 0) + kernelMemory),
		"--hostname", "sandbox",
		"--label", labelInstance + "=" + instance, "--label", labelID + "=" + b.spec.ID,
		"--label", labelTemplate + "=" + b.spec.Template.Name,
		"--vsock", filepath.Join(b.socketDir(), wire.Socket) + ":" + port,
		"--mount-file", b.agent + ":" + wire.AgentPath + ":ro,nosuid,nodev",
		"--mount-dir", b.socketDir() + ":" + wire.SocketDir + ":ro,nosuid,nodev"}
	if l.MemoryBytes <= 0 {
		args[slices.Index(args, "--memory")+1] = megabytes(leastMemory)
	}
	if l.DiskBytes > 0 {
		args = append(args, "--root-disk", megabytes(l.DiskBytes))
	}
	for _, m := range b.spec.Mounts {
		args = append(args, "--mount-dir", m.Source+":"+m.Target+":"+b.mountOptions(m))
	}
	for _, name := range slices.Sorted(maps.Keys(b.spec.Template.Files)) {
		args = append(args, "--copy-file", filepath.Join(b.dir, "files", name)+":/"+name)
	}
	return append(args, "--init", wire.AgentPath, "--init-env", wire.EnvSocket+"="+wire.VsockAddress+port,
		"--init-env", wire.EnvFile+"="+path.Join(wire.SocketDir, environmentFile))
}

// mountOptions returns msb's options of a mount. A workspace belongs to the sandbox's user there, whoever has it on the
// server's machine; a shared folder shows its owners.
func (b *box) mountOptions(m sandbox.Mount) string {
	if m.ReadOnly {
		return "ro,nosuid,nodev"
	}
	options := "rw,nosuid,nodev"
	if m.Shared {
		return options
	}
	if b.spec.Limits.DiskBytes > 0 {
		options += ",quota=" + megabytes(b.spec.Limits.DiskBytes)
	}
	return options + fmt.Sprintf(",uid=%d,gid=%d", b.spec.Template.User.UID, b.spec.Template.User.GID)
}

// megabytes returns a size as msb reads it, of whole MiB.
func megabytes(n int64) string { return fmt.Sprintf("%dM", (n+1<<20-1)>>20) }

// adopt adds a box whose machine runs.
func (r *Runtime) adopt(b *box) {
	r.mu.Lock()
	r.boxes[b.spec.ID] = b
	r.mu.Unlock()
	b.openLink()
}

// Leftovers implements sandbox.Runtime. Each sandbox has a folder before it has a machine; msb also knows machines
// whose folder was lost.
func (r *Runtime) Leftovers(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.sandboxesDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // there was no use of msb
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	r.mu.Lock()
	trials := maps.Clone(r.trials)
	r.mu.Unlock()
	for _, e := range entries {
		if validID.MatchString(e.Name()) && !trials[e.Name()] {
			ids = append(ids, e.Name())
		}
	}
	m, err := r.listOwn(ctx)
	if err != nil {
		r.Log.Error("msb did not list its machines; those without a folder in the state folder stay", "error", err)
		return ids, nil
	}
	for name := range m {
		id, ok := strings.CutPrefix(name, namePrefix)
		if ok && validID.MatchString(id) && !slices.Contains(ids, id) && !trials[id] {
			ids = append(ids, id)
		}
	}
	// A sandbox that is being made, and a trial machine, have a folder before they have locks.
	if entries, err = os.ReadDir(r.sandboxesDir()); len(m) == 0 && len(entries) == 0 && err == nil {
		r.sweepLocks()
	}
	return ids, nil
}

// Recover implements sandbox.Runtime.
func (r *Runtime) Recover(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("microsandbox: %q is not a sandbox id", id)
	}
	r.mu.Lock()
	b, found := r.boxes[id]
	r.mu.Unlock()
	if found { // Stop has failed
		return b, nil
	}
	b, err := r.recoverBox(ctx, id)
	if err == nil {
		return b, nil
	}
	if !errors.Is(err, sandbox.ErrGone) { // it may live, and can be recovered later
		b.disconnect()
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	if stopErr := b.Stop(ctx); stopErr != nil {
		return nil, errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	return nil, err
}

// recoverBox takes one sandbox over. The box that it returns with an error can only be stopped or disconnected.
func (r *Runtime) recoverBox(ctx context.Context, id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id})
	var rec specfile.Record
	err := specfile.Read(b.dir, &rec)
	if err == nil {
		b.spec, err = rec.Spec(id)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, specfile.ErrBroken) {
		b.spec = sandbox.Spec{ID: id}
		return b, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err != nil { // such as no free descriptors
		return b, err
	}
	status, err := r.status(ctx, b.name)
	if err != nil {
		return b, err
	}
	if hasEnded(status) {
		return b, fmt.Errorf("%w: its machine is %q", sandbox.ErrGone, status)
	}
	if status != running {
		return b, fmt.Errorf("its machine is %q", status)
	}
	if err = b.listen(); errors.Is(err, os.ErrNotExist) {
		return b, fmt.Errorf("%w: the folder that its agent dials is lost: %w", sandbox.ErrGone, err)
	}
	if err != nil {
		return b, err
	}
	r.adopt(b)
	return b, nil
}
