package rootfs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestRealTree: the machine's Python library, packed by the machine's own tar, is read back equal.
func TestRealTree(t *testing.T) {
	const folder = "/usr/lib/python3"
	from, err := filepath.EvalSymlinks(folder)
	if err != nil {
		t.Fatal(err)
	}
	compareTree(t, from, tarOf(t, from, "--format=posix", "."))
	// The standard library is larger; its folder has the version in its name.
	all, err := filepath.Glob(folder + ".*")
	if err != nil || len(all) == 0 {
		t.Fatalf("there is no folder %s.*: %v", folder, err)
	}
	compareTree(t, all[0], tarOf(t, all[0], "--format=gnu", "."))
}

// compareTree compares a folder of the host with the image of an archive of it.
func compareTree(t *testing.T, folder string, data []byte) {
	t.Helper()
	image, s := write(t, data)
	t.Logf("%s: %d entries, %d MiB", folder, s.Entries, s.Bytes>>20)
	found := 0
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		found++
		name, _ = filepath.Rel(folder, name)
		want, err := d.Info()
		if err != nil {
			return err
		}
		got, err := image.Lstat(name)
		if err != nil {
			return err
		}
		host, own := want.Sys().(*syscall.Stat_t), got.Sys().(*Stat)
		if got.Mode() != want.Mode() || own.UID != host.Uid || own.GID != host.Gid ||
			got.ModTime().Unix() != want.ModTime().Unix() {
			t.Errorf("%s: %v %+v, want %v %+v", name, got.Mode(), own, want.Mode(), host)
		}
		switch want.Mode().Type() {
		case 0:
			a, err := fs.ReadFile(image, name)
			if err != nil {
				return err
			}
			if b, err := os.ReadFile(filepath.Join(folder, name)); err != nil || !bytes.Equal(a, b) {
				t.Errorf("%s: other content (%v)", name, err)
			}
		case fs.ModeSymlink:
			a, err := image.ReadLink(name)
			if err != nil {
				return err
			}
			if b, err := os.Readlink(filepath.Join(folder, name)); err != nil || a != b {
				t.Errorf("%s: leads to %q, not %q (%v)", name, a, b, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	there := 0
	fs.WalkDir(image, ".", func(string, fs.DirEntry, error) error { there++; return nil })
	if there != found || found < 20 {
		t.Errorf("%d files are in the image, %d in the folder", there, found)
	}
}

// TestReader: what the reader does with links, and what it refuses.
func TestReader(t *testing.T) {
	image, _ := write(t, archive(t, dir("etc"), file("usr/etc/passwd", "root:x:0:0"),
		symlink("etc/passwd", "../usr/etc/passwd"),
		symlink("etc/group", "/usr/etc/group"), file("usr/etc/group", "root:x:0:"),
		symlink("a", "b"), symlink("b", "a"),
		symlink("out", "../../../../usr"), entry{name: "pipe", kind: '6'}))
	for name, want := range map[string]string{
		"etc/passwd": "root:x:0:0", "etc/group": "root:x:0:", "out/etc/group": "root:x:0:",
	} {
		if got, err := fs.ReadFile(image, name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"a", "a/x", "none", "etc/passwd/x", "pipe", "../etc/passwd", "/etc/passwd", ""} {
		if f, err := image.Open(name); err == nil {
			t.Errorf("%q was opened: %v", name, f)
		}
	}
	for _, name := range []string{"none", "usr/etc/none"} {
		if _, err := image.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	entries, err := image.ReadDir("usr/etc")
	if err != nil || len(entries) != 2 || entries[0].Name() != "group" {
		t.Errorf("usr/etc: %v, %v", entries, err)
	}
	if _, err := image.ReadDir("etc/passwd"); err == nil {
		t.Error("a file was read as a directory")
	}
}

// TestUncompressed: each compression is recognized by its first bytes, and errors are passed on.
func TestUncompressed(t *testing.T) {
	plain := archive(t, file("f", strings.Repeat("content", 10000)))
	var zipped, twice, zst bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(plain)
	z.Close()
	for _, half := range [][]byte{plain[:1000], plain[1000:]} {
		z := gzip.NewWriter(&twice)
		z.Write(half)
		z.Close()
	}
	e, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	e.Write(plain)
	e.Close()
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3}, zst.Bytes()...)
	read := func(data []byte) ([]byte, error) {
		r, err := Uncompressed(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	for name, data := range map[string][]byte{
		"plain": plain, "gzip": zipped.Bytes(), "two members": twice.Bytes(), "zstd": zst.Bytes(),
		"skippable": skippable,
	} {
		if got, err := read(data); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if name != "plain" {
			if _, err := read(data[:len(data)/2]); err == nil {
				t.Errorf("%s: half of it gives no error", name)
			}
		}
	}
	if got, err := read(nil); err != nil || len(got) != 0 {
		t.Errorf("nothing: %q, %v", got, err)
	}
	if out, err := exec.Command("gzip", "-c", "/etc/passwd").Output(); err != nil {
		t.Error(err)
	} else if got, err := read(out); err != nil || !bytes.Contains(got, []byte("root:")) {
		t.Errorf("the machine's own gzip: %q, %v", got, err)
	}
}
