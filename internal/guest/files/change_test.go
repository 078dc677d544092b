package files

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

func (r *rig) stat(path string) *agentv1.FileInfo {
	r.T.Helper()
	m, err := r.StatFile(r.T.Context(), &agentv1.StatFileRequest{Path: path})
	if err != nil {
		r.T.Fatal(err)
	}
	return m.Info
}

func (r *rig) move(from, to string, replace bool, c *agentv1.FileCondition) error {
	_, err := r.MoveFile(r.T.Context(), &agentv1.MoveFileRequest{From: from, To: to, Replace: replace, Condition: c})
	return err
}

func (r *rig) makeFolder(path string) error {
	_, err := r.MakeFolder(r.T.Context(), &agentv1.MakeFolderRequest{Path: path})
	return err
}

// replaces replaces a file as an upload does.
func (r *rig) replaces(path, content string, c *agentv1.FileCondition) error {
	n, err := r.Replace(path, 0)
	if err != nil {
		return err
	}
	_, err = n.File.WriteString(content)
	return n.Commit(c, err)
}

func wants(t *testing.T, what string, err error, code connect.Code) {
	t.Helper()
	if code == 0 && err != nil || code != 0 && connect.CodeOf(err) != code {
		t.Errorf("%s: %v, want %v", what, err, code)
	}
}

// A file changes only if its condition holds, and a failed one changes nothing and leaves nothing.
func TestConditions(t *testing.T) {
	r := newRig(t)
	r.Write("f", "one")
	first := r.stat("f").Version
	is := func(v ...[]byte) *agentv1.FileCondition { return &agentv1.FileCondition{Versions: v} }
	absent, exists := &agentv1.FileCondition{Absent: true}, &agentv1.FileCondition{Exists: true}
	wants(t, "an old version is there", r.replaces("f", "two", is([]byte{1}, first)), 0)
	wants(t, "the version of before", r.replaces("f", "three", is(first)), connect.CodeAborted)
	wants(t, "absent, but there", r.replaces("f", "three", absent), connect.CodeAborted)
	wants(t, "exists", r.replaces("f", "two", exists), 0)
	wants(t, "exists, but does not", r.replaces("g", "x", exists), connect.CodeAborted)
	wants(t, "a version of nothing", r.replaces("g", "x", is(first)), connect.CodeAborted)
	wants(t, "absent", r.replaces("h", "x", absent), 0)
	_, err := r.RemoveFile(t.Context(), &agentv1.RemoveFileRequest{Path: "f", Condition: is(first)})
	wants(t, "removed with an old version", err, connect.CodeAborted)
	wants(t, "moved with an old version", r.move("f", "moved", false, is(first)), connect.CodeAborted)
	if got, _, err := r.read("f", 0, 10); got != "two" || err != nil {
		t.Errorf("f has %q, %v", got, err)
	}
	if names, err := os.ReadDir(r.Path); err != nil || len(names) != 2 {
		t.Errorf("the folder has %v, %v", names, err)
	}
	// The same size and time of change: replacing makes another file.
	same := r.stat("f")
	wants(t, "replaced by the same", r.replaces("f", "TWO", nil), 0)
	modified := time.UnixMilli(same.ModifiedUnixMillis)
	if err := os.Chtimes(filepath.Join(r.Path, "f"), modified, modified); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(r.stat("f").Version, same.Version) {
		t.Error("another file of the same size and time has the same version")
	}
	_, err = r.RemoveFile(t.Context(), &agentv1.RemoveFileRequest{Path: "f", Condition: is(r.stat("f").Version)})
	wants(t, "removed", err, 0)
}

