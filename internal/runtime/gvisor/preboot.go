package gvisor

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
)

// prebootImage is gVisor's checkpoint of a sandbox that had booted and done nothing
// yet. It refers to the host's files by name: gVisor maps them again in each restored
// sandbox, and does not check that they are the same files. So neither they, nor the links
// and folders on the way to them, may change.
type prebootImage struct {
	dir    string
	Kind   string            `json:"kind"`
	Images map[string]string `json:"images"` // SHA-256 of gVisor's files, by name
	Files  []hostfile.State  `json:"files"`
}

// imageInfoFile is the file that holds a prebootImage as JSON, beside gVisor's files.
const imageInfoFile = "snapshot.json"

// imagesDir is the folder of all images. It is called after the setting `snapshots`.
func (r *Runtime) imagesDir() string { return filepath.Join(r.StateDir, "snapshots") }

// imageKind returns the kind of the image for spec: a hash of everything that an image depends
// on, except the files that it lists. Sandboxes of one kind differ only in their ids,
// secrets and the sources of their mounts.
func (r *Runtime) imageKind(spec sandbox.Spec) (string, error) {
	root, err := r.roots.For(spec.Template)
	if err != nil {
		return "", err
	}
	normalized := sandbox.Spec{ID: "any", Template: spec.Template, Limits: spec.Limits,
		OrphanTimeout: spec.OrphanTimeout, Secret: make([]byte, wire.SecretLen), Mounts: slices.Clone(spec.Mounts)}
	for i := range normalized.Mounts {
		normalized.Mounts[i].Source = ""
	}
	b := newBox(r, normalized)
	b.root = root
	bundle, err := r.ociSpec(b)
	if err != nil {
		return "", err
	}
	runsc, err := hostfile.Stat(r.Runsc, true)
	if err != nil {
		return "", err
	}
	agent, err := hostfile.Stat(b.agent, true)
	if err != nil {
		return "", err
	}
	host, err := hostFeatures()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{bundle, []hostfile.State{runsc, agent},
		r.command(context.Background(), b).Args, host})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// features are what hostFeatures has read.
var features struct {
	sync.Mutex
	list []string // nil: nothing yet
}

