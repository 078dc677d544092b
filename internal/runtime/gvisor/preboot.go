package gvisor

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// snapshot is a checkpoint of a sandbox that had booted and done nothing yet.
// What it had of the host's files it has by name: a copy maps them again, so
// they have to be the same, and so do the links and folders by which they were
// found.
type snapshot struct {
	dir    string
	Kind   string            `json:"kind"`
	Images map[string]string `json:"images"` // SHA-256 of what gVisor wrote, by name
	Files  []sameFile        `json:"files"`
}

const snapshotFile = "snapshot.json"

func (r *Runtime) snapshots() string { return filepath.Join(r.StateDir, "snapshots") }

// kind names all that a snapshot depends on, beside the files that it holds.
func (r *Runtime) kind(spec sandbox.Spec) (string, error) {
	root, err := r.skeleton(spec.Template)
	if err != nil {
		return "", err
	}
	alike := sandbox.Spec{ID: "any", Template: spec.Template, Limits: spec.Limits, Orphan: spec.Orphan,
		Secret: make([]byte, wire.SecretLen), Mounts: slices.Clone(spec.Mounts)}
	for i := range alike.Mounts {
		alike.Mounts[i].Source = ""
	}
	b := newBox(r, alike)
	plan, err := r.oci(b, root)
	if err != nil {
		return "", err
	}
	programs := []sameFile{}
	for _, p := range []string{r.Runsc, r.Agent} {
		f, err := look(p)
		if err != nil {
			return "", err
		}
		programs = append(programs, f)
	}
	text, err := json.Marshal([]any{plan, programs, r.command(context.Background(), b).Args, machine()})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// machine is what a snapshot takes for granted of the kernel and the processors.
var machine = sync.OnceValue(func() []string {
	m := []string{runtime.GOARCH, fmt.Sprint(runtime.NumCPU())}
	var kernel unix.Utsname
	if unix.Uname(&kernel) == nil {
		m = append(m, unix.ByteSliceToString(kernel.Release[:]))
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && lines.Text() != ""; { // of the first
		for _, name := range []string{"model name", "flags", "Features", "CPU part"} {
			if strings.HasPrefix(lines.Text(), name) {
				m = append(m, lines.Text())
			}
		}
	}
	return m
})

// shot returns the snapshot for spec, if there is one that is still good.
func (r *Runtime) shot(spec sandbox.Spec) *snapshot {
	if r.CanSnapshot() != nil {
		return nil
	}
	kind, err := r.kind(spec)
	if err != nil {
		return nil // and Create says so
	}
	r.mu.Lock()
	s, known := r.shots[kind]
	r.mu.Unlock()
	if !known {
		s = r.load(kind)
	}
	if s == nil {
		return nil
	}
	for _, f := range s.Files {
		if err := f.changed(); err != nil {
			r.Log.Info("a snapshot is no longer good", "template", spec.Template.Name, "reason", err)
			r.drop(kind)
			return nil
		}
	}
	return s
}

// load reads the snapshot of that kind, which an earlier server may have made.
func (r *Runtime) load(kind string) *snapshot {
	s := &snapshot{dir: filepath.Join(r.snapshots(), kind)}
	text, err := os.ReadFile(filepath.Join(s.dir, snapshotFile))
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err == nil {
		err = s.whole()
	}
	if s.Kind != kind || err != nil {
		s = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, known := r.shots[kind]; known {
		return now
	}
	r.shots[kind] = s
	return s
}

// whole says whether what gVisor wrote is on the disk as it was.
func (s *snapshot) whole() error {
	images, err := digests(s.dir)
	if err != nil {
		return err
	}
	delete(images, snapshotFile)
	for name, sum := range images {
		if s.Images[name] != sum {
			return fmt.Errorf("%s has changed", name)
		}
	}
	if len(images) != len(s.Images) || len(images) == 0 {
		return errors.New("a part is missing")
	}
	return nil
}

// digests returns the SHA-256 of each file of a folder.
func digests(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name())) // some megabytes
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		sums[e.Name()] = hex.EncodeToString(sum[:])
	}
	return sums, nil
}

