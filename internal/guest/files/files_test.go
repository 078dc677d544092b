package files

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandlot/internal/guest/guesttest"
	"sandlot/proto/agentv1"
)

// rig is files with a root of their own.
type rig struct {
	*Files
	guesttest.Folder
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{New(func() string { return "" }, nil), guesttest.NewFolder(t)}
	if err := r.SetRoots([]*agentv1.FileRoot{{Path: r.Path}}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) link(target, name string) {
	r.T.Helper()
	if err := os.Symlink(target, filepath.Join(r.Path, name)); err != nil {
		r.T.Fatal(err)
	}
}

func (r *rig) read(path string, offset uint64, limit uint32) (string, uint64, error) {
	m, err := r.ReadFile(r.T.Context(), &agentv1.ReadFileRequest{Path: path, Offset: offset, Limit: limit})
	if err != nil {
		return "", 0, err
	}
	return string(m.Data), m.Size, nil
}

func (r *rig) put(m *agentv1.WriteFileRequest) (uint64, error) {
	w, err := r.WriteFile(r.T.Context(), m)
	if err != nil {
		return 0, err
	}
	return w.Size, nil
}

func (r *rig) list(path string, depth, limit uint32) ([]*agentv1.FileInfo, bool, error) {
	m, err := r.ListFiles(r.T.Context(), &agentv1.ListFilesRequest{Path: path, Depth: depth, Limit: limit})
	if err != nil {
		return nil, false, err
	}
	return m.Files, m.Truncated, nil
}

func (r *rig) remove(path string, recursive bool) error {
	_, err := r.RemoveFile(r.T.Context(), &agentv1.RemoveFileRequest{Path: path, Recursive: recursive})
	return err
}

func paths(files []*agentv1.FileInfo) string {
	var all []string
	for _, f := range files {
		all = append(all, f.Path)
	}
	return strings.Join(all, " ")
}

// outside makes a folder beside the root, with a file that nothing may touch.
func outside(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReadFile(t *testing.T) {
	r := newRig(t)
	binary := "\x00\xff\xfe\n\r\n\x80 text"
	r.Write("b", binary)
	r.Write("d/empty", "")
	r.Write("ü n", "odd")
	size := uint64(len(binary))
	tests := []struct {
		path   string
		offset uint64
		limit  uint32
		want   string
		whole  uint64
	}{
		{"b", 0, 100, binary, size},
		{r.Path + "/b", 0, 100, binary, size},
		{"./d/../b", 0, 100, binary, size},
		{"b", 1, 3, binary[1:4], size},
		{"b", size - 1, 100, binary[size-1:], size},
		{"b", size, 100, "", size},
		{"b", 1 << 62, 100, "", size},
		{"b", 1<<64 - 1, 100, "", size},
		{"b", 0, 0, "", size},
		{"b", 0, 1<<32 - 1, binary, size},
		{"d/empty", 0, 10, "", 0},
		{"ü n", 0, 10, "odd", 3},
	}
	for _, tt := range tests {
		got, whole, err := r.read(tt.path, tt.offset, tt.limit)
		if err != nil || got != tt.want || whole != tt.whole {
			t.Errorf("read(%q, %d, %d) = %q, %d, %v, want %q, %d", tt.path, tt.offset, tt.limit, got, whole, err,
				tt.want, tt.whole)
		}
	}
}

func TestReadingIsBounded(t *testing.T) {
	r := newRig(t)
	if err := os.Truncate(r.sparse("big"), 1<<40); err != nil {
		t.Fatal(err)
	}
	got, whole, err := r.read("big", 5, 1<<32-1)
	if err != nil || len(got) != maxReadBytes || whole != 1<<40 {
		t.Errorf("%d bytes of %d, %v", len(got), whole, err)
	}
}

func (r *rig) sparse(name string) string {
	r.Write(name, "")
	return filepath.Join(r.Path, name)
}

// The error texts that clients know.
func TestFileErrors(t *testing.T) {
	r := newRig(t)
	r.Write("f", "x")
	r.Write("d/f", "x")
	if err := unix.Mkfifo(filepath.Join(r.Path, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.link("loop2", "loop1")
	r.link("loop1", "loop2")
	long := strings.Repeat("n", 300)
	read := func(p string) error { _, _, err := r.read(p, 0, 10); return err }
	write := func(p string) error {
		_, err := r.put(&agentv1.WriteFileRequest{Path: p, Data: []byte("x")})
		return err
	}
	list := func(p string) error { _, _, err := r.list(p, 1, 10); return err }
	tests := []struct {
		what string
		err  error
		code connect.Code
		text string
	}{
		{"read what is not there", read("none"), connect.CodeNotFound, "File not found in sandbox: none"},
		{"read beneath what is not there", read("none/f"), connect.CodeNotFound, "File not found in sandbox: none/f"},
		{"read a folder", read("d"), connect.CodeFailedPrecondition, "Path is a directory: d"},
		{"read the root", read("."), connect.CodeFailedPrecondition, "Path is a directory: ."},
		{"read beneath a file", read("f/g"), connect.CodeFailedPrecondition, "Not a directory: f/g"},
		{"read a pipe", read("pipe"), connect.CodeFailedPrecondition, "Not a regular file: pipe"},
		{"read a zero byte", read("a\x00b"), connect.CodeInvalidArgument, "zero byte"},
		{"read a long name", read(long), connect.CodeInvalidArgument, "Not a valid path: nnn"},
		{"read outside", read("../f"), connect.CodeOutOfRange,
			"Path '../f' resolves outside the sandbox workspace. All paths must be within " + r.Path + "."},
		{"read the machine's", read("/etc/hostname"), connect.CodeOutOfRange,
			"Path '/etc/hostname' resolves outside the sandbox workspace."},
		{"read with a common beginning", read(r.Path + "-other/f"), connect.CodeOutOfRange, "resolves outside"},
		{"write a folder", write("d"), connect.CodeFailedPrecondition, "Path is a directory: d"},
		{"write the root", write(""), connect.CodeFailedPrecondition, "Path is a directory: "},
		{"write beneath a file", write("f/g"), connect.CodeFailedPrecondition, "Not a directory: f/g"},
		{"write outside", write("../../x"), connect.CodeOutOfRange, "Path '../../x' resolves outside"},
		{"write a long name", write(long), connect.CodeInvalidArgument, "Not a valid path"},
		{"list what is not there", list("none"), connect.CodeNotFound, "File not found in sandbox: none"},
		{"list a file", list("f"), connect.CodeFailedPrecondition, "Not a directory: f"},
		{"list outside", list(".."), connect.CodeOutOfRange, "resolves outside"},
		{"remove what is not there", r.remove("none", true), connect.CodeNotFound, "File not found in sandbox: none"},
		{"remove a full folder", r.remove("d", false), connect.CodeFailedPrecondition, "Directory is not empty: d"},
		{"remove the root", r.remove(".", true), connect.CodeFailedPrecondition, "Path is a directory"},
		{"remove the root, by its name", r.remove(r.Path, true), connect.CodeFailedPrecondition, "Path is a directory"},
		{"remove outside", r.remove("../x", true), connect.CodeOutOfRange, "resolves outside"},
		{"a name that is not text", read("\xff"), connect.CodeNotFound, "File not found in sandbox: \uFFFD"},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) { guesttest.Refused(t, tt.err, tt.code, tt.text) })
	}
	if err := read("loop1"); err == nil {
		t.Error("a circle of links was read")
	}
	r.Is("f", "x")
	r.Is("d/f", "x")
}

func TestLinks(t *testing.T) {
	r := newRig(t)
	out := outside(t)
	r.Write("real/f", "inside")
	r.link(r.Path+"/real", "absolute") // stays inside
	r.link("real/f", "relative")
	r.link("..//"+filepath.Base(r.Path)+"/real/f", "around")
	r.link(out, "out")
	r.link(out+"/secret", "outfile")
	r.link(out+"/new", "outnew")
	r.link("../"+filepath.Base(filepath.Dir(out))+"/"+filepath.Base(out), "outrelative")
	r.link("/", "slash")
	r.link("absolute/../out", "through")
	for _, p := range []string{"absolute/f", "relative", "around", r.Path + "/absolute/f"} {
		if got, _, err := r.read(p, 0, 100); err != nil || got != "inside" {
			t.Errorf("read(%q) = %q, %v, want what is inside", p, got, err)
		}
	}
	for _, p := range []string{"out/secret", "outfile", "outrelative/secret", "slash" + out + "/secret",
		"through/secret", "out/../" + filepath.Base(out) + "/secret", "slash/etc/hostname"} {
		got, _, err := r.read(p, 0, 100)
		if err == nil {
			t.Errorf("read(%q) = %q", p, got)
		}
	}
	for _, p := range []string{"out/secret", "outfile", "outnew", "out/new", "slash" + out + "/new",
		"through/deep/new"} {
		for _, m := range []*agentv1.WriteFileRequest{{Path: p, Data: []byte("mine")}, {Path: p, Data: []byte("mine"),
			Append: true}} {
			if _, err := r.put(m); err == nil && !r.inside(p) {
				t.Errorf("write(%q), append %v", p, m.Append)
			}
		}
	}
	for _, p := range []string{"out", "slash", "outrelative", "through"} {
		if got, _, err := r.list(p, 3, 100); err == nil {
			t.Errorf("list(%q) = %s", p, paths(got))
		}
	}
	if err := r.remove("out/secret", true); err == nil {
		t.Error("a file outside was removed")
	}
	// A link itself is removed, and what it points to stays.
	for _, p := range []string{"out", "outfile", "absolute"} {
		if err := r.remove(p, true); err != nil {
			t.Errorf("remove(%q): %v", p, err)
		}
	}
	r.Is("real/f", "inside")
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if got, err := os.ReadFile(out + "/secret"); err != nil || string(got) != "secret" {
		t.Errorf("the file outside: %q, %v", got, err)
	}
}

// inside says whether the path is a plain file of the root now: a write may
// replace a link that leads out by a file of its own.
func (r *rig) inside(p string) bool {
	st, err := os.Lstat(filepath.Join(r.Path, p))
	return err == nil && st.Mode().IsRegular()
}

// What was looked at is used beneath its root, whatever it has become.
func TestAFolderThatBecameALink(t *testing.T) {
	r := newRig(t)
	out := outside(t)
	r.Write("d/secret", "inside")
	var places []*Path
	for _, p := range []string{"d/secret", "d/new", "d/deep/new", "d"} {
		pl, err := r.find(p, true)
		if err != nil {
			t.Fatal(err)
		}
		defer pl.root.Close()
		places = append(places, pl)
	}
	if err := os.Rename(filepath.Join(r.Path, "d"), filepath.Join(r.Path, "kept")); err != nil {
		t.Fatal(err)
	}
	r.link(out, "d")
	for _, p := range places[:3] {
		if f, _, err := p.openRegular(os.O_RDONLY, 0); err == nil {
			f.Close()
			t.Errorf("%s was opened", p.name)
		}
		for _, m := range []*agentv1.WriteFileRequest{{Data: []byte("x")}, {Data: []byte("x"), Append: true},
			{Data: []byte("x"), Offset: at(0)}} {
			if _, err := p.write(m); err == nil {
				t.Errorf("%s was written", p.name)
			}
		}
		guesttest.Refused(t, r.Explain(p.requested, func() error { _, err := p.root.Open(p.name); return err }()),
			connect.CodeOutOfRange, "resolves outside")
	}
	l := &listing{root: places[3].root, base: places[3].name, limit: 100, depth: 3}
	if err := l.walk(t.Context()); err == nil {
		t.Errorf("it was listed: %s", paths(l.files))
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if got, _ := os.ReadFile(out + "/secret"); string(got) != "secret" {
		t.Errorf("the file outside holds %q", got)
	}
}

// A folder that becomes a link out, and back, between a check and its use,
// leads nowhere.
func TestASwappedLink(t *testing.T) {
	r := newRig(t)
	out := outside(t)
	r.Write("d/secret", "inside")
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		d, kept, trap := filepath.Join(r.Path, "d"), filepath.Join(r.Path, "kept"), filepath.Join(r.Path, "trap")
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(d, kept)
			os.Symlink(out, trap)
			os.Rename(trap, d)
			os.Remove(d)
			os.Rename(kept, d)
		}
	})
	good := 0
	for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
		got, _, err := r.read("d/secret", 0, 100)
		if err == nil && got != "inside" {
			t.Fatalf("read %q from outside", got)
		}
		if err == nil {
			good++
		}
		r.put(&agentv1.WriteFileRequest{Path: "d/secret", Data: []byte("inside")})
		r.put(&agentv1.WriteFileRequest{Path: "d/new", Data: []byte("x"), Append: true})
		if got, _, err := r.list("d", 1, 10); err == nil && len(got) == 1 && got[0].Path == "secret" &&
			got[0].ModifiedUnixMillis == 0 {
			t.Fatal("a listing of outside")
		}
		r.remove("d/new", true)
	}
	close(stop)
	swapping.Wait()
	if good == 0 {
		t.Error("no read succeeded: the test saw nothing")
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if got, _ := os.ReadFile(out + "/secret"); string(got) != "secret" {
		t.Errorf("the file outside holds %q", got)
	}
}

