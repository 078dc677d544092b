package gvisor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// The platforms of gVisor: how its kernel gets the system calls of the programs. auto is kvm where that is faster.
const (
	auto    = "auto"
	systrap = "systrap"
	kvm     = "kvm"
)

// kvmDevice is the device that kvm needs.
const kvmDevice = "/dev/kvm"

// A trial may take maxTrial. Where a trial of systrap has taken less than a tenth of that, TryAll gives kvm less: with
// some virtual machines' /dev/kvm a sandbox never answers.
const (
	maxTrial = 10 * time.Second
	minTrial = 3 * time.Second
)

// trialMemory bounds the memory of a trial's sandbox.
const trialMemory = 256 << 20

func (r *Runtime) setPlatform(name string) { r.platform.Store(&name) }

// Choose implements sandbox.Doctor: it decides on the platform of new sandboxes, before the first one is created. kvm
// is used only where a sandbox has booted with it and found all well.
func (r *Runtime) Choose(ctx context.Context) error {
	switch r.Platform {
	case auto:
		name, reason := r.fastest(ctx)
		r.setPlatform(name)
		r.Log.Info("gVisor's platform was chosen (platform: auto)", "platform", name, "reason", reason)
	case kvm:
		if err := r.try(ctx, kvm, maxTrial).Err; err != nil {
			return fault.Wrap(fault.Configuration, err, "platform: kvm: no sandbox works with it here: %v; set "+
				"platform to auto or systrap, or run `sandlot doctor`", err)
		}
		r.setPlatform(kvm)
	}
	return ctx.Err()
}

// fastest returns kvm, if it works and its system calls cost less, or else systrap, and why.
func (r *Runtime) fastest(ctx context.Context) (name, reason string) {
	if err := openDevice(kvmDevice); err != nil {
		return systrap, "kvm does not work here: " + err.Error()
	}
	tried := r.TryAll(ctx)
	without, with := tried[0], tried[1]
	switch {
	case with.Err != nil:
		return systrap, "kvm does not work here: " + with.Err.Error()
	case without.Err != nil: // the server's boots will tell more
		return systrap, "its own trial failed: " + without.Err.Error()
	}
	reason = fmt.Sprintf("a system call costs %v with kvm, and %v with systrap", with.Call, without.Call)
	if with.Call < without.Call {
		return kvm, reason
	}
	return systrap, reason
}

// TryAll implements sandbox.Doctor: it tries systrap and then kvm.
func (r *Runtime) TryAll(ctx context.Context) []sandbox.Trial {
	first := r.try(ctx, systrap, maxTrial)
	if first.Err != nil {
		return []sandbox.Trial{first,
			{Platform: kvm, Err: errors.New("it was not tried, as systrap does not work either")}}
	}
	return []sandbox.Trial{first, r.try(ctx, kvm, min(max(minTrial, 10*first.Start), maxTrial))}
}

// try boots a sandbox with a platform, lets it check its kernel, and removes it.
func (r *Runtime) try(ctx context.Context, platform string, limit time.Duration) sandbox.Trial {
	var t sandbox.Trial
	var err error
	if platform == kvm {
		err = openDevice(kvmDevice)
	}
	if err == nil {
		t, err = r.bootTrial(ctx, platform, limit)
	}
	t.Platform, t.Err = platform, err
	return t
}

func (r *Runtime) bootTrial(ctx context.Context, platform string, limit time.Duration) (t sandbox.Trial, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b := newBox(r, sandbox.Spec{ID: "trial-" + secret.ID(), Template: &image.Template{Name: "trial"},
		Limits: sandbox.Limits{MemoryBytes: trialMemory, Processes: 64}})
	b.platform = platform
	if err := b.findAgent(); err != nil {
		return sandbox.Trial{}, err
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return sandbox.Trial{}, err
	}
	defer func() { // of a trial that was cancelled, too
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxTrial)
		defer cancel()
		err = errors.Join(err, b.Stop(ctx))
	}()
	if err := r.writeTrial(b); err != nil {
		return sandbox.Trial{}, err
	}
	return r.runTrial(ctx, b)
}

// openDevice returns an error if this process cannot use a device, which says what to do.
func openDevice(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is no %s: this machine offers no virtual machines; on one that could, load the "+
			"kernel's module kvm_intel or kvm_amd, or turn on nested virtualization", path)
	}
	if err == nil && st.Mode()&os.ModeCharDevice == 0 {
		return fmt.Errorf("%s is not a device", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("the server may not open %s: add its user to the group of that file", path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// writeTrial writes the bundle of a trial, whose root file system is empty but for the agent.
func (r *Runtime) writeTrial(b *box) error {
	root := filepath.Join(b.dir, "root")
	for _, dir := range []string{b.dir, root, filepath.Join(b.dir, "disk")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	b.spec.Secret = make([]byte, wire.SecretLen) // the sandbox does not get it
	b.root.Path = root
	spec, err := r.ociSpec(b)
	if err != nil {
		return err
	}
	spec.Process.Args = []string{wire.AgentPath, wire.TrialCommand}
	spec.Process.Env = nil
	none := agent.Capabilities(b.spec.Template, false)
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: none, Permitted: none, Effective: none}
	spec.Mounts = append(spec.Mounts[:0:0], specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"},
		specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "size=64k"}},
		bind(b.agent, wire.AgentPath, true))
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, bundleFile), text, 0o600)
}

// runTrial boots the sandbox of a trial, and reads what it prints.
func (r *Runtime) runTrial(ctx context.Context, b *box) (t sandbox.Trial, err error) {
	cmd := r.command(ctx, b, "run", "-bundle", b.dir, b.spec.ID)
	cmd.WaitDelay = time.Second // the sandbox outlives runsc, and has its output
	errorFile, err := os.Create(filepath.Join(b.dir, "errors"))
	if err != nil {
		return t, err
	}
	defer errorFile.Close()
	cmd.Stderr = errorFile
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return t, err
	}
	lines := bufio.NewReader(io.LimitReader(out, 64<<10))
	first, err := lines.ReadString('\n')
	t.Start = time.Since(began)
	rest, readErr := io.ReadAll(lines)
	if err = errors.Join(cmd.Wait(), ctx.Err()); err != nil || first != wire.TrialStarted+"\n" || readErr != nil {
		return t, trialError(err, first+string(rest), filepath.Join(b.dir, "errors"))
	}
	var found wire.Trial
	err = json.Unmarshal(rest, &found)
	if t.Call, t.Process = found.Call, found.Process; err != nil || t.Call <= 0 || t.Process <= 0 {
		return t, trialError(err, string(rest), filepath.Join(b.dir, "errors"))
	}
	return t, nil
}

// trialError returns why a trial failed: as the sandbox says, or else the first lines of what runsc has printed.
func trialError(err error, output, errorFile string) error {
	for line := range strings.Lines(output) {
		if why, ok := strings.CutPrefix(line, "error: "); ok {
			return fmt.Errorf("its sandbox found an error: %s", strings.TrimSpace(why))
		}
	}
	text, _ := os.ReadFile(errorFile)
	text = bytes.TrimSpace(text[:min(len(text), 500)])
	if i := bytes.IndexByte(text, '\n'); i > 0 {
		text = text[:i]
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("its sandbox did not answer in time: %s", cmp.Or(string(text), "it printed nothing"))
	}
	return fmt.Errorf("its sandbox did not start (%v): %s", err, text)
}
