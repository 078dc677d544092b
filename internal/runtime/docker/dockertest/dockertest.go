// Package dockertest installs and starts Docker's engine, and Podman, for tests. It owns the daemons that it starts:
// each has folders of its own and makes no rule of the firewall. Each is gone with its test, as are the networks that
// the test has made.
package dockertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/proc"
)

// BaseImage is the name of the image that each daemon has, that of imagetest.BaseArchive.
const BaseImage = "sandlot-test/base:1"

// Daemon is a Docker daemon, or Podman's service with the same API.
type Daemon struct {
	Host   string // its address
	Client *client.Client
	dir    string
	args   []string // its program and arguments
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{} // closed when cmd has ended
	spaces uintptr       // the namespaces that it has for itself, as CLONE_… flags
}

// Start starts a Docker daemon that has BaseImage. Further arguments are dockerd's.
func Start(t testing.TB, args ...string) *Daemon {
	t.Helper()
	imagetest.Install(t, "dockerd", "docker.io")
	return start(t, func(dir string) []string { return append(dockerd(dir), args...) })
}

// dockerd returns the program of a daemon, with its arguments, whose containers have no network.
func dockerd(dir string) []string {
	return append(dockerdIn(dir), "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		"--ip-masq=false")
}

// dockerdIn returns the program of a daemon, with the arguments that name its folders.
func dockerdIn(dir string) []string {
	return []string{"dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"-H", "unix://" + filepath.Join(dir, "socket"), "--pidfile", filepath.Join(dir, "dockerd.pid")}
}

// StartPodman starts Podman's service, which has BaseImage too. Debian's crun refuses machines with both versions of
// control groups.
func StartPodman(t testing.TB) *Daemon {
	t.Helper()
	imagetest.Install(t, "podman", "podman", "runc")
	return start(t, func(dir string) []string {
		return []string{"podman", "--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "run"),
			"--runtime", "/usr/sbin/runc", "--cgroup-manager", "cgroupfs", "system", "service", "--time=0",
			"unix://" + filepath.Join(dir, "socket")}
	})
}

func start(t testing.TB, args func(dir string) []string) *Daemon {
	t.Helper()
	return startAs(t, 0, args)
}

func startAs(t testing.TB, spaces uintptr, args func(dir string) []string) *Daemon {
	t.Helper()
	base := imagetest.BaseArchive(t)
	dir, err := os.MkdirTemp("", "sandlot-docker-") // short: the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Host: "unix://" + filepath.Join(dir, "socket"), dir: dir, args: args(dir), spaces: spaces}
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	if d.Client, err = client.New(client.WithHost(d.Host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.remove(t) })
	d.Run(t)
	d.importBase(t, base)
	return d
}

// Run starts the daemon's process, and waits until it answers.
func (d *Daemon) Run(t testing.TB) {
	t.Helper()
	d.cmd = exec.Command(d.args[0], d.args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: d.spaces}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	d.ended = ended
	cmd := d.cmd
	go func() { cmd.Wait(); close(ended) }()
	if d.spaces&unix.CLONE_NEWNET != 0 {
		if err := d.inNetwork(LoopbackUp); err != nil {
			t.Fatal(err)
		}
	}
	for range 600 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := d.Client.Ping(ctx, client.PingOptions{})
		cancel()
		if err == nil {
			return
		}
		select {
		case <-ended:
			t.Fatalf("the daemon ended:\n%s", d.lastLog())
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("the daemon does not answer:\n%s", d.lastLog())
}

func (d *Daemon) lastLog() []byte {
	text, _ := os.ReadFile(d.log.Name())
	return text[max(0, len(text)-4000):]
}

// Signal sends the daemon a signal that ends it, and waits for its end and that of its containerd: the next daemon
// would take one that has ended, but has not been reaped yet, for one that runs, and would wait for it in vain.
func (d *Daemon) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(d.dir, "exec", "containerd", "containerd.pid"))
	containerd, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := d.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(time.Minute):
		t.Fatalf("the daemon does not end:\n%s", d.lastLog())
	}
	for range 600 {
		if containerd == 0 || unix.Kill(containerd, 0) != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("containerd (%d) has not ended:\n%s", containerd, d.lastLog())
}

// removeNetworks removes the networks that the test has made: the bridge of each is a device of the machine.
func (d *Daemon) removeNetworks(ctx context.Context) {
	list, err := d.Client.NetworkList(ctx,
		client.NetworkListOptions{Filters: make(client.Filters).Add("type", "custom")})
	if err != nil {
		return
	}
	for _, n := range list.Items {
		d.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
	}
}

// remove ends the daemon and everything that it has started, and removes its folders.
func (d *Daemon) remove(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if list, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil {
		for _, c := range list.Items {
			d.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	d.removeNetworks(ctx)
	d.Client.Close()
	if d.cmd != nil && d.cmd.Process != nil {
		d.cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(30 * time.Second):
			d.cmd.Process.Kill()
			<-d.ended
		}
	}
	d.log.Close()
	// Twice at least: what watches a container of Podman's starts a process that cleans up, and mounts again.
	for range 50 {
		killed := d.killAll()
		d.unmount()
		if err := os.RemoveAll(d.dir); err == nil && !killed {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the folder of a Docker daemon stays: %s", d.dir)
}

// killAll kills the processes that a killed daemon has left, and reports whether there were any: its containerd with
// the shims, and before them what these have started, which would live on.
func (d *Daemon) killAll() bool {
	var own, started []int
	for _, pid := range proc.PIDs() {
		if d.owns(pid) {
			own = append(own, pid)
		} else if d.owns(proc.Parent(pid)) {
			started = append(started, pid)
		}
	}
	for _, pid := range append(started, own...) {
		unix.Kill(pid, unix.SIGKILL)
	}
	return len(own)+len(started) > 0
}

// unmount unmounts what is mounted in the daemon's folder.
func (d *Daemon) unmount() {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], d.dir) {
			unix.Unmount(fields[1], unix.MNT_DETACH)
		}
	}
}

// owns reports whether a process is the daemon, or its containerd, or watches one of its containers.
func (d *Daemon) owns(pid int) bool {
	return strings.Contains(strings.Join(proc.Args(pid), " "), d.dir)
}

// Remains lists what there is of containers: the daemon's containers, volumes and networks, and processes.
func (d *Daemon) Remains() (found []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	containers, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true})
	volumes, verr := d.Client.VolumeList(ctx, client.VolumeListOptions{})
	networks, nerr := d.Client.NetworkList(ctx, client.NetworkListOptions{})
	if err := errors.Join(err, verr, nerr); err != nil {
		return []string{err.Error()}
	}
	for _, c := range containers.Items {
		found = append(found, fmt.Sprintf("container %v %s", c.Names, c.State))
	}
	for _, v := range volumes.Items {
		found = append(found, "volume "+v.Name)
	}
	for _, n := range networks.Items {
		if n.Name != "none" && n.Name != "host" && n.Name != "bridge" && n.Name != "podman" {
			found = append(found, "network "+n.Name)
		}
	}
	for _, pid := range d.monitors() {
		found = append(found, processLine(pid))
	}
	return found
}