func at(n uint64) *uint64 { return &n }

func TestWriteFile(t *testing.T) {
	r := newRig(t)
	tests := []struct {
		name, before string
		m            *agentv1.WriteFileRequest
		want         string
		mode         os.FileMode
	}{
		{"new", "", &agentv1.WriteFileRequest{Data: []byte("a\x00\xff")}, "a\x00\xff", 0o644},
		{"new in new folders", "", &agentv1.WriteFileRequest{Path: "x/y/z", Data: []byte("deep")}, "deep", 0o644},
		{"empty", "", &agentv1.WriteFileRequest{}, "", 0o644},
		{"replaced by less", "before", &agentv1.WriteFileRequest{Data: []byte("a")}, "a", 0o600},
		{"with a mode", "before", &agentv1.WriteFileRequest{Data: []byte("a"), Mode: 0o755}, "a", 0o755},
		{"with more than a mode", "", &agentv1.WriteFileRequest{Data: []byte("a"), Mode: 0o106755}, "a", 0o755},
		{"appended", "before", &agentv1.WriteFileRequest{Data: []byte("+after"), Append: true}, "before+after", 0o600},
		{"appended to nothing", "", &agentv1.WriteFileRequest{Data: []byte("x"), Append: true}, "x", 0o644},
		{"appended in new folders", "", &agentv1.WriteFileRequest{Path: "p/q", Data: []byte("x"), Append: true}, "x",
			0o644},
		{"in the middle", "0123456789", &agentv1.WriteFileRequest{Data: []byte("ab"), Offset: at(3)}, "012ab56789",
			0o600},
		{"at the beginning", "0123", &agentv1.WriteFileRequest{Data: []byte("ab"), Offset: at(0)}, "ab23", 0o600},
		{"beyond the end", "01", &agentv1.WriteFileRequest{Data: []byte("ab"), Offset: at(4)}, "01\x00\x00ab", 0o600},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.m.Path == "" {
				tt.m.Path = fmt.Sprint("f", i)
			}
			path := filepath.Join(r.Path, tt.m.Path)
			if tt.before != "" {
				if err := os.WriteFile(path, []byte(tt.before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n, err := r.put(tt.m)
			if err != nil || n != uint64(len(tt.want)) {
				t.Errorf("write = %d, %v, want %d", n, err, len(tt.want))
			}
			r.Is(tt.m.Path, tt.want)
			if st, err := os.Stat(path); err != nil || st.Mode() != tt.mode {
				t.Errorf("mode %v, %v, want %v", st.Mode(), err, tt.mode)
			}
		})
	}
	left, _ := filepath.Glob(filepath.Join(r.Path, ".sandlot-*"))
	if len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// Who reads a file sees the old one or the new one, whole.
func TestReplacingIsAtomic(t *testing.T) {
	r := newRig(t)
	size := 200_000
	text := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, size) }
	r.Write("f", string(text(0)))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			got, err := os.ReadFile(filepath.Join(r.Path, "f"))
			if err != nil || len(got) != size || bytes.Count(got, got[:1]) != size {
				t.Errorf("a reader saw %d bytes, %v", len(got), err)
				return
			}
		}
	})
	for i := range 200 {
		if _, err := r.put(&agentv1.WriteFileRequest{Path: "f", Data: text(i)}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	readers.Wait()
}

func TestListFiles(t *testing.T) {
	r := newRig(t)
	r.Write("b", "xx")
	r.Write("a/c/d", "x")
	r.Write("a/e", "x")
	r.Write(".hidden", "")
	r.Write("\xff", "")
	r.link("/nowhere", "z")
	r.link("a", "y")
	if err := os.Chmod(filepath.Join(r.Path, "b"), 0o640); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path         string
		depth, limit uint32
		want         string
		truncated    bool
	}{
		{"", 1, 100, ".hidden a b y z \uFFFD", false},
		{"", 0, 100, ".hidden a b y z \uFFFD", false},
		{".", 2, 100, ".hidden a a/c a/e b y z \uFFFD", false},
		{"", 3, 100, ".hidden a a/c a/c/d a/e b y z \uFFFD", false},
		{"", 100, 100, ".hidden a a/c a/c/d a/e b y z \uFFFD", false},
		{"a", 1, 100, "c e", false},
		{"y", 1, 100, "c e", false}, // a link that stays inside
		{"a", 2, 3, "c c/d e", false},
	}
	for _, tt := range tests {
		got, truncated, err := r.list(tt.path, tt.depth, tt.limit)
		if err != nil || paths(got) != tt.want || truncated != tt.truncated {
			t.Errorf("list(%q, %d, %d) = %s, %v, %v, want %s", tt.path, tt.depth, tt.limit, paths(got), truncated,
				err, tt.want)
		}
	}
	for limit := uint32(1); limit <= 9; limit++ {
		got, truncated, err := r.list("", 3, limit)
		if err != nil || len(got) != int(limit) && limit < 9 || truncated != (limit < 9) {
			t.Errorf("limit %d: %d entries, truncated %v, %v", limit, len(got), truncated, err)
		}
	}
	all, _, _ := r.list("", 1, 100)
	for _, f := range all {
		want := map[string]string{"a": "directory", "b": "file", "y": "symlink", "z": "symlink"}[f.Path]
		if want != "" && f.Type != want {
			t.Errorf("%s is a %s, want %s", f.Path, f.Type, want)
		}
		if f.Path == "b" && (f.Size != 2 || f.Mode != 0o640 ||
			time.Since(time.UnixMilli(f.ModifiedUnixMillis)) > time.Hour) {
			t.Errorf("b: %v", f)
		}
		if f.Path == "z" && f.Target != "/nowhere" {
			t.Errorf("z points to %q", f.Target)
		}
	}
}

