package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/fault"
)

// An entry is one of an archive. Without a type it is a regular file.
type entry struct {
	name string
	kind byte
	data string // the content, or the target of a link
	mode int64
	more func(*tar.Header)
}

func dir(name string) entry           { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }
func file(name, data string) entry    { return entry{name: name, data: data} }
func symlink(name, to string) entry   { return entry{name: name, kind: tar.TypeSymlink, data: to} }
func link(name, to string) entry      { return entry{name: name, kind: tar.TypeLink, data: to} }
func (e entry) owned(id int) entry    { e.more = func(h *tar.Header) { h.Uid, h.Gid = id, id }; return e }
func (e entry) perm(mode int64) entry { e.mode = mode; return e }

func (e entry) header() (*tar.Header, string) {
	h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, ModTime: time.Unix(1600000000, 0)}
	data := ""
	switch e.kind {
	case 0, tar.TypeReg:
		data = e.data
		h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
	default:
		h.Linkname = e.data
	}
	if e.mode == 0 {
		h.Mode = 0o644
	}
	if e.more != nil {
		e.more(h)
	}
	return h, data
}

// archive returns a tar archive.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h, data := e.header()
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layers(archives ...[]byte) []Layer {
	var all []Layer
	for _, a := range archives {
		all = append(all, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a)), nil })
	}
	return all
}

// imageFile returns a new file for an image.
func imageFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// write makes an image that must come about, and has it checked by other programs.
func write(t *testing.T, archives ...[]byte) (*Image, Summary) {
	t.Helper()
	f := imageFile(t)
	s, err := Write(t.Context(), f, layers(archives...), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	checkByGVisor(t, f.Name())
	checkByFsck(t, f.Name())
	image, err := OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != s.Size {
		t.Fatalf("the summary says %d bytes, the file has %d (%v)", s.Size, st.Size(), err)
	}
	return image, s
}

// describe returns a line for each file of a tree: type, permissions, owner, links, and content
// or target.
func describe(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		s := info.Sys().(*Stat)
		line := fmt.Sprintf("%v %d:%d", info.Mode(), s.UID, s.GID)
		switch info.Mode().Type() {
		case 0:
			data, err := fs.ReadFile(tree, name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" links=%d ", s.Links)
			if len(data) > 60 {
				line += fmt.Sprintf("%x", sha256.Sum256(data))
			} else {
				line += string(data)
			}
		case fs.ModeSymlink:
			to, err := fs.ReadLink(tree, name)
			if err != nil {
				return err
			}
			line += " -> " + to
		case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
			line += fmt.Sprintf(" %d,%d", s.Major, s.Minor)
		}
		found[name] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// names returns the names of all files, and the contents of regular ones, in order.
func names(t *testing.T, tree fs.FS) string {
	t.Helper()
	var lines []string
	all := describe(t, tree)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		line := name
		if _, content, regular := strings.Cut(all[name], " links="); regular {
			line += "=" + content[2:]
		} else if _, to, is := strings.Cut(all[name], " -> "); is {
			line += "->" + to
		}
		if name != "." {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%s:\n got %s\nwant %s", name, got[name], line)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: is there, and must not be", name)
		}
	}
}

