package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
)

// daemon is what a daemon says of itself.
type daemon struct {
	identity daemonID
	machine  string // the processor of its machine
	// isPodman: it changes no limits of containers that run, has limits of its own for users' processes, and mounts
	// what is missing as an empty folder.
	isPodman      bool
	endsSandboxes bool // containers end with it
	hasLimits     bool // the kernel bounds memory, processors and processes of containers
	isRootless    bool // it runs as a user without root's rights, who is root in containers
	// uid and gid are the ids on the host of root in containers, after which those of others follow (userns-remap). 0:
	// users have the same ids on the host.
	uid, gid int
	// separateKernel: sandboxes have another kernel than the server (gVisor, Kata, a daemon in a virtual machine), and
	// cannot connect to its sockets, even if they see its files.
	separateKernel bool
	// isGVisor: processes of sandboxes are no processes of the machine, whose number the agent bounds, and limits of
	// containers that run do not change. arguments are those of its program runsc, if the daemon tells.
	isGVisor  bool
	arguments []string
}

// lacks reports whether the daemon starts gVisor without an argument.
func (d daemon) lacks(argument string) bool {
	return d.isGVisor && d.arguments != nil && !slices.Contains(d.arguments, argument) &&
		!slices.Contains(d.arguments, argument+"=true")
}

// mapsUsers reports whether users of containers have other ids on the host.
func (d daemon) mapsUsers() bool { return d.isRootless || d.uid != 0 }

// known returns what the daemon has said of itself, or the zero value: it was not asked yet.
func (r *Runtime) known() daemon {
	if d := r.asked.Load(); d != nil {
		return *d
	}
	return daemon{}
}

// unknown marks the error of a daemon that accepts connections, and does not say which one it is, as that of one that
// does not answer.
func (r *Runtime) unknown(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) {
		return r.unanswered(err)
	}
	return err
}

// ask asks the daemon what it is, unless it has answered before. Who asks meanwhile waits for the same answer: Podman
// does not give another one while it makes a container.
func (r *Runtime) ask(ctx context.Context) (daemon, error) {
	if d := r.asked.Load(); d != nil {
		return *d, nil
	}
	answers := r.once.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		if r.ctx != nil {
			defer context.AfterFunc(r.ctx, cancel)()
		}
		return r.askOnce(ctx)
	})
	select {
	case a := <-answers:
		return a.Val.(daemon), a.Err
	case <-ctx.Done():
		return daemon{}, r.unknown(fmt.Errorf("asking the Docker daemon which one it is: %w", ctx.Err()))
	}
}

func (r *Runtime) askOnce(ctx context.Context) (daemon, error) {
	version, err := r.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return daemon{}, r.unknown(fmt.Errorf("asking the Docker daemon for its version: %w", err))
	}
	answer, err := r.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return daemon{}, r.unknown(fmt.Errorf("asking the Docker daemon which one it is: %w", err))
	}
	info := answer.Info
	d := daemon{
		identity: daemonID{r.client.DaemonHost(), info.ID},
		machine:  info.Architecture,
		isPodman: slices.ContainsFunc(version.Components, func(c system.ComponentVersion) bool {
			return strings.HasPrefix(c.Name, "Podman")
		}),
		endsSandboxes: !info.LiveRestoreEnabled,
		hasLimits:     info.MemoryLimit && info.PidsLimit && info.CPUCfsQuota,
		isRootless:    hasOption(info.SecurityOptions, "rootless"),
	}
	name := cmp.Or(r.OCIRuntime, info.DefaultRuntime)
	program := info.Runtimes[name]
	kind := strings.ToLower(name + " " + path.Base(program.Path) + " " + program.Type)
	d.isGVisor = strings.Contains(kind, "runsc") || strings.Contains(kind, "gvisor")
	d.separateKernel = d.isGVisor || strings.Contains(kind, "kata") || !onThisKernel(info)
	if program.Path != "" {
		d.arguments = append([]string{}, program.Args...)
	}
	if hasOption(info.SecurityOptions, "userns") {
		if d.uid, d.gid, err = remapped(info.DockerRootDir); err != nil {
			return daemon{}, err
		}
	}
	if d.isPodman {
		d.identity.ID = info.Name + ":" + info.DockerRootDir // its ID is another one each time
		d.endsSandboxes = false
	}
	r.asked.Store(&d)
	return d, nil
}

// onThisKernel reports whether a daemon may be one on the kernel of this process. Docker Desktop, and others like it,
// are in a virtual machine that shows some folders of the server's machine, but no sockets in them.
func onThisKernel(info system.Info) bool {
	own := proc.KernelRelease()
	if own == "" || strings.Contains(info.OperatingSystem, "Docker Desktop") {
		return false
	}
	return info.KernelVersion == "" || info.KernelVersion == own
}

// hasOption reports whether one of a daemon's security options has that name.
func hasOption(options []string, name string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		return slices.Contains(strings.Split(o, ","), "name="+name)
	})
}

// remapped returns the ids on the host of root in containers of a daemon that maps users. Its folder, which has them in
// its name, is the only place where it says them.
func remapped(dir string) (uid, gid int, err error) {
	first, second, _ := strings.Cut(path.Base(dir), ".")
	uid, err = strconv.Atoi(first)
	gid, gidErr := strconv.Atoi(second)
	if err = errors.Join(err, gidErr); err != nil || uid <= 0 || gid <= 0 {
		return 0, 0, fmt.Errorf("%w: the Docker daemon maps users (userns-remap), and its folder %s does not say to "+
			"which", sandbox.ErrUnavailable, dir)
	}
	return uid, gid, nil
}
