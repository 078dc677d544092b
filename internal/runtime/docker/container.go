package docker

import (
	"errors"
	"maps"
	"math"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/cacerts"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
)

// ownFiles returns the files that each sandbox has instead of its image's, by path. Docker would copy the host's name
// servers into resolv.conf. The agent, which is root and owns it, writes into gitconfig, which has to be a file for
// that in a read-only root.
func ownFiles() map[string]string {
	files := map[string]string{writableFile: "", "/etc/gitignore": wire.GitIgnore}
	for name, text := range image.OwnFiles() {
		files["/"+name] = text
	}
	return files
}

// writableFile is the one of ownFiles that the agent writes.
const writableFile = "/etc/gitconfig"

// temporary are the folders for files that are of no use to another sandbox, and scratch the others that programs
// expect to write to in a root file system that is read-only. Each is a volume on the daemon's disk, with what the
// image has there at first, which is removed with the container. It is no tmpfs: that would count as memory of the
// sandbox.
var (
	temporary = []string{"/tmp", "/var/tmp", "/run", "/var/lib/sandlot"}
	scratch   = []string{"/root", "/home"}
)

// templateDir is the folder of the template's files.
func (b *box) templateDir() string { return filepath.Join(b.dir, "template") }

// uvEnvironment is where the agent makes the virtual environment that `uv pip` uses (package guest).
const uvEnvironment = "/.venv"

// fileNames returns the names of a template's files that are mounted over its image's: all but those that are
// only links to others by their hash.
func fileNames(t *image.Template) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.Files)), cacerts.IsHashedName)
}

// makeFolders makes the sandbox's folders, and the files that are mounted over the image's. The sandbox's
// users may differ from the host's, so all may read them; nobody else gets into the state folder.
func (b *box) makeFolders() error {
	for _, d := range []string{b.socketDir(), b.filesDir()} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.Chmod(d, 0o755)); err != nil {
			return err
		}
	}
	if t := b.spec.Template; t.Image != "" {
		for _, name := range fileNames(t) {
			if err := writeFile(filepath.Join(b.templateDir(), name), t.Files[name], 0o644); err != nil {
				return err
			}
		}
	}
	for path, text := range ownFiles() {
		if err := writeFile(filepath.Join(b.filesDir(), filepath.Base(path)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if uid, gid := b.runtime.known().hostIDs(image.User{}); uid != 0 && os.Geteuid() == 0 {
		return os.Chown(filepath.Join(b.filesDir(), filepath.Base(writableFile)), uid, gid)
	}
	return nil
}

// writeFile writes a file and makes its folder, with these modes whatever the umask is.
func writeFile(path string, content []byte, mode os.FileMode) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	return errors.Join(err, os.WriteFile(path, content, mode), os.Chmod(path, mode))
}

// container returns the container of a sandbox.
func (r *Runtime) container(b *box, image, instance string) (client.ContainerCreateOptions, error) {
	env, err := agent.Environment(b.spec, true)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	// The daemon shows the environment to all its users, and stores it. The agent reads the secret from a file.
	env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, wire.EnvSecret+"=") })
	env = append(env, wire.EnvEnclosed+"=1")
	// Package managers set such modes. A build has no folders that others use; with one it would be filtered.
	if !b.spec.Build || slices.ContainsFunc(b.spec.Mounts, func(m sandbox.Mount) bool { return m.Shared }) {
		env = append(env, wire.EnvPlainFiles+"=1")
	}
	// What is not said here would be the image's to say.
	for _, name := range wire.EnvNames {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			env = append(env, name+"=")
		}
	}
	for _, name := range wire.GoVariables {
		env = append(env, name+"=")
	}
	never := false
	config := &container.Config{
		Image: image, Entrypoint: []string{wire.AgentPath}, Cmd: []string{}, WorkingDir: "/", Hostname: "sandbox",
		// The agent sets up the network. It starts programs as the user of the template.
		User: "0:0", Env: env,
		// A check is a program of the image, which the daemon would start with the agent's capabilities.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels: map[string]string{labelInstance: instance, labelID: b.spec.ID,
			labelTemplate: b.spec.Template.Name, labelState: r.StateDir},
	}
	host := &container.HostConfig{
		Runtime: r.OCIRuntime, NetworkMode: "none", IpcMode: "private",
		CgroupnsMode: container.CgroupnsModePrivate, DNS: []netip.Addr{},
		CapDrop: []string{"ALL"}, CapAdd: agent.Capabilities(b.spec.Template, true),
		SecurityOpt:    []string{"no-new-privileges"},
		ReadonlyRootfs: !r.WritableRoot && !b.spec.Build,
		Resources:      b.resources(b.spec.Limits),
		Sysctls:        map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}, // for the agent's name server
		// The agent has to be process 1, whatever the daemon's default is.
		Init: &never,
		// What the agent complains of is here only.
		LogConfig: container.LogConfig{Type: "json-file",
			Config: map[string]string{"max-size": "256k", "max-file": "1"}},
		Mounts: r.mounts(b, instance),
	}
	return client.ContainerCreateOptions{Config: config, HostConfig: host, Name: b.name}, nil
}

const (
	// agentMemory and agentThreads are what the kernel allows on top of a sandbox's limits, for the agent itself.
	agentMemory  = 32 << 20
	agentThreads = 64
	// maxFiles is how many files each program may have open. The daemon may not be allowed to allow more.
	maxFiles = 16384
)

// cpuPeriod is the time in which a sandbox may use its processors, in microseconds.
const cpuPeriod = 100_000

