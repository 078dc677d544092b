//go:build linux && !mac

package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// record is what the next server knows of a sandbox.
type record struct {
	specfile.Record
	Machine string `json:"machine"` // its type
	Accel   string `json:"accel"`
}

const (
	// defaultMemory and defaultDisk are for sandboxes without these limits, in bytes.
	defaultMemory = 1 << 30
	defaultDisk   = 16 << 30
	// kernelMemory is what a machine has on top of its sandbox's memory: for its kernel, the first process and what carries
	// the connections. agentMemory and agentThreads are for the agent.
	kernelMemory = 96 << 20
	agentMemory  = 32 << 20
	agentThreads = 64
	// maxCPUs is how many processors a machine has at most.
	maxCPUs = 64
	// stopTimeout is how long Create may take to remove what a failed start has left.
	stopTimeout = 30 * time.Second
)

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := r.checkSpec(spec); err != nil {
		return nil, err
	}
	a, err := r.findAccel(ctx)
	if err != nil {
		return nil, err
	}
	s, err := r.findSystem(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.sandboxDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", err)
	}
	b := newBox(r, spec)
	b.record = record{Record: specfile.Of(spec, ""), Machine: s.machine, Accel: a.name}
	if err = r.adopt(b); err == nil {
		err = r.start(ctx, b, s)
	}
	if err == nil {
		return b, nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if stopErr := b.Stop(stopCtx); stopErr != nil { // List has it, so that it is not forgotten
		err = errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	return nil, err
}

// adopt notes a box, unless another one has one of its volumes.
func (r *Runtime) adopt(b *box) error {
	for _, m := range b.spec.Mounts {
		if id := r.userOf(m.Volume); id != "" && m.Volume != "" {
			return fmt.Errorf("qemu: the volume %s is a disk of the sandbox %s: two machines cannot write to one disk",
				m.Volume, id)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes[b.spec.ID] = b
	return nil
}

// checkSpec refuses what a machine cannot have.
func (r *Runtime) checkSpec(spec sandbox.Spec) error {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return errors.New("qemu: the spec is incomplete")
	}
	if spec.Template.RootfsImage == "" {
		return fmt.Errorf("qemu: the template %s is made of folders of the server's machine, which virtual machines do not "+
			"see; give it an image (in sandlot.yaml: templates, image)", spec.Template.Name)
	}
	for i, m := range spec.Mounts {
		if m.Volume == "" {
			return fmt.Errorf("qemu: the folder %s of the server's machine is to be mounted at %s, and virtual machines do "+
				"not see it; remove it from the shared folders", m.Source, m.Target)
		}
		if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
			return fmt.Errorf("qemu: %q is not a place for the volume %s", m.Target, m.Volume)
		}
		for _, other := range spec.Mounts[:i] {
			if other.Volume == m.Volume {
				return fmt.Errorf("qemu: the volume %s is to be mounted twice", m.Volume)
			}
		}
	}
	if spec.Template.User.UID == wire.ConnectUser {
		return fmt.Errorf("qemu: the template %s has the user %d, who carries the agent's connections; give its image "+
			"another id", spec.Template.Name, wire.ConnectUser)
	}
	return nil
}

// start starts the machine of a box, whose folder exists.
func (r *Runtime) start(ctx context.Context, b *box, s *system) error {
	if err := specfile.Write(b.dir, b.record); err != nil {
		return err
	}
	l := b.spec.Limits
	m := &machine{dir: b.dir, kernel: s.kernel, initramfs: s.initramfs, kind: s.machine, accel: b.record.Accel,
		memory: machineMemory(l) >> 20, cpus: machineCPUs(l)}
	defer func() {
		for _, d := range m.disks {
			d.file.Close()
		}
	}()
	if err := b.makeDisks(ctx, m); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	cmd, err := m.start(r)
	if err != nil {
		return err
	}
	b.follow(cmd)
	if err := b.awaitMonitor(ctx); err != nil {
		return fmt.Errorf("%w%s", err, m.complaint())
	}
	b.openLink()
	return nil
}

// awaitMonitor waits until QEMU has made the machine, or has ended.
func (b *box) awaitMonitor(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	ready := make(chan error, 1)
	go func() {
		m, err := openMonitor(ctx, b.dir)
		if err == nil {
			m.close()
		}
		ready <- err
	}()
	select {
	case err := <-ready:
		return err
	case <-b.exited:
		cancel()
		<-ready
		return errors.New("QEMU has ended")
	}
}

// monitorTimeout is how long QEMU may take to make a machine.
const monitorTimeout = time.Minute

// machineMemory returns the memory of the machine of a sandbox, in bytes.
func machineMemory(l sandbox.Limits) int64 {
	if l.MemoryBytes <= 0 {
		return defaultMemory + kernelMemory + agentMemory
	}
	return l.MemoryBytes + kernelMemory + agentMemory
}

// machineCPUs returns how many processors the machine of a sandbox has.
func machineCPUs(l sandbox.Limits) int {
	if l.CPUs <= 0 {
		return min(runtime.NumCPU(), maxCPUs)
	}
	return min(int(math.Ceil(l.CPUs)), maxCPUs)
}

func diskBytes(l sandbox.Limits) int64 {
	if l.DiskBytes <= 0 {
		return defaultDisk
	}
	return l.DiskBytes
}

// makeDisks makes and opens the disks of a machine.
func (b *box) makeDisks(ctx context.Context, m *machine) error {
	boot, err := b.boot()
	if err != nil {
		return err
	}
	bootPath, scratch := filepath.Join(b.dir, bootFile), filepath.Join(b.dir, scratchFile)
	if err := os.WriteFile(bootPath, boot, 0o600); err != nil {
		return err
	}
	// It is not used again after a crash: it needs no journal.
	if err := makeDisk(ctx, scratch, diskBytes(b.spec.Limits), "-E", "nodiscard", "-O", "^has_journal"); err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(b.spec.Template.RootfsImage)
	if err != nil {
		return err
	}
	for _, d := range []struct {
		serial, path string
		readOnly     bool
	}{{wire.BootDisk, bootPath, true}, {wire.RootDisk, root, true}, {wire.ScratchDisk, scratch, false}} {
		mode := os.O_RDWR
		if d.readOnly {
			mode = os.O_RDONLY
		}
		f, err := os.OpenFile(d.path, mode, 0)
		if err != nil {
			return err
		}
		m.disks = append(m.disks, disk{d.serial, f, d.readOnly})
	}
	for i, v := range b.spec.Mounts {
		f, err := b.runtime.volumes.disk(ctx, v.Volume, diskBytes(b.spec.Limits), v.ReadOnly)
		if err != nil {
			return fmt.Errorf("the volume %s, which is to be mounted at %s: %w", v.Volume, v.Target, err)
		}
		m.disks = append(m.disks, disk{volumeSerial(i), f, v.ReadOnly})
	}
	return nil
}

func volumeSerial(i int) string { return fmt.Sprintf("volume%d", i) }

// sector is what the size of a disk is a multiple of, in bytes.
const sector = 512

// boot returns the content of the disk that says what the machine has to set up.
func (b *box) boot() ([]byte, error) {
	env, err := agent.Environment(b.spec, true)
	if err != nil {
		return nil, err
	}
	capabilities := agent.Capabilities(b.spec.Template, true)
	if b.spec.Build {
		env = append(env, wire.EnvBuild+"=1")
	}
	if b.spec.Build || b.runtime.RootIsCapable(b.spec.Template) {
		env = append(env, wire.EnvCapable+"=1")
		for name := range wire.Capabilities {
			capabilities = append(capabilities, name)
		}
	}
	l := b.spec.Limits
	m := wire.Machine{Env: env, Files: ownFiles(b.spec.Template), Folders: b.spec.Template.Folders,
		FileBytes: uint64(max(l.DiskBytes, 0))}
	for _, name := range append(capabilities, "CAP_SETPCAP") {
		bit, found := capabilityBits[name]
		if !found {
			return nil, fmt.Errorf("qemu: the capability %s is not known", name)
		}
		m.Capabilities |= 1 << bit
	}
	if l.Processes > 0 {
		m.Processes = l.Processes + agentThreads
	}
	if l.MemoryBytes > 0 {
		m.Memory = l.MemoryBytes + agentMemory
	}
	for i, v := range b.spec.Mounts {
		m.Volumes = append(m.Volumes, wire.MachineVolume{Disk: volumeSerial(i), Target: v.Target, ReadOnly: v.ReadOnly})
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	content := append(binary.BigEndian.AppendUint64(nil, uint64(len(text))), text...)
	return append(content, bytes.Repeat([]byte{0}, sector-len(content)%sector)...), nil
}

// capabilityBits are the numbers of the capabilities that agents and programs may have.
var capabilityBits = map[string]uint{"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4,
	"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12,
	"CAP_NET_RAW": 13, "CAP_SYS_CHROOT": 18}

// ownFiles returns the files that a sandbox has in place of its image's.
func ownFiles(t *image.Template) map[string][]byte {
	files := map[string][]byte{"etc/gitignore": []byte(wire.GitIgnore)}
	for name, text := range image.OwnFiles() {
		files[name] = []byte(text)
	}
	for name, text := range t.Files {
		files[name] = text
	}
	return files
}

// Leftovers implements sandbox.Runtime.
func (r *Runtime) Leftovers(context.Context) ([]string, error) {
	r.removeTrials()
	entries, err := os.ReadDir(r.sandboxesDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// Recover implements sandbox.Runtime.
func (r *Runtime) Recover(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("qemu: %q is not a sandbox id", id)
	}
	r.mu.Lock()
	known, found := r.boxes[id]
	r.mu.Unlock()
	if found {
		return known, nil
	}
	b, err := r.recoverBox(id)
	if err == nil {
		return b, nil
	}
	if !errors.Is(err, sandbox.ErrGone) {
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	if stopErr := b.Stop(ctx); stopErr != nil {
		return nil, errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	return nil, err
}

// recoverBox takes over one sandbox. The box that it returns with ErrGone can only be stopped.
func (r *Runtime) recoverBox(id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id})
	locked, err := isLocked(b.dir)
	if err != nil {
		return b, err
	}
	pid := 0
	if locked {
		if pid = findProcess(b.dir); pid == 0 {
			return b, errors.New("the process of a sandbox is not to be found")
		}
	}
	var rec record
	err = specfile.Read(b.dir, &rec)
	if err == nil {
		b.record = rec
		b.spec, err = rec.Spec(id)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, specfile.ErrBroken) {
		err = fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err == nil && pid == 0 {
		err = fmt.Errorf("%w: its QEMU has ended", sandbox.ErrGone)
	}
	if err != nil {
		b.spec.ID = id
		b.setPID(pid)
		return b, err
	}
	if err := b.watch(pid); err != nil {
		return b, err
	}
	if err := r.adopt(b); err != nil {
		return b, err
	}
	b.linked = true
	b.openLink()
	return b, nil
}