func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// drop forgets the snapshot of that kind, and removes it.
func (r *Runtime) drop(kind string) {
	r.mu.Lock()
	r.shots[kind] = nil
	r.mu.Unlock()
	r.discard(kind)
}

func (r *Runtime) discard(name string) {
	if err := os.RemoveAll(filepath.Join(r.snapshots(), name)); err != nil {
		r.Log.Warn("could not remove a snapshot", "error", err)
	}
}

// Why there are no snapshots.
var (
	errSnapshotsOff      = errors.New("snapshots are turned off (snapshots: false)")
	errSnapshotsOpen     = errors.New("gVisor restores none with the machine's own network (network.mode: open)")
	errSnapshotsRootless = errors.New("gVisor restores none for an unprivileged user")
)

// CanSnapshot implements sandbox.Snapshotter. gVisor restores nothing for an
// unprivileged user, and no sandbox that has the machine's own network.
func (r *Runtime) CanSnapshot() error {
	switch {
	case !r.Snapshots:
		return errSnapshotsOff
	case r.Open:
		return errSnapshotsOpen
	case r.Rootless:
		return errSnapshotsRootless
	}
	return nil
}

// Snapshotted implements sandbox.Snapshotter.
func (r *Runtime) Snapshotted(spec sandbox.Spec) bool { return r.shot(spec) != nil }

// Copied implements sandbox.Snapshotter.
func (r *Runtime) Copied(sb sandbox.Sandbox) bool {
	b, ok := sb.(*box)
	return ok && b.kind != ""
}

// Forget implements sandbox.Snapshotter.
func (r *Runtime) Forget(spec sandbox.Spec) {
	if kind, err := r.kind(spec); err == nil {
		r.drop(kind)
	}
}

// Snapshot implements sandbox.Snapshotter.
func (r *Runtime) Snapshot(ctx context.Context, sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok || r.CanSnapshot() != nil {
		return errors.New("gvisor: there are no snapshots of this sandbox")
	}
	kind, err := r.kind(b.Spec())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.snapshots(), 0o700); err != nil {
		return err
	}
	r.shooting.Lock()
	defer r.shooting.Unlock()
	defer r.prune()
	making, err := os.MkdirTemp(r.snapshots(), ".making-")
	if err != nil {
		return err
	}
	s := snapshot{Kind: kind, dir: filepath.Join(r.snapshots(), kind)}
	if s.Files, err = b.hostFiles(); err != nil {
		return err
	}
	if err := r.runsc(ctx, b, "checkpoint", "-image-path", making, "-exclude-committed-zero-pages",
		b.spec.ID); err != nil {
		return err
	}
	for _, f := range s.Files { // nothing was replaced meanwhile
		if err := f.changed(); err != nil {
			return err
		}
	}
	if s.Images, err = digests(making); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(making, snapshotFile), text, 0o600); err != nil {
		return err
	}
	for _, name := range append(slices.Collect(maps.Keys(s.Images)), snapshotFile, "") { // and the folder
		if err := flush(filepath.Join(making, name)); err != nil {
			return err
		}
	}
	r.drop(kind)
	if err := errors.Join(os.Rename(making, s.dir), flush(r.snapshots())); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shots[kind] = &s
	return nil
}

// keep is how many snapshots are kept that this server has no use for: of other
// settings, and older programs.
const keep = 4

// prune removes what was not finished, and the oldest of those without use.
func (r *Runtime) prune() {
	entries, err := os.ReadDir(r.snapshots())
	if err != nil {
		return
	}
	age := map[string]int64{}
	idle := []string{}
	for _, e := range entries {
		r.mu.Lock()
		used := r.shots[e.Name()] != nil
		r.mu.Unlock()
		i, err := e.Info()
		switch {
		case err != nil || used:
		case strings.HasPrefix(e.Name(), "."):
			r.discard(e.Name())
		default:
			age[e.Name()] = i.ModTime().UnixNano()
			idle = append(idle, e.Name())
		}
	}
	slices.SortFunc(idle, func(a, b string) int { return int(min(max(age[b]-age[a], -1), 1)) })
	for _, name := range idle[min(keep, len(idle)):] {
		r.discard(name)
	}
}
