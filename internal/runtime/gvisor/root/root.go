// Package root owns the root file systems of sandboxes: what the sandboxes of a template share, and none of them
// can change. It makes them in a folder of its own, once for each template, and writes nowhere else.
package root

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/oci/rootfs"
)

// AgentPath is where the sandbox sees the agent.
const AgentPath = "/.sandlot/agent"

// baseFiles are the files of every root file system that depend on the sandbox, by path.
var baseFiles = map[string]string{
	"etc/hosts":       "127.0.0.1 localhost sandbox\n::1 localhost\n",
	"etc/hostname":    "sandbox\n",
	"etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n",
	// gVisor mounts a tmpfs over /tmp if it is empty; this file prevents that.
	"tmp/.sandlot": "",
}

// hostFiles are the files that programs expect, where no image has them.
var hostFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}

// baseFolders are the folders that programs expect, and mount points.
var baseFolders = []string{"etc", "proc", "sys", "dev", "tmp", "run/sandlot", "var/tmp", "var/lib/sandlot", "root",
	"home", "opt", "mnt", "workspace", ".sandlot"}

// FS is the root file system of a template's sandboxes.
type FS struct {
	Path  string       // the folder that the bundle names as the root: it is empty where there is an image
	Binds []image.Bind // what is mounted over it, read-only
	Image string       // an EROFS file that is the root file system; empty: the folder is
	Layer string       // with Image: a tar archive of what each sandbox has in its own layer when it starts
}

// Store has the root file systems of one instance.
type Store struct {
	ctx         context.Context // ends the making of images
	dir         string
	hostNetwork bool // sandboxes have the machine's own network, and look names up where it does

	cleaned sync.Once

	mu   sync.Mutex
	made map[*image.Template]*made
}

// made is a root file system that is made once. The next use after an error tries again.
type made struct {
	mu   sync.Mutex
	done bool
	fs   FS
}

// New returns the root file systems below dir, which need not exist yet. Making one ends with ctx.
func New(ctx context.Context, dir string, hostNetwork bool) *Store {
	return &Store{ctx: ctx, dir: dir, hostNetwork: hostNetwork, made: map[*image.Template]*made{}}
}

// For returns the root file system of a template, which must not change any more. It is made once, and again
// when the template, or the files that Sandlot adds, have changed. That of a template with a folder of the
// operator's is copied into an image, which can take a minute.
func (s *Store) For(t *image.Template) (FS, error) {
	s.mu.Lock()
	m := s.made[t]
	if m == nil {
		m = &made{}
		s.made[t] = m
	}
	s.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return m.fs, nil
	}
	s.cleaned.Do(s.removeStale)
	f, err := s.build(t)
	m.fs, m.done = f, err == nil
	return f, err
}

func (s *Store) build(t *image.Template) (FS, error) {
	files := maps.Clone(baseFiles)
	if s.hostNetwork {
		resolvers, err := os.ReadFile("/etc/resolv.conf")
		if err != nil {
			return FS{}, err
		}
		files["etc/resolv.conf"] = string(resolvers)
	}
	switch {
	case t.RootfsImage != "":
		return s.imageFS(t, t.RootfsImage, files)
	case t.Rootfs != "":
		file, err := copyFolder(s.ctx, s.dir, t)
		if err != nil {
			return FS{}, fmt.Errorf("copying the root file system %s: %w", t.Rootfs, err)
		}
		return s.imageFS(t, file, files)
	}
	maps.Copy(files, hostFiles)
	key, err := json.Marshal([]any{t, files, baseFolders})
	if err != nil {
		return FS{}, err
	}
	dir := filepath.Join(s.dir, t.Name+"-"+shortHash(key))
	if _, err := os.Stat(dir); err != nil {
		if err := buildRootfs(dir, t, files); err != nil {
			return FS{}, err
		}
	}
	return FS{Path: dir, Binds: t.Binds}, nil
}

// imageFS returns the root file system of an image.
func (s *Store) imageFS(t *image.Template, file string, files map[string]string) (FS, error) {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return FS{}, err
	}
	f, err := os.Open(file)
	if err != nil {
		return FS{}, err
	}
	defer f.Close()
	i, err := rootfs.OpenImage(f)
	if err != nil {
		return FS{}, err
	}
	// An archive of another time differs in the times of files alone: its name is that of all else.
	text, err := buildLayer(i, t, files, time.Unix(0, 0))
	if err != nil {
		return FS{}, err
	}
	layer := filepath.Join(s.dir, t.Name+"-"+shortHash(text)+".tar")
	empty := filepath.Join(s.dir, "empty")
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return FS{}, err
	}
	if _, err := os.Stat(layer); err == nil {
		return FS{empty, t.Binds, file, layer}, nil
	}
	if text, err = buildLayer(i, t, files, time.Now()); err != nil {
		return FS{}, err
	}
	return FS{empty, t.Binds, file, layer}, writeWhole(layer, text)
}

// writeWhole writes a file that exists with all its content, or not at all, even after a crash.
func writeWhole(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".making-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// staleAfter is the age at which nobody makes a root file system any more.
const staleAfter = time.Hour

// removeStale removes what a server left that ended while it made a root file system.
func (s *Store) removeStale() {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), ".making-") && time.Since(info.ModTime()) > staleAfter {
			os.RemoveAll(filepath.Join(s.dir, e.Name()))
		}
	}
}

func shortHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// buildRootfs makes the root folder dir of a template. When it fails, dir does not exist.
func buildRootfs(dir string, t *image.Template, files map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	tmpDir, err := os.MkdirTemp(filepath.Dir(dir), ".making-")
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(tmpDir)
	if err == nil {
		err = errors.Join(fillRootfs(root, t, files), root.Close())
	}
	if err == nil {
		err = os.Rename(tmpDir, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmpDir))
	}
	return nil
}

func fillRootfs(root *os.Root, t *image.Template, files map[string]string) error {
	err := root.Chmod(".", 0o755)
	for _, d := range baseFolders {
		err = errors.Join(err, root.MkdirAll(d, 0o755))
	}
	for _, d := range []string{"tmp", "var/tmp"} {
		err = errors.Join(err, root.Chmod(d, 0o777|os.ModeSticky))
	}
	for name, text := range files {
		err = errors.Join(err, root.WriteFile(name, []byte(text), 0o644))
	}
	for name, target := range t.Links {
		err = errors.Join(err, root.Symlink(target, name))
	}
	for name, content := range t.Files {
		err = errors.Join(err, root.MkdirAll(filepath.Dir(name), 0o755), root.WriteFile(name, content, 0o644))
	}
	for _, b := range t.Binds {
		err = errors.Join(err, makeMountTarget(root, b))
	}
	return errors.Join(err, touch(root, strings.TrimPrefix(AgentPath, "/")))
}

// touch makes an empty file, unless there is one.
func touch(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	return f.Close()
}

// makeMountTarget makes the mount point for a bind mount: a folder or a file, like its source.
func makeMountTarget(root *os.Root, b image.Bind) error {
	target := strings.TrimPrefix(b.Target, "/")
	st, err := os.Stat(b.Source)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return root.MkdirAll(target, 0o755)
	}
	return errors.Join(root.MkdirAll(filepath.Dir(target), 0o755), touch(root, target))
}