func TestMove(t *testing.T) {
	r := newRig(t)
	out := outside(t)
	r.Write("a", "A")
	r.Write("b", "B")
	r.Write("d/in", "in")
	r.Write("e/in", "in")
	r.link(out, "away")
	r.link("a", "link")
	wants(t, "onto a file", r.move("a", "b", false, nil), connect.CodeAborted)
	wants(t, "onto a folder", r.move("a", "d", true, nil), connect.CodeFailedPrecondition)
	wants(t, "a folder onto a folder", r.move("d", "e", true, nil), connect.CodeFailedPrecondition)
	wants(t, "a folder into itself", r.move("d", "d/x/y", false, nil), connect.CodeInvalidArgument)
	wants(t, "nothing", r.move("none", "x", false, nil), connect.CodeNotFound)
	wants(t, "out", r.move("a", filepath.Join(out, "a"), false, nil), connect.CodeOutOfRange)
	wants(t, "out by a link", r.move("a", "away/a", false, nil), connect.CodeOutOfRange)
	wants(t, "in", r.move(filepath.Join(out, "secret"), "s", false, nil), connect.CodeOutOfRange)
	wants(t, "in by a link", r.move("away/secret", "s", false, nil), connect.CodeOutOfRange)
	wants(t, "the root", r.move(r.Path, "x", false, nil), connect.CodeFailedPrecondition)
	wants(t, "a zero byte", r.move("a", "x\x00y", false, nil), connect.CodeInvalidArgument)
	wants(t, "below a file", r.move("a", "b/x", false, nil), connect.CodeFailedPrecondition)
	wants(t, "into new folders", r.move("a", "n/m/a", false, nil), 0)
	wants(t, "over a file", r.move("n/m/a", "b", true, nil), 0)
	wants(t, "a folder", r.move("d", "n/d", false, nil), 0)
	wants(t, "a link", r.move("link", "n/link", false, nil), 0)
	wants(t, "odd bytes", r.move("n/d/in", wire.EncodePath("\xff\n"), false, nil), 0)
	if got, _, err := r.read("b", 0, 10); got != "A" || err != nil {
		t.Errorf("b has %q, %v", got, err)
	}
	if b, err := os.ReadFile(filepath.Join(r.Path, "\xff\n")); string(b) != "in" {
		t.Errorf("%q, %v", b, err)
	}
	if i := r.stat("n/link"); i.Type != "symlink" || i.Target != "a" {
		t.Errorf("%v", i)
	}
	if b, err := os.ReadFile(filepath.Join(out, "secret")); string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestMakeFolder(t *testing.T) {
	r := newRig(t)
	out := outside(t)
	r.Write("f", "x")
	r.link(out, "away")
	wants(t, "with its parents", r.makeFolder("a/b/c"), 0)
	wants(t, "again", r.makeFolder("a/b/c"), connect.CodeAborted)
	wants(t, "over a file", r.makeFolder("f"), connect.CodeAborted)
	wants(t, "below a file", r.makeFolder("f/x"), connect.CodeFailedPrecondition)
	wants(t, "outside", r.makeFolder("away/x"), connect.CodeOutOfRange)
	wants(t, "far outside", r.makeFolder("../x"), connect.CodeOutOfRange)
	wants(t, "a long name", r.makeFolder(strings.Repeat("x", 300)), connect.CodeInvalidArgument)
	if i := r.stat("a/b/c"); i.Type != "directory" {
		t.Errorf("%v", i)
	}
	if i := r.stat("a/none"); i != nil {
		t.Errorf("%v", i)
	}
	if names, err := os.ReadDir(out); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

// A request waits until something in its folder changes, and no longer than it says.
func TestAwaitChange(t *testing.T) {
	r := newRig(t)
	r.Write("sub/f", "x")
	known := func() []byte {
		m, err := r.ListFiles(t.Context(), &agentv1.ListFilesRequest{Path: ".", Depth: 2, Limit: 100})
		if err != nil || len(m.Digest) == 0 {
			t.Fatal(m, err)
		}
		return m.Digest
	}
	await := func(known []byte, millis uint64) (*agentv1.ListFilesResponse, error) {
		return r.ListFiles(t.Context(), &agentv1.ListFilesRequest{Path: ".", Depth: 2, Limit: 100, Known: known,
			WaitMillis: millis})
	}
	if m, err := await(known(), 50); err != nil || len(m.Files) > 0 || !bytes.Equal(m.Digest, known()) {
		t.Errorf("nothing changes: %v, %v", m, err)
	}
	for what, change := range map[string]func(){
		"a file":              func() { r.Write("new", "x") },
		"what is in it":       func() { r.Write("new", "yy") },
		"below":               func() { r.Write("sub/f", "changed") },
		"gone":                func() { os.Remove(filepath.Join(r.Path, "sub/f")) },
		"replaced the same":   func() { _ = r.replaces("sub/f", "changed", nil) },
		"a folder of its own": func() { _ = r.makeFolder("sub/deep") },
	} {
		before := known()
		time.AfterFunc(20*time.Millisecond, change)
		m, err := await(before, 30_000)
		if err != nil || bytes.Equal(m.Digest, before) || len(m.Files) == 0 {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, _ = r.ListFiles(ctx, &agentv1.ListFilesRequest{Path: ".", Depth: 2, Limit: 100, Known: known(), WaitMillis: 1e9})
	before := known()
	time.AfterFunc(20*time.Millisecond, func() { os.RemoveAll(r.Path) })
	if _, err := await(before, 30_000); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("the folder is removed: %v", err)
	}
}

// Without notices of the kernel the folder is read from time to time.
func TestAwaitWithoutNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &notices{}
		began := time.Now()
		n.wait(t.Context(), time.Millisecond)
		if took := time.Since(began); took != lookEvery {
			t.Errorf("read after %v", took)
		}
		began = time.Now()
		n.wait(t.Context(), time.Minute) // twenty times what reading took
		if took := time.Since(began); took != time.Minute {
			t.Errorf("read after %v", took)
		}
	})
}