// resources returns the limits that the kernel enforces.
func (r *Runtime) resources(l sandbox.Limits) container.Resources {
	all := container.Resources{Ulimits: []*container.Ulimit{{Name: "core"},
		{Name: "nofile", Soft: maxFiles, Hard: maxFiles}}}
	if r.known().isPodman { // its own default may be more than it is allowed to set
		n := proc.MaxProcesses()
		all.Ulimits = append(all.Ulimits, &container.Ulimit{Name: "nproc", Soft: n, Hard: n})
	}
	if l.MemoryBytes > 0 {
		all.Memory = l.MemoryBytes + agentMemory
		all.MemorySwap = all.Memory // no swap
	}
	if l.CPUs > 0 {
		// Not as a number of processors: the daemon refuses more processors than there are, and a flavor may have them.
		all.CPUPeriod, all.CPUQuota = cpuPeriod, int64(math.Round(l.CPUs*cpuPeriod))
	}
	if l.Processes > 0 && !r.known().isGVisor {
		n := l.Processes + agentThreads
		all.PidsLimit = &n
	}
	if l.DiskBytes > 0 {
		all.Ulimits = append(all.Ulimits, &container.Ulimit{Name: "fsize", Soft: l.DiskBytes, Hard: l.DiskBytes})
	}
	return all
}

// mounts returns the mounts of a sandbox, without those that are below a mount of the same target.
func (r *Runtime) mounts(b *box, instance string) []mount.Mount {
	list := r.sharedMounts(b)
	if b.separate {
		list = b.separateMounts()
	}
	volumes := append([]string{"/workspace"}, temporary...) // an image may lack /workspace, where programs start
	if !r.WritableRoot && !b.spec.Build {
		volumes = append(volumes, scratch...)
		if slices.ContainsFunc(b.spec.Template.Languages, func(l image.Language) bool { return l.Driver == "python" }) {
			volumes = append(volumes, uvEnvironment)
		}
		taken := slices.Concat(volumes, reservedPaths)
		if home := b.spec.Template.User.Home; path.IsAbs(home) && path.Clean(home) == home && !isBelow(home, taken) {
			volumes = append(volumes, home)
		}
	}
	for _, target := range volumes {
		if !slices.ContainsFunc(list, func(m mount.Mount) bool { return m.Target == target }) {
			list = append(list, mount.Mount{Type: mount.TypeVolume, Target: target,
				VolumeOptions: &mount.VolumeOptions{Labels: map[string]string{labelInstance: instance,
					labelID: b.spec.ID}}})
		}
	}
	slices.SortFunc(list, func(x, y mount.Mount) int { return strings.Compare(x.Target, y.Target) })
	return list
}

// sharedMounts returns the mounts of folders and files of the server's machine.
func (r *Runtime) sharedMounts(b *box) []mount.Mount {
	list := []mount.Mount{bind(b.agent, wire.AgentPath, true), bind(b.socketDir(), wire.SocketDir, true)}
	for path := range ownFiles() {
		list = append(list, bind(filepath.Join(b.filesDir(), filepath.Base(path)), path, path != writableFile))
	}
	for _, x := range b.spec.Template.Binds {
		if image.IsLibrary(x.Target) { // it is in another one, which is read-only here
			continue
		}
		list = append(list, r.bindWhole(x.Source, x.Target)...)
	}
	if b.spec.Template.Image != "" { // the files of others are in an image that this package has made
		for _, name := range fileNames(b.spec.Template) {
			list = append(list, bind(filepath.Join(b.templateDir(), name), "/"+name, true))
		}
	}
	for _, m := range b.spec.Mounts {
		x := bind(m.Source, m.Target, m.ReadOnly)
		if m.ReadOnly && r.sealsSubmounts() && len(proc.MountsBelow(m.Source)) > 0 {
			x.BindOptions = &mount.BindOptions{ReadOnlyForceRecursive: true, Propagation: mount.PropagationRPrivate}
		}
		list = append(list, x)
	}
	return list
}

// isBelow reports whether a path is the root, or one of the folders, or in one of them.
func isBelow(name string, folders []string) bool {
	return name == "/" || slices.ContainsFunc(folders, func(f string) bool { return isIn(name, f) })
}

// isIn reports whether a path is that folder, or in it.
func isIn(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, strings.TrimSuffix(folder, "/")+"/")
}

// bind returns the mount of a folder or file of this machine. One that is read-only has no mounts that are below it on
// the machine: most daemons would leave these writable.
func bind(source, target string, readOnly bool) mount.Mount {
	m := mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly}
	if readOnly {
		m.BindOptions = &mount.BindOptions{NonRecursive: true}
	}
	return m
}

// whole returns a read-only folder of this machine, and what is mounted in it.
func whole(source, target string) (list []sandbox.Mount) {
	for _, s := range append([]string{source}, proc.MountsBelow(source)...) {
		list = append(list, sandbox.Mount{Source: s, Target: target + strings.TrimPrefix(s, source), ReadOnly: true})
	}
	return list
}

// bindWhole returns the mounts of a folder of this machine with all that is mounted in it, read-only.
func (r *Runtime) bindWhole(source, target string) []mount.Mount {
	var list []mount.Mount
	for _, m := range whole(source, target) {
		list = append(list, bind(m.Source, m.Target, m.ReadOnly))
	}
	if len(list) > 1 && r.known().mapsUsers() {
		// The kernel shows other users no folder without what is mounted in it. Each of these has another mount over
		// it.
		for i := range list {
			list[i].BindOptions = nil
		}
	}
	return list
}

// sealsSubmounts reports whether the daemon can make a folder read-only with all that is mounted in it.
func (r *Runtime) sealsSubmounts() bool {
	minor, found := strings.CutPrefix(r.client.ClientVersion(), "1.")
	n, err := strconv.Atoi(minor)
	return found && err == nil && n >= 44 && !r.known().isPodman
}