func TestListingManyFiles(t *testing.T) {
	r := newRig(t)
	for i := range 700 {
		r.Write(fmt.Sprintf("d/%03d", i), "")
	}
	if got, truncated, err := r.list("d", 1, 10_000); err != nil || len(got) != 700 || truncated {
		t.Errorf("%d entries, truncated %v, %v", len(got), truncated, err)
	}
	if got, truncated, err := r.list("d", 1, 0); err != nil || len(got) != 1 || !truncated {
		t.Errorf("without a limit: %d entries, truncated %v, %v", len(got), truncated, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ListFiles(ctx, &agentv1.ListFilesRequest{Path: "d", Depth: 1, Limit: 10_000}); err == nil {
		t.Error("a listing that nobody waits for goes on")
	}
}

func TestRemove(t *testing.T) {
	r := newRig(t)
	r.Write("new/folder/f", "x")
	r.Write("e/g", "y")
	if err := r.remove("e/g", false); err != nil {
		t.Error(err)
	}
	if err := r.remove("e", false); err != nil {
		t.Error(err)
	}
	if err := r.remove("new", true); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(r.Path); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// Several roots: the longest that fits decides, and one may be read-only.
func TestRoots(t *testing.T) {
	r := newRig(t)
	shared := outside(t)
	r.Write("inner/f", "x")
	if err := r.SetRoots([]*agentv1.FileRoot{{Path: r.Path}, {Path: shared, ReadOnly: true}, {Path: r.Path + "/inner",
		ReadOnly: true}}); err != nil {
		t.Fatal(err)
	}
	if got, _, err := r.read(shared+"/secret", 0, 100); err != nil || got != "secret" {
		t.Errorf("read = %q, %v", got, err)
	}
	r.link(shared, "shared")
	if got, _, err := r.read("shared/secret", 0, 100); err != nil || got != "secret" {
		t.Errorf("through a link: %q, %v", got, err)
	}
	for _, p := range []string{shared + "/secret", shared + "/new", "shared/new", "inner/f", "inner/new"} {
		_, err := r.put(&agentv1.WriteFileRequest{Path: p, Data: []byte("x")})
		guesttest.Refused(t, err, connect.CodePermissionDenied, "Path is read-only: "+p)
		_, err = r.put(&agentv1.WriteFileRequest{Path: p, Data: []byte("x"), Append: true})
		guesttest.Refused(t, err, connect.CodePermissionDenied, "Path is read-only: "+p)
	}
	guesttest.Refused(t, r.remove(shared+"/secret", true), connect.CodePermissionDenied, "Path is read-only")
	_, _, err := r.read("/nowhere/f", 0, 1)
	guesttest.Refused(t, err, connect.CodeOutOfRange, "All paths must be within "+r.Path+" or "+shared+" or ")
	for _, bad := range []string{"relative", "/a/../b", "/a/", ""} {
		guesttest.Refused(t, r.SetRoots([]*agentv1.FileRoot{{Path: bad}}), connect.CodeInvalidArgument, "clean absolute path")
	}
}
