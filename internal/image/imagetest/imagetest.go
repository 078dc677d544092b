// Package imagetest makes root file systems for tests: it owns the one Debian that all of them use, which the
// package manager of this machine makes, without any container registry.
package imagetest

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/oci/rootfs"
)

// BaseArchive returns the path of a tar archive with the root file system of a small Debian with Python, pip, Node,
// npm, bash, procps and Git. It is made once, and kept in the folder of the tools.
func BaseArchive(t testing.TB) string {
	t.Helper()
	dir := Tools(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "base-3.tar")
	defer lock(t, path+".lock")()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	Install(t, "mmdebstrap", "mmdebstrap")
	Install(t, "npm", "npm")
	cmd := exec.Command("mmdebstrap", "--variant=minbase",
		"--include=python3-minimal,python3,python3-pip,python3-venv,nodejs,ca-certificates,bash,procps,git,curl",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		// Debian's own npm needs 300 packages more. This one is the last for Debian's Node.
		`--customize-hook=npm install --global --prefix "$1/usr/local" --no-audit --no-fund npm@10`,
		"bookworm", path+".new.tar")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	if err := os.Rename(path+".new.tar", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Tools returns the folder of the tools that `make tools` installs.
func Tools(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("SANDLOT_TEST_TOOLS"); dir != "" {
		return dir
	}
	return filepath.Join(sources(t), ".tools")
}

// Install installs Debian's packages, unless their program is there.
func Install(t testing.TB, program string, packages ...string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	defer lock(t, filepath.Join(os.TempDir(), "sandlot-test-apt.lock"))()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"},
		packages...)} {
		cmd := exec.Command("apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
		// Debian would start the services that it installs.
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
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// sources returns the folder with the sources of this module.
func sources(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above this folder: ", err)
	return ""
}

// Entry is an entry of an archive. Size is that of Content.
type Entry struct {
	tar.Header
	Content []byte
}

// Archive returns entries as a layer of an image.
func Archive(t testing.TB, entries ...Entry) rootfs.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.Content))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
}

// Write makes an EROFS file of layers, the lowest first.
func Write(t testing.TB, path string, layers ...rootfs.Layer) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := rootfs.Write(context.Background(), f, layers, rootfs.Limits{}); err != nil {
		t.Fatal(err)
	}
}

// File returns the archive at path as a layer.
func File(path string) rootfs.Layer {
	return func(context.Context) (io.ReadCloser, error) { return os.Open(path) }
}

// Mirrors returns the hosts, with their ports, from which the package manager of an archive of BaseArchive installs.
func Mirrors(archive string) (hosts []string, err error) {
	sources, err := exec.Command("tar", "-xOf", archive, "./etc/apt/sources.list").Output()
	for _, source := range regexp.MustCompile(`http://([^/ ]+)`).FindAllStringSubmatch(string(sources), -1) {
		hosts = append(hosts, source[1]+":80")
	}
	return hosts, err
}
