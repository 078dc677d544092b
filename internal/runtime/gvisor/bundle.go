package gvisor

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/sandbox"
)

// agentPath is where the sandbox sees the agent.
const agentPath = "/.sandlot/agent"

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

// rootfsFor returns the root folder of a template: the files that all its sandboxes share
// and cannot change, and every mount point. The folder is made once, and again when the
// template, or the files that Sandlot adds, have changed. A template with a root file
// system of its own keeps that one; Sandlot adds only missing mount points.
func (r *Runtime) rootfsFor(t *image.Template) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if root := r.rootfs[t.Name]; root != "" {
		return root, nil
	}
	if t.Rootfs != "" {
		if err := makeMountTargets(t.Rootfs); err != nil {
			return "", err
		}
		binds, err := r.fileBinds(t)
		if err != nil {
			return "", err
		}
		r.rootfs[t.Name], r.rootBinds[t.Name] = t.Rootfs, binds
		return t.Rootfs, nil
	}
	files := maps.Clone(baseFiles)
	if r.HostNetwork {
		resolvers, err := os.ReadFile("/etc/resolv.conf")
		if err != nil {
			return "", err
		}
		files["etc/resolv.conf"] = string(resolvers)
	}
	rootKey, err := json.Marshal([]any{t, files, baseFolders})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(rootKey)
	root := filepath.Join(r.StateDir, "roots", t.Name+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(root); err != nil {
		if err := buildRootfs(root, t, files); err != nil {
			return "", err
		}
	}
	r.rootfs[t.Name] = root
	return root, nil
}

// fileBinds writes the files that Sandlot adds to a template with its own root file system,
// which Sandlot does not change, into the state folder. It returns the bind mounts by
// which sandboxes see these files in their root.
func (r *Runtime) fileBinds(t *image.Template) ([]image.Bind, error) {
	dir := filepath.Join(r.StateDir, "roots", t.Name+"-files")
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
	if err = cmp.Or(err, touch(root, strings.TrimPrefix(agentPath, "/"))); err != nil { // the first error
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
	return errors.Join(err, touch(root, strings.TrimPrefix(agentPath, "/")))
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

// writeBundle writes config.json and makes the sandbox's folders.
func (r *Runtime) writeBundle(b *box, root string) error {
	if err := os.MkdirAll(filepath.Join(b.dir, "disk"), 0o700); err != nil {
		return err
	}
	spec, err := r.ociSpec(b, root)
	if err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "config.json"), text, 0o600)
}

func (r *Runtime) ociSpec(b *box, root string) (*specs.Spec, error) {
	env, err := agent.Environment(b.spec, !r.HostNetwork)
	if err != nil {
		return nil, err
	}
	l, capabilities := b.spec.Limits, agent.Capabilities(b.spec.Template, !r.HostNetwork)
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: "sandbox",
		Root: &specs.Root{Path: root},
		Process: &specs.Process{
			Args: []string{agentPath}, Env: env, Cwd: "/", NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Permitted: capabilities,
				Effective: capabilities},
			Rlimits: rlimits(l),
		},
		Mounts: r.mounts(b),
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace},
			{Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			{Type: specs.MountNamespace}}},
		Annotations: machineAnnotations(l),
	}
	if r.HostNetwork {
		spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces,
			func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
	}
	if b.cgroups.Usable() {
		spec.Linux.CgroupsPath = b.cgroups.OCIPath(b.spec.ID)
		spec.Linux.Resources = cgroup.Resources(l)
	}
	return spec, nil
}

// machineAnnotations returns what tells sandlot-runsc how much memory and how many CPUs a sandbox sees.
func machineAnnotations(l sandbox.Limits) map[string]string {
	m := map[string]string{}
	if l.MemoryBytes > 0 {
		m["dev.sandlot.memory"] = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if l.CPUs > 0 {
		m["dev.sandlot.cpus"] = strconv.Itoa(int(math.Ceil(l.CPUs)))
	}
	return m
}

// agentThreads is how many threads RLIMIT_NPROC allows the agent itself, on top of a sandbox's limit.
const agentThreads = 64

func rlimits(l sandbox.Limits) []specs.POSIXRlimit {
	list := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Soft: 16384, Hard: 65536}}
	if l.Processes > 0 {
		n := uint64(l.Processes) + agentThreads
		list = append(list, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Soft: n, Hard: n})
	}
	if l.DiskBytes > 0 {
		n := uint64(l.DiskBytes)
		list = append(list, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Soft: n, Hard: n})
	}
	return list
}

func (r *Runtime) mounts(b *box) []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		bind(r.Agent, agentPath, true),
		bind(b.socketDir(), wire.SocketDir, true),
	}
	r.mu.Lock()
	rootBinds := r.rootBinds[b.spec.Template.Name]
	r.mu.Unlock()
	binds := append(slices.Clone(b.spec.Template.Binds), rootBinds...)
	slices.SortFunc(binds, func(x, y image.Bind) int { return strings.Compare(x.Target, y.Target) })
	for _, x := range binds {
		list = append(list, bind(x.Source, x.Target, true))
	}
	for _, m := range b.spec.Mounts {
		mount := bind(m.Source, m.Target, m.ReadOnly)
		if m.Shared { // gVisor then closes a file on the host when its program does: Seal needs that
			mount.Options = append(mount.Options, "dcache=0")
		}
		list = append(list, mount)
	}
	return list
}

func bind(source, target string, readOnly bool) specs.Mount {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	return specs.Mount{Destination: target, Type: "bind", Source: source,
		Options: []string{"bind", mode, "nosuid", "nodev"}}
}