// TestKinds: every kind of file, with owner, mode and time.
func TestKinds(t *testing.T) {
	long := strings.Repeat("long/", 60) + strings.Repeat("n", 255)
	gnu := "gnu" + strings.Repeat("g", 250)
	device := func(name string, kind byte, major, minor int64) entry {
		return entry{name: name, kind: kind, mode: 0o660, more: func(h *tar.Header) {
			h.Devmajor, h.Devminor = major, minor
		}}
	}
	big := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB: over what is collected
	image, s := write(t, archive(t,
		dir("./").perm(0o755).owned(0),
		dir("bin"), dir("tmp").perm(0o1777), dir("secret").perm(0o700).owned(70000),
		file("bin/su", "su").perm(0o4755), file("bin/wall", "wall").perm(0o2755),
		file("empty", ""), file("block", strings.Repeat("b", 4096)), file("big", big),
		link("bin/su2", "bin/su"), link("bin/su3", "/bin/su2"),
		symlink("sh", "bin/sh"), symlink("abs", "/bin/su"), symlink("far", strings.Repeat("x/", 2047)),
		link("sh2", "sh"),
		device("null", tar.TypeChar, 1, 3), device("disk", tar.TypeBlock, 259, 70000),
		entry{name: "pipe", kind: tar.TypeFifo, mode: 0o600},
		file(long, "deep"),
		entry{name: gnu, data: "gnu", more: func(h *tar.Header) { h.Format = tar.FormatGNU }},
		entry{name: "old", data: "old", more: func(h *tar.Header) { h.ModTime = time.Unix(-5, 0) }},
		entry{name: "fine", data: "fine", more: func(h *tar.Header) {
			h.ModTime, h.Format = time.Unix(1700000000, 123456789), tar.FormatPAX
		}},
		entry{name: "ping", data: "ping", more: func(h *tar.Header) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02",
				"SCHILY.xattr.user.comment": "hello"}
		}},
		entry{name: "x", kind: tar.TypeXGlobalHeader, more: func(h *tar.Header) {
			*h = tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "x", PAXRecords: map[string]string{"comment": "git"}}
		}},
	))
	got := describe(t, image)
	for name := range got {
		if strings.HasPrefix(name, "long") && !strings.HasSuffix(name, "n") {
			delete(got, name)
		}
	}
	sum := func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }
	compare(t, got, map[string]string{
		".": "drwxr-xr-x 0:0", "bin": "drwxr-xr-x 0:0", "tmp": "dtrwxrwxrwx 0:0",
		"secret": "drwx------ 70000:70000",
		"bin/su": "urwxr-xr-x 0:0 links=3 su", "bin/su2": "urwxr-xr-x 0:0 links=3 su",
		"bin/su3": "urwxr-xr-x 0:0 links=3 su", "bin/wall": "grwxr-xr-x 0:0 links=1 wall",
		"empty": "-rw-r--r-- 0:0 links=1 ", "block": "-rw-r--r-- 0:0 links=1 " + sum(strings.Repeat("b", 4096)),
		"big": "-rw-r--r-- 0:0 links=1 " + sum(big),
		"sh":  "Lrwxrwxrwx 0:0 -> bin/sh", "sh2": "Lrwxrwxrwx 0:0 -> bin/sh", "abs": "Lrwxrwxrwx 0:0 -> /bin/su",
		"far":  "Lrwxrwxrwx 0:0 -> " + strings.Repeat("x/", 2047),
		"null": "Dcrw-rw---- 0:0 1,3", "disk": "Drw-rw---- 0:0 259,70000", "pipe": "prw------- 0:0",
		long: "-rw-r--r-- 0:0 links=1 deep", gnu: "-rw-r--r-- 0:0 links=1 gnu", "old": "-rw-r--r-- 0:0 links=1 old",
		"fine": "-rw-r--r-- 0:0 links=1 fine", "ping": "-rw-r--r-- 0:0 links=1 ping",
	})
	for name, want := range map[string]time.Time{
		"old": time.Unix(-5, 0), "fine": time.Unix(1700000000, 123456789), "bin/su": time.Unix(1600000000, 0),
	} {
		if info, err := image.Lstat(name); err != nil || !info.ModTime().Equal(want) {
			t.Errorf("%s: %v, %v; want %v", name, info, err, want)
		}
	}
	if s.Xattrs != 2 {
		t.Errorf("the summary counts %d extended attributes, not 2", s.Xattrs)
	}
	a, _ := image.Lstat("bin/su")
	b, _ := image.Lstat("bin/su3")
	if a.Sys().(*Stat).Inode != b.Sys().(*Stat).Inode {
		t.Error("hard links have different inodes")
	}
}

