package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/runtime/graft"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/sandbox"
)

// writeBundle writes config.json and makes the sandbox's folders.
func (r *Runtime) writeBundle(b *box) error {
	if err := os.MkdirAll(filepath.Join(b.dir, "disk"), 0o700); err != nil {
		return err
	}
	spec, err := r.ociSpec(b)
	if err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, bundleFile), text, 0o600)
}

func (r *Runtime) ociSpec(b *box) (*specs.Spec, error) {
	env, err := agent.Environment(b.spec, !r.HostNetwork)
	if err = errors.Join(err, b.findAgent()); err != nil {
		return nil, err
	}
	l, capabilities := b.spec.Limits, agent.Capabilities(b.spec.Template, !r.HostNetwork)
	if b.spec.Build {
		env = append(env, wire.EnvBuild+"=1")
	}
	// Capabilities mean something to gVisor's kernel only. That of the host does not change owners (sandlot-runsc). In a
	// folder of the operator's root is not to write where it could not without them: pip would install there, and not
	// in the workspace.
	if b.spec.Build || r.RootIsCapable(b.spec.Template) {
		env = append(env, wire.EnvCapable+"=1")
		capabilities = append(capabilities, "CAP_SETPCAP") // the agent drops others from its bounding set
		capabilities = slices.AppendSeq(capabilities, maps.Keys(wire.Capabilities))
		slices.Sort(capabilities)
		capabilities = slices.Compact(capabilities)
	}
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: "sandbox",
		Root: &specs.Root{Path: b.root.Path},
		Process: &specs.Process{
			Args: []string{wire.AgentPath}, Env: env, Cwd: "/", NoNewPrivileges: true,
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
	if b.root.Image != "" {
		maps.Copy(spec.Annotations, r.imageAnnotations(b))
	}
	if err := graft.Annotate(spec.Annotations, r.grafts(b)); err != nil {
		return nil, err
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

// RootIsCapable implements sandbox.Users.
func (r *Runtime) RootIsCapable(t *image.Template) bool {
	return !r.Bare && t.User.IsRoot() && t.Rootfs == ""
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

// imageAnnotations tell runsc which image is the root file system. With them it ignores for the root what
// --overlay2 says of the size. It takes the folder of the overlay's file from --overlay2, and from the annotation
// only that there is one: gVisor restores no sandbox whose annotations differ from its preboot image's.
func (r *Runtime) imageAnnotations(b *box) map[string]string {
	const prefix = "dev.gvisor.spec.rootfs."
	return map[string]string{prefix + "source": b.root.Image, prefix + "type": "erofs",
		prefix + "overlay": "dir=" + r.StateDir, prefix + "options": fmt.Sprintf("size=%d", diskSize(b.spec.Limits)),
		"dev.gvisor.tar.rootfs.upper": b.root.Layer}
}

// diskSize is how much a sandbox may write into its root file system, in bytes.
func diskSize(l sandbox.Limits) int64 { return max(l.DiskBytes, 16<<20) }

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
		bind(b.agent, wire.AgentPath, true),
		uncached(bind(b.socketDir(), wire.SocketDir, true)), // else each tool's document costs 8 KB once it is read
		uncached(bind(b.bootIDFile(), bootIDPath, true)),    // gVisor's own is that of the image of which it is restored
	}
	binds := slices.Clone(b.root.Binds)
	slices.SortFunc(binds, func(x, y image.Bind) int { return strings.Compare(x.Target, y.Target) })
	for _, x := range binds {
		if r.isGraft(b, x) {
			continue
		}
		mount := bind(x.Source, x.Target, true)
		if image.IsLibrary(x.Target) {
			mount.Source = r.orEmpty(x.Source)
		}
		list = append(list, mount)
	}
	for _, m := range b.spec.Mounts {
		mount := bind(m.Source, m.Target, m.ReadOnly)
		if m.Shared { // gVisor then closes a file on the host when its program does: Seal needs that
			mount = uncached(mount)
		}
		list = append(list, mount)
	}
	return list
}

// orEmpty returns the folder, or, where it is gone, an empty one.
func (r *Runtime) orEmpty(folder string) string {
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		return folder
	}
	empty := filepath.Join(r.StateDir, "nothing")
	_ = os.MkdirAll(empty, 0o755)
	return empty
}

// isGraft reports whether a part of the machine is one of the root file system, which is below what the sandbox writes.
// Without capabilities no package manager works, and in an image there is nothing of the machine.
func (r *Runtime) isGraft(b *box, x image.Bind) bool { return x.Graft && !r.Bare && b.root.Image == "" }

// grafts returns the parts of the machine in the root file system, by their paths in the sandbox.
func (r *Runtime) grafts(b *box) (list []graft.Graft) {
	for _, x := range b.root.Binds {
		if r.isGraft(b, x) {
			list = append(list, graft.Graft{Source: x.Source, Target: x.Target})
		}
	}
	slices.SortFunc(list, func(x, y graft.Graft) int { return strings.Compare(x.Target, y.Target) })
	return list
}

// withGrafts returns mounts, and grafts as if they were mounted, too.
func withGrafts(mounts []specs.Mount, grafts []graft.Graft) []specs.Mount {
	list := slices.Clone(mounts)
	for _, g := range grafts {
		list = append(list, bind(g.Source, g.Target, true))
	}
	return list
}

// uncached makes gVisor forget the names and the files of a mount as soon as nobody has them open.
func uncached(m specs.Mount) specs.Mount {
	m.Options = append(m.Options, "dcache=0")
	return m
}

func bind(source, target string, readOnly bool) specs.Mount {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	return specs.Mount{Destination: target, Type: "bind", Source: source,
		Options: []string{"bind", mode, "nosuid", "nodev"}}
}
