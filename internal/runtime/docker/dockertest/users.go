package dockertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
)

const (
	// Nobody is the user of rootless daemons.
	Nobody = 65534
	// FirstUser is root of the containers of StartRemapped, on the host.
	FirstUser = 3_000_000
)

// withUsers is a program that starts another one in a mount namespace in which a user has ids for containers. Its
// arguments are the file that says so, and the other one's.
var withUsers = []string{"sh", "-ec",
	`mount --bind "$0" /etc/subuid; mount --bind "$0" /etc/subgid; exec "$@"`}

// subordinate writes the file of the ids that users have for containers.
func subordinate(t testing.TB, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "subids")
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err != nil { // to be mounted over
			t.Fatal(err)
		} else {
			f.Close()
		}
	}
	text := fmt.Appendf(nil, "nobody:%d:65536\nnogroup:%[1]d:65536\n", FirstUser)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// StartRemapped starts a Docker daemon that maps the users of containers (userns-remap), and has mounts of its own.
func StartRemapped(t testing.TB, args ...string) *Daemon {
	t.Helper()
	imagetest.Install(t, "dockerd", "docker.io")
	return startAs(t, unix.CLONE_NEWNS, func(dir string) []string {
		if err := os.Chmod(dir, 0o711); err != nil { // the users of containers have to get into the daemon's folder
			t.Fatal(err)
		}
		return join(withUsers, []string{subordinate(t, dir)}, dockerd(dir), []string{"--userns-remap=nobody:nogroup"},
			args)
	})
}

// StartRootless starts a Docker daemon of an unprivileged user, Nobody, which has mounts of its own.
func StartRootless(t testing.TB) *Daemon {
	t.Helper()
	imagetest.Install(t, "dockerd", "docker.io")
	imagetest.Install(t, "rootlesskit", "rootlesskit")
	imagetest.Install(t, "newuidmap", "uidmap")
	return startAs(t, unix.CLONE_NEWNS, func(dir string) []string {
		own := filepath.Join(dir, "own")
		err := errors.Join(os.Mkdir(own, 0o700), os.Chown(own, Nobody, Nobody), os.Chown(dir, Nobody, Nobody))
		if err != nil {
			t.Fatal(err)
		}
		return join(withUsers, []string{subordinate(t, dir), "setpriv", fmt.Sprint("--reuid=", Nobody),
			fmt.Sprint("--regid=", Nobody), "--clear-groups", "env", "HOME=" + own, "XDG_RUNTIME_DIR=" + own,
			"rootlesskit", "--state-dir=" + filepath.Join(own, "kit"), "--net=host", "--copy-up=/etc", "--copy-up=/run",
			"--propagation=rslave", "sh", "-ec",
			`rm -f /run/docker /run/containerd /run/xtables.lock; exec "$0" "$@"`}, dockerd(dir), []string{"--rootless"})
	})
}

// Use returns a daemon that another process has started, which ends it.
func Use(t testing.TB, host string) *Daemon {
	t.Helper()
	d := &Daemon{Host: host, dir: filepath.Dir(strings.TrimPrefix(host, "unix://"))}
	var err error
	if d.Client, err = client.New(client.WithHost(host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Client.Close() })
	return d
}

func join(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// HasOwnMounts reports whether the daemon does not see what is mounted on the machine after its start.
func (d *Daemon) HasOwnMounts() bool { return d.spaces&unix.CLONE_NEWNS != 0 }

// ShowMount gives a daemon with mounts of its own what is mounted at a path of the machine, as systems do on which
// mounts are propagated.
func (d *Daemon) ShowMount(t testing.TB, path string) {
	t.Helper()
	copied, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	err = d.inMounts(func() error {
		return unix.MoveMount(copied, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inMounts calls a function in the mount namespace of the daemon.
func (d *Daemon) inMounts(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and no other gets its namespace
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", d.cmd.Process.Pid))
		if err != nil {
			done <- err
			return
		}
		defer namespace.Close()
		err = unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			done <- fmt.Errorf("entering the daemon's mounts: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}
