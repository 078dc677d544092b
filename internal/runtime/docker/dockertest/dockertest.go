// Package dockertest installs and starts Docker's engine, and Podman, for tests. It owns the daemons that it
// starts: each has
// folders of its own, makes no bridge and no rule of the firewall, and is gone with its test.
package dockertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
)

// BaseImage is the name of the image that each daemon has: Debian with Python, Node, bash and procps.
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
}

// Install installs Debian's packages, unless their program is there.
func Install(t testing.TB, program string, packages ...string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	unlock := lock(t, filepath.Join(os.TempDir(), "sandlot-test-apt.lock"))
	defer unlock()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"},
		packages...)} {
		cmd := exec.Command("apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
		// Debian would start the service that it installs.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// lock takes a lock that other processes honor, too.
func lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// Start starts a Docker daemon that has BaseImage. Further arguments are dockerd's.
func Start(t testing.TB, args ...string) *Daemon {
	t.Helper()
	Install(t, "dockerd", "docker.io")
	return start(t, func(dir string) []string {
		return append([]string{"dockerd", "--data-root", filepath.Join(dir, "data"),
			"--exec-root", filepath.Join(dir, "exec"), "-H", "unix://" + filepath.Join(dir, "socket"),
			"--pidfile", filepath.Join(dir, "dockerd.pid"), "--bridge=none", "--iptables=false",
			"--ip6tables=false", "--ip-forward=false", "--ip-masq=false"}, args...)
	})
}

// StartPodman starts Podman's service, which has BaseImage too. Debian's crun refuses machines with both versions of
// control groups.
func StartPodman(t testing.TB) *Daemon {
	t.Helper()
	Install(t, "podman", "podman", "runc")
	return start(t, func(dir string) []string {
		return []string{"podman", "--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "run"),
			"--runtime", "/usr/sbin/runc", "--cgroup-manager", "cgroupfs", "system", "service", "--time=0",
			"unix://" + filepath.Join(dir, "socket")}
	})
}

func start(t testing.TB, args func(dir string) []string) *Daemon {
	t.Helper()
	base := BaseArchive(t)
	dir, err := os.MkdirTemp("", "sandlot-docker-") // short: the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Host: "unix://" + filepath.Join(dir, "socket"), dir: dir, args: args(dir)}
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
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	d.ended = ended
	cmd := d.cmd
	go func() { cmd.Wait(); close(ended) }()
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

// remove ends the daemon and everything that it has started, and removes its folders.
func (d *Daemon) remove(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if list, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil {
		for _, c := range list.Items {
			d.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
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
	for _, pid := range proc.PIDs() { // containerd and its shims, after a daemon that was killed
		if strings.Contains(strings.Join(proc.Args(pid), " "), d.dir) {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], d.dir) {
			unix.Unmount(fields[1], unix.MNT_DETACH)
		}
	}
	for range 50 {
		if err := os.RemoveAll(d.dir); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the folder of a Docker daemon stays: %s", d.dir)
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
	for _, pid := range proc.PIDs() {
		args := strings.Join(proc.Args(pid), " ")
		isMonitor := strings.Contains(args, "containerd-shim") || strings.Contains(args, "conmon")
		if isMonitor && strings.Contains(args, d.dir) {
			found = append(found, "process "+args)
		}
	}
	return found
}

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

// BaseArchive returns the path of the root file system of BaseImage, as a tar archive. It is made once, and kept in
// the folder of the tools.
func BaseArchive(t testing.TB) string {
	t.Helper()
	Install(t, "mmdebstrap", "mmdebstrap")
	dir := os.Getenv("SANDLOT_TOOLS")
	if dir == "" {
		dir = filepath.Join(sources(t), ".tools")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "base-1.tar")
	unlock := lock(t, path+".lock")
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command("mmdebstrap", "--variant=minbase",
		"--include=python3-minimal,python3,nodejs,ca-certificates,bash,procps,git",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*", "bookworm", path+".new.tar")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	if err := os.Rename(path+".new.tar", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// sources returns the folder with the sources of this module.
func sources(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above this folder: ", err)
	return ""
}