// monitors returns the processes of the daemon that watch one container each.
func (d *Daemon) monitors() (pids []int) {
	for _, pid := range proc.PIDs() {
		args := strings.Join(proc.Args(pid), " ")
		isMonitor := strings.Contains(args, "containerd-shim") || strings.Contains(args, "conmon")
		if isMonitor && strings.Contains(args, d.dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processLine describes a process and those below it.
func processLine(pid int) string {
	line := "process " + strings.Join(proc.Args(pid), " ")
	for _, child := range children(pid) {
		line += ", below it " + strings.Join(proc.Args(child), " ")
	}
	return line
}

func children(pid int) []int {
	return slices.DeleteFunc(proc.PIDs(), func(p int) bool { return proc.Parent(p) != pid })
}

// RemainsOfKilled is Remains without what a daemon loses that is killed while it makes a container, and what nobody can
// know for Sandlot's by Docker's API:
//   - a shim with no container on the daemon, and no program below it. Debian's containerd 1.6.20 leaves one
//     (https://github.com/containerd/containerd/issues/6860), perhaps with the `runc init` that waits to become the
//     container's program;
//   - a volume without a name and without labels. The daemon makes the volume, then notes the labels that it was given.
func (d *Daemon) RemainsOfKilled() []string {
	remains := d.Remains()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	containers, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true})
	volumes, verr := d.Client.VolumeList(ctx, client.VolumeListOptions{})
	if err := errors.Join(err, verr); err != nil {
		return append(remains, err.Error())
	}
	return slices.DeleteFunc(remains, func(r string) bool {
		if shim, found := strings.CutPrefix(strings.TrimSuffix(r, ", below it runc init"), "process "); found {
			return !strings.Contains(shim, "below it") && !slices.ContainsFunc(containers.Items,
				func(c container.Summary) bool { return strings.Contains(shim, "-id "+c.ID+" ") })
		}
		return slices.ContainsFunc(volumes.Items, func(v volume.Volume) bool {
			return r == "volume "+v.Name && len(v.Labels) == 0 && nameless.MatchString(v.Name)
		})
	})
}

// nameless are the names that the daemon gives to volumes without one.
var nameless = regexp.MustCompile(`^[0-9a-f]{64}$`)

// PID returns the id of the first process of a container, on the host.
func (d *Daemon) PID(t testing.TB, name string) int {
	t.Helper()
	found, err := d.Client.ContainerInspect(t.Context(), name, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Container.State.Pid
}

// Kill kills the first process of a container, as the kernel would, and waits until the daemon knows.
func (d *Daemon) Kill(t testing.TB, name string) {
	t.Helper()
	pid := d.PID(t, name)
	if pid <= 1 {
		t.Fatalf("the container %s has no process", name)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if d.PID(t, name) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the container does not die")
}

// importBase gives the daemon the image BaseImage.
func (d *Daemon) importBase(t testing.TB, archive string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	answer, err := d.Client.ImageImport(t.Context(), client.ImageImportSource{Source: f, SourceName: "-"}, BaseImage,
		client.ImageImportOptions{Changes: []string{"ENV FROM_IMAGE=yes"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(answer); err != nil || strings.Contains(out.String(), `"error"`) {
		t.Fatalf("importing the base image: %v %s", err, out.String())
	}
}
