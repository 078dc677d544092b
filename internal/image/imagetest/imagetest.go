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
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/oci/rootfs"
)

// BaseArchive returns the path of a tar archive with the root file system of a small Debian with Python, Node, bash,
// procps and Git. It is made once, and kept in the folder of the tools.
func BaseArchive(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SANDLOT_TOOLS")
	if dir == "" {
		dir = filepath.Join(sources(t), ".tools")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "base-1.tar")
	defer lock(t, path+".lock")()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	install(t, "mmdebstrap")
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

// install installs a Debian package, unless its program of the same name is there.
func install(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	defer lock(t, filepath.Join(os.TempDir(), "sandlot-test-apt.lock"))()
	for _, args := range []string{"update", "install -y --no-install-recommends " + program} {
		cmd := exec.Command("apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get %s: %v\n%s", args, err, out)
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
