// Package root owns the root file systems of sandboxes: what the sandboxes of a template share, and none of them
// can change. It makes them in a folder of its own, once for each template, and writes nowhere else.
package root

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sandlot/internal/image"
)

// AgentPath is where the sandbox sees the agent.
const AgentPath = "/.sandlot/agent"

// baseFiles are the files that programs expect in every root file system, by path.
var baseFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"etc/hosts":         "127.0.0.1 localhost sandbox\n::1 localhost\n",
	"etc/hostname":      "sandbox\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"etc/resolv.conf":   "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n",
	// gVisor mounts a tmpfs over /tmp if it is empty; this file prevents that.
	"tmp/.sandlot": "",
}

// baseFolders are the folders that programs expect, and mount points.
var baseFolders = []string{"etc", "proc", "sys", "dev", "tmp", "run/sandlot", "var/tmp", "var/lib/sandlot", "root",
	"home", "opt", "mnt", "workspace", ".sandlot"}

// FS is the root file system of a template's sandboxes.
type FS struct {
	Path  string       // the folder that the bundle names as the root
	Binds []image.Bind // what is mounted over it, read-only
}

// Store has the root file systems of one instance.
type Store struct {
	dir         string
	hostNetwork bool // sandboxes have the machine's own network, and look names up where it does

	mu   sync.Mutex
	made map[*image.Template]FS
}

// New returns the root file systems below dir, which need not exist yet.
func New(dir string, hostNetwork bool) *Store {
	return &Store{dir: dir, hostNetwork: hostNetwork, made: map[*image.Template]FS{}}
}

// For returns the root file system of a template, which must not change any more. It is made once, and again
// when the template, or the files that Sandlot adds, have changed. A template with a root file system of its
// own keeps that one; Sandlot adds only missing mount points.
func (s *Store) For(t *image.Template) (FS, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.made[t]; ok {
		return f, nil
	}
	f, err := s.build(t)
	if err == nil {
		s.made[t] = f
	}
	return f, err
}

func (s *Store) build(t *image.Template) (FS, error) {
	if t.Rootfs != "" {
		if err := makeMountTargets(t.Rootfs); err != nil {
			return FS{}, err
		}
		binds, err := s.fileBinds(t)
		return FS{t.Rootfs, slices.Concat(t.Binds, binds)}, err
	}
	files := maps.Clone(baseFiles)
	if s.hostNetwork {
		resolvers, err := os.ReadFile("/etc/resolv.conf")
		if err != nil {
			return FS{}, err
		}
		files["etc/resolv.conf"] = string(resolvers)
	}
	key, err := json.Marshal([]any{t, files, baseFolders})
	if err != nil {
		return FS{}, err
	}
	sum := sha256.Sum256(key)
	dir := filepath.Join(s.dir, t.Name+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err != nil {
		if err := buildRootfs(dir, t, files); err != nil {
			return FS{}, err
		}
	}
	return FS{dir, t.Binds}, nil
}

// fileBinds writes the files that Sandlot adds to a template with its own root file system,
// which Sandlot does not change, into the state folder. It returns the bind mounts by
// which sandboxes see these files in their root.
func (s *Store) fileBinds(t *image.Template) ([]image.Bind, error) {
	dir := filepath.Join(s.dir, t.Name+"-files")
	root, err := os.OpenRoot(t.Rootfs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var binds []image.Bind
	for _, name := range slices.Sorted(maps.Keys(t.Files)) {
		if hashedCertName.MatchString(name) {
			continue
		}
		source := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(source, t.Files[name], 0o644); err != nil {
			return nil, err
		}
		if st, err := root.Stat(filepath.Dir(name)); err != nil || !st.IsDir() {
			continue // no program of this root file system looks there, or a link leads out of it
		}
		if st, err := root.Lstat(name); err == nil && !st.Mode().IsRegular() {
			continue // a link to another of these files
		}
		if err := touch(root, name); err != nil {
			return nil, err
		}
		binds = append(binds, image.Bind{Source: source, Target: "/" + name})
	}
	return binds, nil
}

// hashedCertName matches the name by which OpenSSL finds a certificate in a folder: a hash of the
// subject, and a number.
var hashedCertName = regexp.MustCompile(`/[0-9a-f]{8}\.[0-9]+$`)

// makeMountTargets makes the missing mount points in an operator's root file system: runsc cannot
// make them in a folder that is shared read-only. It follows no link out of the root.
func makeMountTargets(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range []string{"proc", "dev", "tmp", "workspace", "run/sandlot", ".sandlot"} {
		err = cmp.Or(err, root.MkdirAll(d, 0o755))
	}
	if err = cmp.Or(err, touch(root, strings.TrimPrefix(AgentPath, "/"))); err != nil { // the first error
		return fmt.Errorf("the root file system %s needs a folder, and no link out of it, at this place: %w", dir, err)
	}
	return nil
}

// touch makes an empty file, unless there is one.
func touch(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	return f.Close()
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
