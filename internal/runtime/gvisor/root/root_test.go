package root

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/image"
	"sandlot/internal/image/imagetest"
	"sandlot/internal/oci/rootfs"
)

// entries reads the layer of a root file system: the headers and contents by name.
func entries(t *testing.T, f FS) map[string]imagetest.Entry {
	t.Helper()
	archive, err := os.Open(f.Layer)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	found := map[string]imagetest.Entry{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		found[h.Name] = imagetest.Entry{Header: *h, Content: content}
	}
}

// forImage returns the root file system of an image with these entries, and of a template with these files.
func forImage(t *testing.T, files map[string][]byte, user image.User, all ...imagetest.Entry) (FS, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.erofs")
	imagetest.Write(t, file, imagetest.Archive(t, all...))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return New(t.Context(), dir, false, noneInUse).For(&image.Template{Name: "x", RootfsImage: file, Files: files, User: user})
}

func folder(name string, mode int64) imagetest.Entry {
	return imagetest.Entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}}
}

func link(name, target string) imagetest.Entry {
	return imagetest.Entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}}
}

func file(name, content string) imagetest.Entry {
	return imagetest.Entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600}, Content: []byte(content)}
}

// An image gets the mount points that it lacks, and keeps the modes and owners of its folders.
func TestLayerOfImage(t *testing.T) {
	home := folder("home", 0o711)
	home.Uid, home.Gid = 7, 8
	f, err := forImage(t, nil, image.User{UID: 1000, GID: 100, Home: "/home/app"}, folder("etc", 0o750), home,
		folder("workspace", 0o700), file("etc/hosts", "the image's"), file("etc/passwd", "the image's"),
		link("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"), link("var", "/data"))
	if err != nil {
		t.Fatal(err)
	}
	got := entries(t, f)
	for name, want := range map[string]tar.Header{
		"./":                {Typeflag: tar.TypeDir, Mode: 0o755},
		"./tmp/":            {Typeflag: tar.TypeDir, Mode: 0o1777},
		"./tmp/.sandlot":    {Typeflag: tar.TypeReg, Mode: 0o644},
		"./run/sandlot/":    {Typeflag: tar.TypeDir, Mode: 0o755},
		"./proc/":           {Typeflag: tar.TypeDir, Mode: 0o755},
		"./data/tmp/":       {Typeflag: tar.TypeDir, Mode: 0o1777}, // where the link leads
		"./etc/":            {Typeflag: tar.TypeDir, Mode: 0o750},
		"./etc/hosts":       {Typeflag: tar.TypeReg, Mode: 0o644},
		"./etc/resolv.conf": {Typeflag: tar.TypeReg, Mode: 0o644},
		"./home/":           {Typeflag: tar.TypeDir, Mode: 0o711, Uid: 7, Gid: 8},
		"./home/app/":       {Typeflag: tar.TypeDir, Mode: 0o700, Uid: 1000, Gid: 100},
	} {
		e, ok := got[name]
		h := e.Header
		if !ok || h.Typeflag != want.Typeflag || h.Mode != want.Mode || h.Uid != want.Uid || h.Gid != want.Gid {
			t.Errorf("%s is %v with mode %o of %d:%d", name, ok, h.Mode, h.Uid, h.Gid)
		}
	}
	if text := string(got["./etc/resolv.conf"].Content); !strings.HasPrefix(text, "nameserver 127.0.0.1\n") {
		t.Errorf("resolv.conf is %q", text)
	}
	for name := range got {
		if strings.HasPrefix(name, "./workspace") || name == "./etc/passwd" || strings.HasPrefix(name, "./var") {
			t.Errorf("the layer hides %s of the image", name)
		}
	}
	if names, err := os.ReadDir(f.Path); err != nil || len(names) != 0 {
		t.Errorf("the folder of the root has %v, %v", names, err)
	}
}

