package docker

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// TestContainer looks at what the daemon is asked for.
func TestContainer(t *testing.T) {
	r, err := New(Config{Host: "unix:///none", Agent: "/bin/agent", StateDir: t.TempDir(), OCIRuntime: "runsc"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec := sandbox.Spec{ID: "a", Template: &image.Template{Name: "t", Image: "i",
		Env:   map[string]string{"GODEBUG": "x=1"},
		Files: map[string][]byte{"etc/pip.conf": nil, "etc/ssl/certs/01234567.0": nil}}, Secret: make([]byte, 32),
		Limits: sandbox.Limits{CPUs: 1.5, MemoryBytes: 512 << 20, Processes: 100, DiskBytes: 1 << 30},
		Mounts: []sandbox.Mount{{Source: "/w", Target: "/workspace"},
			{Source: "/d", Target: "/data", ReadOnly: true}},
		OrphanTimeout: time.Hour}
	made, err := r.container(newBox(r, spec), "sha256:i", "instance")
	if err != nil {
		t.Fatal(err)
	}
	c, h := made.Config, made.HostConfig
	if c.User != "0:0" || !slices.Equal(c.Entrypoint, []string{wire.AgentPath}) || c.Cmd == nil || len(c.Cmd) != 0 ||
		!slices.Equal(c.Healthcheck.Test, []string{"NONE"}) || c.Labels[labelInstance] != "instance" {
		t.Errorf("%+v", c)
	}
	// An image's secret would come before the file.
	if !slices.Contains(c.Env, "SANDLOT_AGENT_SECRET=") || slices.ContainsFunc(c.Env, func(kv string) bool {
		return strings.Contains(kv, "SECRET") && !strings.HasSuffix(kv, "=")
	}) {
		t.Errorf("environment %q", c.Env)
	}
	for _, name := range wire.GoVariables { // the agent's own runtime would read what the image says
		if !slices.Contains(c.Env, name+"=") {
			t.Errorf("%s of the image reaches the agent: %q", name, c.Env)
		}
	}
	if !slices.Contains(c.Env, "SANDLOT_AGENT_PROGRAM_GODEBUG=x=1") {
		t.Errorf("programs do not get the template's GODEBUG: %q", c.Env)
	}
	if h.Privileged || h.NetworkMode != "none" || !h.ReadonlyRootfs || h.Init == nil || *h.Init ||
		h.Runtime != "runsc" || !slices.Equal(h.CapDrop, []string{"ALL"}) ||
		!slices.Equal(h.CapAdd, []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETPCAP"}) ||
		!slices.Equal(h.SecurityOpt, []string{"no-new-privileges"}) || len(h.Binds) != 0 || len(h.Devices) != 0 ||
		h.PidMode != "" || h.IpcMode != "private" || h.CgroupnsMode != "private" || h.UsernsMode != "" {
		t.Errorf("%+v", h)
	}
	if h.Memory != 544<<20 || h.MemorySwap != h.Memory || h.CPUQuota != 150_000 || *h.PidsLimit != 164 {
		t.Errorf("limits %+v", h.Resources)
	}
	targets := map[string]mount.Mount{}
	for _, m := range h.Mounts {
		if _, twice := targets[m.Target]; twice {
			t.Errorf("%s is mounted twice", m.Target)
		}
		targets[m.Target] = m
		writable := m.Target == "/workspace" || m.Target == writableFile || m.Type == mount.TypeVolume
		if m.ReadOnly == writable || m.Type == mount.TypeVolume && m.Source != "" ||
			m.ReadOnly != (m.BindOptions != nil && m.BindOptions.NonRecursive) {
			t.Errorf("%+v", m)
		}
	}
	for _, target := range []string{"/tmp", "/root", "/data", "/etc/pip.conf", "/etc/resolv.conf", "/run/sandlot"} {
		if _, found := targets[target]; !found {
			t.Errorf("nothing is mounted at %s", target)
		}
	}
	if _, found := targets["/etc/ssl/certs/01234567.0"]; found {
		t.Error("a link to a certificate is mounted")
	}

	build := spec
	build.Build, build.OrphanTimeout = true, 0
	other := *spec.Template
	other.User = image.User{UID: 1000, GID: 1000, Home: "/srv/app"}
	build.Template = &other
	if made, err = r.container(newBox(r, build), "sha256:i", "instance"); err != nil {
		t.Fatal(err)
	}
	if made.HostConfig.ReadonlyRootfs || !slices.Contains(made.Config.Env, "SANDLOT_AGENT_ORPHAN=") ||
		!slices.Equal(made.HostConfig.CapAdd, agent.Capabilities(&other, true)) {
		t.Errorf("of a build: %+v, %q", made.HostConfig, made.Config.Env)
	}
	const filtered = "SANDLOT_AGENT_PLAIN_FILES=1"
	if !slices.Contains(c.Env, filtered) || slices.Contains(made.Config.Env, filtered) {
		t.Errorf("the filter of set-user-ID files: %q, of a build %q", c.Env, made.Config.Env)
	}
	if enclosed := "SANDLOT_AGENT_ENCLOSED=1"; !slices.Contains(c.Env, enclosed) ||
		!slices.Contains(made.Config.Env, enclosed) {
		t.Errorf("the filter of sockets: %q, of a build %q", c.Env, made.Config.Env)
	}
	build.Mounts = append(slices.Clone(spec.Mounts), sandbox.Mount{Source: "/s", Target: "/share", Shared: true})
	if made, err = r.container(newBox(r, build), "sha256:i", "instance"); err != nil ||
		!slices.Contains(made.Config.Env, filtered) {
		t.Errorf("of a build with a shared folder: %q, %v", made.Config.Env, err)
	}
}

// TestSubmounts: a daemon that can make what is mounted in a folder read-only is told to. An older one gets no such
// folder (Submounts of TestSandboxes).
func TestSubmounts(t *testing.T) {
	workspace := sandbox.Mount{Source: "/w", Target: "/workspace"}
	machine := sandbox.Mount{Source: "/", Target: "/data", ReadOnly: true} // with /proc
	for version, seals := range map[string]bool{"1.41": false, "1.43": false, "1.44": true, "1.52": true} {
		t.Setenv("DOCKER_API_VERSION", version)
		r, err := New(Config{Host: "unix:///none", Agent: "/bin/agent", StateDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		spec := sandbox.Spec{ID: "a", Template: &image.Template{Name: "t", Image: "i",
			User: image.User{UID: 1, GID: 1, Home: "/dev/null"}}, Mounts: []sandbox.Mount{workspace, machine}}
		for _, m := range r.mounts(newBox(r, spec), "instance") {
			if m.Target == "/data" && (m.BindOptions.ReadOnlyForceRecursive != seals ||
				m.BindOptions.NonRecursive == seals) {
				t.Errorf("API %s: %+v", version, m.BindOptions)
			}
			if strings.HasPrefix(m.Target, "/dev") {
				t.Errorf("a home of no use is mounted: %+v", m)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestProcessesOfUsers: the limit for the processes of a user, which the kernel counts on the whole machine, is none
// that sandboxes could use up for each other. What bounds each of them is its own.
func TestProcessesOfUsers(t *testing.T) {
	t.Parallel()
	r := &Runtime{}
	r.asked.Store(&daemon{isPodman: true})
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	var own unix.Rlimit
	if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NPROC, &own)); err != nil {
		t.Fatal(err)
	}
	limits := r.resources(sandbox.Limits{Processes: 100})
	i := slices.IndexFunc(limits.Ulimits, func(l *container.Ulimit) bool { return l.Name == "nproc" })
	if i < 0 || uint64(limits.Ulimits[i].Hard) != min(own.Max, ids) ||
		limits.Ulimits[i].Soft != limits.Ulimits[i].Hard {
		t.Errorf("the limits: %+v", limits.Ulimits)
	}
	if *limits.PidsLimit != 100+agentThreads {
		t.Errorf("the sandbox's own: %d", *limits.PidsLimit)
	}
}