// hostFeatures lists the properties of the kernel and the processors that an image depends on. It fails if the machine
// cannot read them now, which does not mean that they are others.
func hostFeatures() ([]string, error) {
	features.Lock()
	defer features.Unlock()
	if features.list != nil {
		return features.list, nil
	}
	m := []string{runtime.GOARCH, fmt.Sprint(runtime.NumCPU())}
	var kernel unix.Utsname
	if unix.Uname(&kernel) == nil {
		m = append(m, unix.ByteSliceToString(kernel.Release[:]))
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() && lines.Text() != "" { // of the first processor
			for _, name := range []string{"model name", "flags", "Features", "CPU part"} {
				if strings.HasPrefix(lines.Text(), name) {
					m = append(m, lines.Text())
				}
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	features.list = m
	return m, nil
}

// imageFor returns the image for spec, if there is one and nothing that it depends on
// has changed.
func (r *Runtime) imageFor(spec sandbox.Spec) *prebootImage {
	if r.CanPreboot() != nil {
		return nil
	}
	kind, err := r.imageKind(spec)
	if err != nil {
		return nil // Create returns the same error
	}
	r.mu.Lock()
	i, known := r.images[kind]
	r.mu.Unlock()
	if !known {
		i = r.loadImage(kind)
	}
	if i == nil {
		return nil
	}
	for _, f := range i.Files {
		if err := f.CheckUnchanged(); err != nil {
			r.Log.Info("a preboot image is outdated", "template", spec.Template.Name, "reason", err)
			r.dropKind(kind)
			return nil
		}
	}
	return i
}

// loadImage reads the image of that kind from the disk: an earlier server may have made
// one. It returns nil when there is none.
func (r *Runtime) loadImage(kind string) *prebootImage {
	i := &prebootImage{dir: filepath.Join(r.imagesDir(), kind)}
	text, err := os.ReadFile(filepath.Join(i.dir, imageInfoFile))
	if err == nil {
		err = json.Unmarshal(text, i)
	}
	if err == nil {
		err = i.verify()
	}
	if i.Kind != kind || err != nil {
		i = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, known := r.images[kind]; known {
		return now
	}
	r.images[kind] = i
	return i
}

// verify compares gVisor's files with their hashes.
func (i *prebootImage) verify() error {
	sums, err := digests(i.dir)
	if err != nil {
		return err
	}
	delete(sums, imageInfoFile)
	if len(sums) == 0 || !maps.Equal(sums, i.Images) {
		return errors.New("its files have changed")
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

// dropKind removes the image of that kind.
func (r *Runtime) dropKind(kind string) {
	r.mu.Lock()
	r.images[kind] = nil
	r.mu.Unlock()
	r.removeImage(kind)
}

func (r *Runtime) removeImage(name string) {
	if err := os.RemoveAll(filepath.Join(r.imagesDir(), name)); err != nil {
		r.Log.Warn("could not remove a preboot image", "error", err)
	}
}

// CanPreboot implements sandbox.Preboot.
func (r *Runtime) CanPreboot() error {
	switch {
	case !r.Preboot:
		return errors.New("snapshots are turned off (snapshots: false)")
	case r.HostNetwork:
		return errors.New("gVisor restores none with the machine's own network (network.mode: open)")
	}
	return nil
}

// HasImage implements sandbox.Preboot.
func (r *Runtime) HasImage(spec sandbox.Spec) bool { return r.imageFor(spec) != nil }

// Prebooted implements sandbox.Preboot.
func (r *Runtime) Prebooted(sb sandbox.Sandbox) bool {
	b, ok := sb.(*box)
	return ok && b.imageKind != ""
}

// DropImage implements sandbox.Preboot.
func (r *Runtime) DropImage(spec sandbox.Spec) {
	if kind, err := r.imageKind(spec); err == nil {
		r.dropKind(kind)
	}
}

// MakeImage implements sandbox.Preboot.
func (r *Runtime) MakeImage(ctx context.Context, sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok || r.CanPreboot() != nil {
		return errors.New("gvisor: there are no preboot images of this sandbox")
	}
	kind, err := r.imageKind(b.Spec())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.imagesDir(), 0o700); err != nil {
		return err
	}
	r.prebootMu.Lock()
	defer r.prebootMu.Unlock()
	defer r.pruneImages()
	tmpDir, err := os.MkdirTemp(r.imagesDir(), ".making-")
	if err != nil {
		return err
	}
	i := prebootImage{Kind: kind, dir: filepath.Join(r.imagesDir(), kind)}
	files, err := b.hostFiles(b.root.Path, withGrafts(r.mounts(b), r.grafts(b))).Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Replaced {
			return fmt.Errorf("%s is not the file that the sandbox has open", f.Path)
		}
		i.Files = append(i.Files, f.State)
	}
	if err := r.runRunsc(ctx, b, "checkpoint", "-image-path", tmpDir, "-exclude-committed-zero-pages",
		b.spec.ID); err != nil {
		return err
	}
	for _, f := range i.Files { // they must not have changed while the checkpoint was made
		if err := f.CheckUnchanged(); err != nil {
			return err
		}
	}
	if i.Images, err = digests(tmpDir); err != nil {
		return err
	}
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmpDir, imageInfoFile), text, 0o600); err != nil {
		return err
	}
	for _, name := range append(slices.Collect(maps.Keys(i.Images)), imageInfoFile, "") { // and the folder
		if err := atomicfile.Sync(filepath.Join(tmpDir, name)); err != nil {
			return err
		}
	}
	r.dropKind(kind)
	if err := errors.Join(os.Rename(tmpDir, i.dir), atomicfile.Sync(r.imagesDir())); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[kind] = &i
	return nil
}

// maxUnused is how many images stay that this server has not used: such images were made
// with other settings, or by older versions.
const maxUnused = 4

// pruneImages removes unfinished images, and the oldest unused ones.
func (r *Runtime) pruneImages() {
	entries, err := os.ReadDir(r.imagesDir())
	if err != nil {
		return
	}
	var unused []fs.FileInfo
	for _, e := range entries {
		r.mu.Lock()
		used := r.images[e.Name()] != nil
		r.mu.Unlock()
		i, err := e.Info()
		switch {
		case err != nil || used:
		case strings.HasPrefix(e.Name(), "."):
			r.removeImage(e.Name())
		default:
			unused = append(unused, i)
		}
	}
	slices.SortFunc(unused, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, i := range unused[min(maxUnused, len(unused)):] {
		r.removeImage(i.Name())
	}
}
