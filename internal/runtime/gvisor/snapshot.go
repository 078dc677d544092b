package gvisor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// snapshot is a checkpoint of a sandbox that had booted and done nothing yet.
// What it had of the host's files it has by name: a copy maps them again, so
// they have to be the same.
type snapshot struct {
	dir   string
	Kind  string     `json:"kind"`
	Files []sameFile `json:"files"`
}

// sameFile is a file of the host, as it was.
type sameFile struct {
	Path                string `json:"path"`
	Device, Inode, Size uint64
	Modified, Changed   int64 // ns since 1970
}

func look(path string) (sameFile, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return sameFile{}, fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return sameFile{}, fmt.Errorf("%s: %w", path, errNoFile)
	}
	return sameFile{Path: path, Device: st.Dev, Inode: st.Ino, Size: uint64(st.Size), Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}, nil
}

var errNoFile = errors.New("it is not a regular file")

func (f sameFile) changed() error {
	now, err := look(f.Path)
	if err == nil && now != f {
		err = fmt.Errorf("%s has changed", f.Path)
	}
	return err
}

const snapshotFile = "snapshot.json"

func (r *Runtime) snapshots() string { return filepath.Join(r.StateDir, "snapshots") }

// kind names all that a snapshot depends on, beside the files that it holds.
func (r *Runtime) kind(spec sandbox.Spec) (string, error) {
	root, err := r.skeleton(spec.Template)
	if err != nil {
		return "", err
	}
	alike := sandbox.Spec{ID: "any", Template: spec.Template, Limits: spec.Limits, Secret: make([]byte, wire.SecretLen), Mounts: slices.Clone(spec.Mounts)}
	for i := range alike.Mounts {
		alike.Mounts[i].Source = ""
	}
	b := newBox(r, alike)
	plan, err := r.oci(b, root)
	if err != nil {
		return "", err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
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
	text, err := json.Marshal([]any{plan, programs, r.command(context.Background(), b).Args, unix.ByteSliceToString(kernel.Release[:])})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// shot returns the snapshot for spec, if there is one that is still good.
func (r *Runtime) shot(spec sandbox.Spec) *snapshot {
	if !r.CanSnapshot() {
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
	if err != nil || json.Unmarshal(text, s) != nil || s.Kind != kind {
		s = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shots[kind] = s
	return s
}

func (r *Runtime) drop(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shots[kind] = nil
	if err := os.RemoveAll(filepath.Join(r.snapshots(), kind)); err != nil {
		r.Log.Warn("could not remove a snapshot", "error", err)
	}
}

// CanSnapshot implements sandbox.Snapshotter. gVisor restores nothing for an
// unprivileged user, and no sandbox that has the machine's own network.
func (r *Runtime) CanSnapshot() bool { return r.Snapshots && !r.Open && !r.Rootless }

// Snapshotted implements sandbox.Snapshotter.
func (r *Runtime) Snapshotted(spec sandbox.Spec) bool { return r.shot(spec) != nil }

// Forget implements sandbox.Snapshotter.
func (r *Runtime) Forget(spec sandbox.Spec) {
	if kind, err := r.kind(spec); err == nil {
		r.drop(kind)
	}
}

// Snapshot implements sandbox.Snapshotter.
func (r *Runtime) Snapshot(ctx context.Context, sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok || !r.CanSnapshot() {
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
	r.prune()
	making, err := os.MkdirTemp(r.snapshots(), ".making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(making)
	s := snapshot{Kind: kind}
	if s.Files, err = b.hostFiles(); err != nil {
		return err
	}
	if err := r.runsc(ctx, b, "checkpoint", "-image-path", making, "-exclude-committed-zero-pages", b.spec.ID); err != nil {
		return err
	}
	for _, f := range s.Files { // nothing was replaced meanwhile
		if err := f.changed(); err != nil {
			return err
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(making, snapshotFile), text, 0o600); err != nil {
		return err
	}
	r.drop(kind)
	s.dir = filepath.Join(r.snapshots(), kind)
	if err := os.Rename(making, s.dir); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shots[kind] = &s
	return nil
}

// keep is how many snapshots are kept: of other settings, and older programs.
const keep = 8

// prune removes the oldest snapshots, and those that were not finished.
func (r *Runtime) prune() {
	entries, err := os.ReadDir(r.snapshots())
	if err != nil {
		return
	}
	age := map[string]int64{}
	for _, e := range entries {
		if i, err := e.Info(); err == nil && !strings.HasPrefix(e.Name(), ".") {
			age[e.Name()] = i.ModTime().UnixNano()
		}
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return cmp.Compare(age[b.Name()], age[a.Name()]) })
	for i, e := range entries {
		if i >= keep-1 || age[e.Name()] == 0 {
			r.drop(e.Name())
		}
	}
}

// goferRoot is where gVisor's file server has the sandbox's root.
const goferRoot = "/root"

// hostFiles returns the files of the host that the sandbox holds open, which are
// those too that its programs have mapped.
func (b *box) hostFiles() ([]sameFile, error) {
	b.mu.Lock()
	pid := b.pid
	b.mu.Unlock()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	files := map[string]sameFile{}
	for _, e := range fds {
		fd := fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())
		inside, err := os.Readlink(fd)
		if err != nil {
			return nil, err
		}
		inside, ok := strings.CutPrefix(inside, goferRoot+"/")
		if !ok {
			continue
		}
		has, err := look(fd)
		if errors.Is(err, errNoFile) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := look(b.outside("/" + inside))
		if err != nil {
			return nil, err
		}
		if has.Path = f.Path; has != f {
			return nil, fmt.Errorf("%s is not what the sandbox has of it", f.Path)
		}
		files[f.Path] = f
	}
	if len(files) == 0 {
		return nil, errors.New("the sandbox seems to have none of the host's files")
	}
	return slices.Collect(maps.Values(files)), nil
}

// outside is the host's path of a file that the sandbox sees.
func (b *box) outside(path string) string {
	source, target := b.runtime.root(b.spec.Template.Name), ""
	for _, m := range b.runtime.mounts(b) {
		if m.Type == "bind" && len(m.Destination) > len(target) && (path == m.Destination || strings.HasPrefix(path, m.Destination+"/")) {
			source, target = m.Source, m.Destination
		}
	}
	return filepath.Join(source, strings.TrimPrefix(path, target))
}

func (r *Runtime) root(template string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roots[template]
}