// The template's files go where programs of the image look, and nowhere else.
func TestFilesOfTemplate(t *testing.T) {
	f, err := forImage(t, map[string][]byte{"etc/ssl/certs/all.crt": []byte("certificates"),
		"etc/ssl/cert.pem": []byte("certificates"), "etc/pki/tls/cert.pem": []byte("certificates"),
		"etc/pip.conf": []byte("pip"), "etc/uv/uv.toml": []byte("uv"), "etc/alias.pem": []byte("certificates"),
		"etc/ssl/certs/0a0b0c0d.0": []byte("one"), ".yarnrc.yml": []byte("yarn")},
		image.User{}, folder("etc", 0o755), folder("etc/ssl", 0o755), link("etc/ssl/certs", "/usr/certs"),
		folder("usr/certs", 0o755), link("etc/alias.pem", "ssl/cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	got := entries(t, f)
	for name, want := range map[string]string{"./usr/certs/all.crt": "certificates",
		"./etc/ssl/cert.pem": "certificates",
		"./etc/pip.conf":     "pip", "./etc/uv/uv.toml": "uv", "./.yarnrc.yml": "yarn"} {
		e := got[name]
		if e.Typeflag == tar.TypeLink { // to a file with the same content
			e = got[e.Linkname]
		}
		if string(e.Content) != want {
			t.Errorf("%s is %q", name, e.Content)
		}
	}
	for _, name := range []string{"./etc/pki/", "./etc/alias.pem", "./etc/ssl/certs/", "./usr/certs/0a0b0c0d.0"} {
		if _, ok := got[name]; ok {
			t.Errorf("there is %s", name)
		}
	}
}

// Whatever links an image has, its layer stays in the sandbox's root file system.
func TestHostileLinks(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	for what, all := range map[string][]imagetest.Entry{
		"up":       {link("etc", "../../../../../../../.."+filepath.Dir(canary)), link("run", "../../..")},
		"absolute": {link("etc", filepath.Dir(canary)), link("tmp", "/"), link("workspace", canary)},
		"dangling": {link("etc", "nowhere/etc"), link("run", "/a/b/c"), link("tmp", "x")},
	} {
		t.Run(what, func(t *testing.T) {
			f, err := forImage(t, map[string][]byte{"etc/canary": []byte("x")}, image.User{}, all...)
			if err != nil {
				t.Fatal(err)
			}
			for name := range entries(t, f) {
				if !strings.HasPrefix(name, "./") || strings.Contains(name, "..") || strings.Contains(name, "//") {
					t.Errorf("the layer has %q", name)
				}
			}
			if _, err := os.Lstat(canary); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the canary: %v", err)
			}
		})
	}
	for what, e := range map[string]imagetest.Entry{"a loop": link("run", "run"), "a file": file("run", "x")} {
		if _, err := forImage(t, nil, image.User{}, e); err == nil || !strings.Contains(err.Error(), "/run") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := forImage(t, nil, image.User{UID: 1, Home: "/dev/null"}, file("dev/null", "")); err != nil {
		t.Errorf("a home that is not a folder: %v", err)
	}
}

// A folder of the operator's is copied, and nothing is written into it. A change in it makes another copy.
func TestFolderOfOperator(t *testing.T) {
	folder := t.TempDir()
	inside := func(name string) string { return filepath.Join(folder, name) }
	err := errors.Join(os.MkdirAll(inside("usr/bin"), 0o755),
		os.WriteFile(inside("usr/bin/tool"), []byte("tool"), 0o755),
		os.Link(inside("usr/bin/tool"), inside("usr/bin/same")), os.Symlink("usr/bin", inside("bin")),
		os.WriteFile(inside("secret"), []byte("x"), 0o600), unix.Mkfifo(inside("pipe"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	before, err := fingerprint(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	dir, used := t.TempDir(), map[string]bool{}
	of := func() FS {
		f, err := New(t.Context(), dir, false, func() (map[string]bool, error) { return used, nil }).For(&image.Template{Name: "own", Rootfs: folder,
			Files: map[string][]byte{"etc/pip.conf": []byte("pip")}})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := of()
	if after, err := fingerprint(t.Context(), folder); err != nil || after != before {
		t.Errorf("the folder was changed: %v", err)
	}
	f, err := os.Open(first.Image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i, err := rootfs.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := fs.ReadFile(i, "bin/same"); err != nil || string(text) != "tool" {
		t.Errorf("through a link: %q, %v", text, err)
	}
	info, err := i.Lstat("usr/bin/tool")
	if err != nil || info.Sys().(*rootfs.Stat).Links != 2 || info.Mode() != 0o755 {
		t.Errorf("a file with two names: %v, %v", info, err)
	}
	if info, err := i.Lstat("pipe"); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("a pipe: %v, %v", info, err)
	}
	if got := entries(t, first)["./etc/pip.conf"].Content; !bytes.Equal(got, []byte("pip")) {
		t.Errorf("the template's file is %q", got)
	}
	if again := of(); again.Image != first.Image {
		t.Error("the next server copied the folder again")
	}
	if err := os.Link(inside("secret"), filepath.Join(t.TempDir(), "backup")); err != nil {
		t.Fatal(err)
	}
	if again := of(); again.Image != first.Image {
		t.Error("the folder was copied again since a file has a second name elsewhere")
	}
	last := first
	for _, needed := range []bool{true, false} { // by a sandbox that sleeps
		used[first.Image] = needed
		if err := os.WriteFile(inside("usr/bin/tool"), fmt.Appendf(nil, "newer %v", needed), 0o755); err != nil {
			t.Fatal(err)
		}
		second := of()
		if second.Image == last.Image {
			t.Error("a change in the folder was not seen")
		}
		last = second
		if _, err := os.Stat(first.Image); errors.Is(err, fs.ErrNotExist) == needed {
			t.Errorf("it is needed: %v; the older copy: %v", needed, err)
		}
	}
}

func noneInUse() (map[string]bool, error) { return nil, nil }

// What a server left that ended while it made a root file system is removed, and not what another one makes.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	long := time.Now().Add(-2 * staleAfter)
	for _, name := range []string{".making-old.tar", ".making-new.tar", "kept.tar", "x-0.tar.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if name == ".making-new.tar" {
			continue
		}
		if err := os.Chtimes(filepath.Join(dir, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(t.Context(), dir, false, noneInUse).For(&image.Template{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.tar*"))
	if want := []string{filepath.Join(dir, ".making-new.tar"), filepath.Join(dir, "kept.tar")}; err != nil ||
		!slices.Equal(left, want) {
		t.Errorf("left are %q, %v", left, err)
	}
}

// A root file system is made once for each template, and that of a replaced one is forgotten.
func TestMadeOnce(t *testing.T) {
	s := New(t.Context(), t.TempDir(), false, noneInUse)
	template := func(text string) *image.Template {
		return &image.Template{Name: "x", Files: map[string][]byte{"etc/motd": []byte(text)}}
	}
	first := template("first")
	before, err := s.For(first)
	if err == nil {
		err = os.RemoveAll(before.Path) // making it again would write it
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.For(first); err != nil || again.Path != before.Path {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := os.Stat(before.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made twice: %v", err)
	}
	for _, text := range []string{"second", "third"} {
		if f, err := s.For(template(text)); err != nil || f.Path == before.Path || len(s.made) != 1 {
			t.Errorf("%+v, %v; %d are kept", f, err, len(s.made))
		}
	}
}

// Templates of one name, and with the same files, are booted from at the same time.
func TestMadeAtOnce(t *testing.T) {
	erofs := filepath.Join(t.TempDir(), "image.erofs")
	imagetest.Write(t, erofs, imagetest.Archive(t, folder("etc", 0o755)))
	files := map[string][]byte{"etc/motd": bytes.Repeat([]byte("x"), 1<<20)}
	for range 5 {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s := New(t.Context(), dir, false, noneInUse)
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range 8 {
			all.Go(func() {
				<-begin
				f, err := s.For(&image.Template{Name: "x", RootfsImage: erofs, Files: files})
				if err != nil {
					t.Error(err)
				} else if got := entries(t, f)["./etc/motd"]; len(got.Content) != 1<<20 {
					t.Errorf("the layer has %d bytes of the file", len(got.Content))
				}
			})
		}
		close(begin)
		all.Wait()
	}
}