// TestLayers: what lies over what.
func TestLayers(t *testing.T) {
	base := []entry{dir("a"), file("a/1", "one"), file("a/2", "two"), dir("a/sub"), file("a/sub/3", "three"),
		file("b", "bee")}
	for name, c := range map[string]struct {
		layers [][]entry
		want   string
	}{
		"a file over a file": {
			[][]entry{base, {file("a/1", "new")}},
			"a a/1=new a/2=two a/sub a/sub/3=three b=bee"},
		"a file over a directory": {[][]entry{base, {file("a", "file")}}, "a=file b=bee"},
		"a directory over a file": {
			[][]entry{base, {dir("b"), file("b/x", "x")}},
			"a a/1=one a/2=two a/sub a/sub/3=three b b/x=x"},
		"a whiteout of a file": {[][]entry{base, {file("a/.wh.1", "")}}, "a a/2=two a/sub a/sub/3=three b=bee"},
		"of a directory":       {[][]entry{base, {file(".wh.a", "")}}, "b=bee"},
		"of nothing": {
			[][]entry{base, {file(".wh.zzz", ""), file("q/.wh.zz", "")}},
			"a a/1=one a/2=two a/sub a/sub/3=three b=bee q"},
		"and a file again": {
			[][]entry{base, {file(".wh.b", "")}, {file("b", "again")}},
			"a a/1=one a/2=two a/sub a/sub/3=three b=again"},
		"whiteout, then file": {
			[][]entry{base, {file("a/.wh.1", ""), file("a/1", "same")}},
			"a a/1=same a/2=two a/sub a/sub/3=three b=bee"},
		"file, then whiteout": {
			[][]entry{base, {file("a/1", "same"), file("a/.wh.1", "")}},
			"a a/1=same a/2=two a/sub a/sub/3=three b=bee"},
		"whiteout, then directory": {[][]entry{base, {file(".wh.a", ""), dir("a"), file("a/x", "x")}}, "a a/x=x b=bee"},
		"directory, then whiteout": {[][]entry{base, {dir("a"), file("a/x", "x"), file(".wh.a", "")}}, "a a/x=x b=bee"},
		"an opaque directory": {
			[][]entry{base, {dir("a"), file("a/x", "x"), file("a/.wh..wh..opq", "")}},
			"a a/x=x b=bee"},
		"opaque first": {[][]entry{base, {file("a/.wh..wh..opq", ""), file("a/x", "x")}}, "a a/x=x b=bee"},
		"opaque below": {
			[][]entry{base, {file("a/sub/.wh..wh..opq", "")}},
			"a a/1=one a/2=two a/sub b=bee"},
		"an opaque root": {[][]entry{base, {file(".wh..wh..opq", ""), file("x", "x")}}, "x=x"},
		"whiteouts in the lowest": {
			[][]entry{{file(".wh.gone", ""), dir("d"), file("d/.wh.x", ""), file("d/.wh..wh..opq", "")}},
			"d"},
		"files of AUFS": {
			[][]entry{base, {dir(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x"), file(".wh..wh.aufs", "x")}},
			"a a/1=one a/2=two a/sub a/sub/3=three b=bee"},
		"two whiteouts in a row": {[][]entry{base, {file(".wh.a", "")}, {file("a/new", "n")}}, "a a/new=n b=bee"},

		"one of two hard links removed": {[][]entry{{file("x", "x"), link("y", "x")}, {file(".wh.x", "")}}, "y=x"},
		"one of two replaced":           {[][]entry{{file("x", "x"), link("y", "x")}, {file("x", "n")}}, "x=n y=x"},
		"a hard link into a lower layer": {[][]entry{{dir("d"), file("d/x", "x")}, {link("e/y", "d/x")}},
			"d d/x=x e e/y=x"},
		"and removed there": {[][]entry{{file("x", "x")}, {link("y", "x"), file(".wh.x", "")}}, "y=x"},
		"two steps down": {
			[][]entry{{file("x", "x")}, {file("other", "o")}, {link("y", "x"), link("z", "y")}},
			"other=o x=x y=x z=x"},
		"to a file replaced later": {
			[][]entry{{file("x", "1"), link("y", "x"), file("x", "2"), link("z", "x")}},
			"x=2 y=1 z=2"},
		"to itself": {[][]entry{{file("x", "x"), link("x", "x")}}, "x=x"},
		"below an opaque new folder": {
			[][]entry{{file("x", "x")}, {file("n/.wh..wh..opq", ""), link("n/y", "x")}},
			"n n/y=x x=x"},
		"through a link below": {
			[][]entry{{dir("d"), file("d/x", "x"), symlink("l", "d")}, {link("y", "l/x")}},
			"d d/x=x l->d y=x"},
		"entries twice": {
			[][]entry{{file("x", "1"), file("x", "2"), dir("d"), file("d/f", "f"), dir("d")}},
			"d d/f=f x=2"},
		"a directory becomes a file": {[][]entry{{dir("d"), file("d/f", "f"), file("d", "file")}}, "d=file"},
		"and a directory again": {
			[][]entry{{dir("d"), file("d/f", "f"), file("d", "file"), dir("d"), file("d/g", "g")}},
			"d d/g=g"},
		"a link of the layer":     {[][]entry{{dir("d"), symlink("l", "d"), file("l/f", "f")}}, "d d/f=f l->d"},
		"a link of a lower layer": {[][]entry{{dir("d"), symlink("l", "d")}, {file("l/f", "f")}}, "d l l/f=f"},
		"a link to what is not there": {
			[][]entry{{symlink("lib", "usr/lib"), file("lib/f", "f")}},
			"lib->usr/lib usr usr/lib usr/lib/f=f"},
		"a link replaced": {
			[][]entry{{dir("d"), symlink("l", "d"), file("l/f", "1"), dir("l"), file("l/f", "2")}},
			"d d/f=1 l l/f=2"},
	} {
		t.Run(name, func(t *testing.T) {
			var archives [][]byte
			for _, l := range c.layers {
				archives = append(archives, archive(t, l...))
			}
			image, _ := write(t, archives...)
			if got := names(t, image); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestAttributesOfLayers: a directory that a layer does not list keeps its attributes; one that
// it lists gets new ones; links of hard links that are gone are not counted.
func TestAttributesOfLayers(t *testing.T) {
	image, s := write(t,
		archive(t, dir("a").perm(0o711).owned(5), dir("b").perm(0o711).owned(5), dir("c").perm(0o700).owned(5),
			file("x", "x"), link("y", "x"), link("z", "x")),
		archive(t, file("a/f", "f"), dir("b").perm(0o750).owned(6), file("c/.wh..wh..opq", ""), file("new/f", "f")),
		archive(t, file(".wh.y", ""), dir("/").perm(0o555).owned(7)))
	compare(t, describe(t, image), map[string]string{
		".": "dr-xr-xr-x 7:7", "a": "drwx--x--x 5:5", "b": "drwxr-x--- 6:6", "c": "drwx------ 5:5",
		"new": "drwxr-xr-x 0:0", "a/f": "-rw-r--r-- 0:0 links=1 f", "new/f": "-rw-r--r-- 0:0 links=1 f",
		"x": "-rw-r--r-- 0:0 links=2 x", "z": "-rw-r--r-- 0:0 links=2 x",
	})
	if s.Entries != 8 {
		t.Errorf("the summary counts %d inodes, not 8", s.Entries)
	}
	root, _ := image.Lstat(".")
	if links := root.Sys().(*Stat).Links; links != 6 {
		t.Errorf("the root has %d links, not 6: 2, and its directories", links)
	}
}

// TestHostileNames: no name leads out of the image.
func TestHostileNames(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"absolute":           {[]entry{file("/etc/passwd", "p")}, "etc etc/passwd=p"},
		"upwards":            {[]entry{file("../../etc/passwd", "p")}, "etc etc/passwd=p"},
		"upwards within":     {[]entry{file("a/../../b", "b")}, "b=b"},
		"only upwards":       {[]entry{dir(".."), dir("../.."), file("x", "x")}, "x=x"},
		"slashes":            {[]entry{file("//a///b/./c", "c")}, "a a/b a/b/c=c"},
		"a link to the root": {[]entry{symlink("l", "/"), file("l/f", "f")}, "f=f l->/"},
		"a link out": {
			[]entry{symlink("l", "../../../etc"), file("l/passwd", "p")},
			"etc etc/passwd=p l->../../../etc"},
		"an absolute link": {
			[]entry{symlink("l", "/etc"), file("l/passwd", "p")},
			"etc etc/passwd=p l->/etc"},
		"through two links": {
			[]entry{symlink("a", "b"), symlink("b", "/c"), file("a/f", "f")},
			"a->b b->/c c c/f=f"},
		"a link upwards inside": {[]entry{dir("d"), symlink("d/l", ".."), file("d/l/f", "f")}, "d d/l->.. f=f"},
		"a hard link upwards":   {[]entry{file("f", "f"), link("l", "../../f")}, "f=f l=f"},
		"a whiteout upwards":    {[]entry{file("f", "f"), file("../../.wh.f", "")}, "f=f"},
		"a hard link through a link": {
			[]entry{dir("d"), file("d/f", "f"), symlink("l", "/d"), link("h", "l/f")},
			"d d/f=f h=f l->/d"},
		"a hard link to a link": {
			[]entry{symlink("s", "/etc/shadow"), link("h", "s")},
			"h->/etc/shadow s->/etc/shadow"},
		"a file replaces a link": {[]entry{symlink("f", "/etc/passwd"), file("f", "own")}, "f=own"},
		"a directory replaces a link": {
			[]entry{dir("e"), symlink("d", "e"), dir("d"), file("d/f", "f")},
			"d d/f=f e"},
		"names that are not characters": {[]entry{file("\x01\x7f", "n"), file("a\nb", "l")}, "\x01\x7f=n a\nb=l"},
	} {
		t.Run(name, func(t *testing.T) {
			image, _ := write(t, archive(t, c.entries...))
			if got := names(t, image); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestRefused: archives that no file system can represent are refused, with a fault that names
// the entry.
func TestRefused(t *testing.T) {
	deep := strings.Repeat("d/", 1100)
	set := func(f func(*tar.Header)) entry {
		return entry{name: "bad", data: "", more: func(h *tar.Header) { h.Format = tar.FormatGNU; f(h) }}
	}
	for name, c := range map[string]struct {
		layers [][]byte
		want   string
	}{
		"a name over 255 bytes":      {[][]byte{archive(t, file(strings.Repeat("n", 256), ""))}, "255"},
		"a directory over 255 bytes": {[][]byte{archive(t, file(strings.Repeat("n", 256)+"/f", ""))}, "255"},
		"a link over 255 bytes": {
			[][]byte{archive(t, symlink("l", strings.Repeat("n", 256)), file("l/f", ""))},
			"255"},
		"a path over 4095 bytes":   {[][]byte{archive(t, dir(strings.Repeat("n/", 2100)))}, "4095"},
		"a target over 4095 bytes": {[][]byte{archive(t, symlink("l", strings.Repeat("n", 4096)))}, "4095"},
		"too deep":                 {[][]byte{archive(t, file(deep+"f", ""))}, "1024 directories"},
		"deeper by links": {[][]byte{archive(t, dir(strings.Repeat("d/", 1000)),
			symlink("l", strings.Repeat("d/", 1000)),
			file("l/"+strings.Repeat("e/", 100)+"f", ""))}, "1024 directories"},
		"a loop of links": {
			[][]byte{archive(t, symlink("a", "b"), symlink("b", "a"), file("a/f", ""))},
			"40 symbolic links"},
		"a link to itself": {
			[][]byte{archive(t, symlink("a", "a"), link("h", "a/x"))},
			"40 symbolic links"},
		"a link that grows": {
			[][]byte{archive(t, symlink("a", "a/a/a/a"), file("a/f", ""))},
			"40 symbolic links"},
		"a hard link to nothing": {[][]byte{archive(t, link("h", "nothing"))}, "hard link"},
		"a loop of hard links": {
			[][]byte{archive(t, link("a", "b"), link("b", "c"), link("c", "a"))},
			"hard link"},
		"hard links of two layers": {
			[][]byte{archive(t, link("a", "b")), archive(t, link("b", "a"))},
			"hard link"},
		"a hard link to a directory": {[][]byte{archive(t, dir("d"), link("h", "d"))}, "directory"},
		"to a directory below":       {[][]byte{archive(t, dir("d")), archive(t, link("h", "d"))}, "hard link"},
		"a hard link to the root":    {[][]byte{archive(t, link("h", "/"))}, "directory"},
		"a hard link to what a layer below": {
			[][]byte{archive(t, file("x", "")), archive(t, file(".wh.x", "")), archive(t, link("h", "x"))},
			"hard link"},
		"a file as a directory": {[][]byte{archive(t, file("f", ""), file("f/g", ""))}, "not a directory"},
		"a device as a directory": {
			[][]byte{archive(t, entry{name: "f", kind: tar.TypeChar}, file("f/g", ""))},
			"not a directory"},
		"a pending link as a directory": {[][]byte{archive(t, link("f", "x"), file("f/g", ""))}, "not a directory"},
		"a symbolic link to nothing":    {[][]byte{archive(t, symlink("l", ""))}, "without a target"},
		"a whiteout of no name":         {[][]byte{archive(t, file(".wh.", ""))}, "no name"},
		"a whiteout of .":               {[][]byte{archive(t, file(".wh..", ""))}, "no name"},
		"a whiteout of ..":              {[][]byte{archive(t, file("a/.wh...", ""))}, "no name"},
		"a negative owner":              {[][]byte{archive(t, set(func(h *tar.Header) { h.Uid = -1 }))}, "owner"},
		"an owner over 32 bits": {
			[][]byte{archive(t, set(func(h *tar.Header) { h.Gid = 1 << 32 }))},
			"owner"},
		"a device over 32 bits": {
			[][]byte{archive(t, set(func(h *tar.Header) { h.Typeflag, h.Devmajor = tar.TypeChar, 1<<12 }))},
			"device"},
		"an unknown type": {
			[][]byte{archive(t, set(func(h *tar.Header) { h.Typeflag = 'Z' }))},
			"type"},
		"no archive":       {[][]byte{bytes.Repeat([]byte("no archive"), 1000)}, "cannot be read"},
		"the second layer": {[][]byte{archive(t), []byte("short")}, "layer 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Write(t.Context(), imageFile(t), layers(c.layers...), Limits{})
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != fault.InvalidParameters || !strings.Contains(f.Message, c.want) {
				t.Fatalf("got %v, want a fault with %q", err, c.want)
			}
		})
	}
}

// TestTruncated: an archive that ends early is refused wherever it ends, but between two entries:
// archives of old programs end there.
func TestTruncated(t *testing.T) {
	const a, b = 512 + 3000, 512 + 1<<20 + 1
	whole := archive(t, file("a", strings.Repeat("a", a-512)), file("b", strings.Repeat("b", b-512)), link("c", "a"))
	afterA := tarBlocks(a)
	afterB := afterA + tarBlocks(b)
	complete := func(length int) bool {
		return length == 0 || length >= a && length <= afterA ||
			length >= afterA+b && length <= afterB || length == afterB+512
	}
	lengths := []int{0, 511, 512, a - 1, a, afterA, afterA + 1, afterA + b - 1,
		afterA + b, afterB, afterB + 100, afterB + 512}
	for length := 513; length < afterB; length += 20011 {
		lengths = append(lengths, length)
	}
	for _, length := range lengths {
		_, err := Write(t.Context(), imageFile(t), layers(whole[:length]), Limits{})
		if (err == nil) != complete(length) {
			t.Errorf("after %d of %d bytes: %v", length, len(whole), err)
		}
	}
}

// tarBlocks rounds up to the blocks of tar.
func tarBlocks(n int) int { return (n + 511) &^ 511 }

// TestErrorsOfLayers: what a layer's reader says counts, also at its end and when it is closed.
func TestErrorsOfLayers(t *testing.T) {
	good := archive(t, file("f", "f"))
	wrong := errors.New("wrong digest")
	for name, layer := range map[string]Layer{
		"open": func(context.Context) (io.ReadCloser, error) { return nil, wrong },
		"read": func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(good[:600]), failing{wrong})), nil
		},
		"end": func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(good), strings.NewReader("more"), failing{wrong})), nil
		},
		"close": func(context.Context) (io.ReadCloser, error) {
			return closing{bytes.NewReader(good), wrong}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Write(t.Context(), imageFile(t), append(layers(good), layer), Limits{})
			if !errors.Is(err, wrong) {
				t.Errorf("got %v", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	endless := func(context.Context) (io.ReadCloser, error) {
		cancel()
		return io.NopCloser(zeroReader{}), nil
	}
	if _, err := Write(ctx, imageFile(t), []Layer{endless}, Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

type closing struct {
	io.Reader
	err error
}

func (c closing) Close() error { return c.err }

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestDeterminism: the same layers give the same bytes, and in parallel the same tree, inodes and
// order of entries.
func TestDeterminism(t *testing.T) {
	var archives [][]byte
	for l := range 6 {
		var entries []entry
		for n := range 60 {
			entries = append(entries, file(fmt.Sprintf("d%d/l%d/f%d", n%7, l, n), strings.Repeat("x", n*37%9000)),
				link(fmt.Sprintf("h/%d-%d", l, n), fmt.Sprintf("d%d/l%d/f%d", n%7, l, n)))
		}
		entries = append(entries, file(fmt.Sprintf("d%d/.wh.l%d", l, l-1), ""))
		archives = append(archives, archive(t, entries...))
	}
	var first []byte
	var tree map[string]string
	for run, parallel := range []int{1, 1, 6, 6, 6} {
		f := imageFile(t)
		if _, err := Write(t.Context(), f, layers(archives...), Limits{Parallel: parallel}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		image, err := OpenImage(f)
		if err != nil {
			t.Fatal(err)
		}
		all := describe(t, image)
		for name := range all {
			info, _ := image.Lstat(name)
			all[name] += fmt.Sprintf(" inode=%d", info.Sys().(*Stat).Inode)
		}
		if run == 0 {
			first, tree = data, all
			continue
		}
		if parallel == 1 && !bytes.Equal(first, data) {
			t.Error("two runs give different bytes")
		}
		if len(data) != len(first) {
			t.Errorf("%d bytes in parallel, %d one by one", len(data), len(first))
		}
		compare(t, all, tree)
	}
}
