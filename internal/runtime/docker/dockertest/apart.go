package dockertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
)

// apart starts a program in a mount namespace whose folder for temporary files has nothing but one folder. Its
// arguments are both folders, and the program's. The folder is mounted by its descriptor, since its path leads to the
// empty one by then.
var apart = []string{"sh", "-ec", `mount --make-rprivate /
exec 3< "$1"
mount -t tmpfs none "$0"
mkdir "$1"
mount --no-canonicalize --bind /proc/self/fd/3 "$1"
exec 3<&-
shift
exec "$@"`}

// StartApart starts a Docker daemon that sees no file of a test, as one in a virtual machine does not: it has mounts of
// its own, and another folder for temporary files. Further arguments are dockerd's.
func StartApart(t testing.TB, args ...string) *Daemon {
	t.Helper()
	imagetest.Install(t, "dockerd", "docker.io")
	d := startAs(t, unix.CLONE_NEWNS, func(dir string) []string {
		return join(apart, []string{os.TempDir(), dir}, dockerd(dir), args)
	})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !d.sees(t, d.log.Name()) || d.sees(t, file) {
		t.Fatal("the daemon sees files of tests, or not its own")
	}
	return d
}

// sees reports whether the daemon sees a file of this machine.
func (d *Daemon) sees(t testing.TB, path string) bool {
	t.Helper()
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: BaseImage, Cmd: []string{"true"}},
		HostConfig: &container.HostConfig{NetworkMode: "none",
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: path, Target: "/file", ReadOnly: true}}}})
	if err != nil {
		if !strings.Contains(err.Error(), "bind source path does not exist") {
			t.Fatal(err)
		}
		return false
	}
	if _, err := d.Client.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	return true
}
