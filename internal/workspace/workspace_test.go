package workspace

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "deep", "workspaces"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fresh(t *testing.T, s *Store) string {
	t.Helper()
	id, err := s.New()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNew(t *testing.T) {
	s := newStore(t)
	a, b := fresh(t, s), fresh(t, s)
	if a == b {
		t.Fatal("the same id twice")
	}
	st, err := os.Stat(s.Path(a))
	if err != nil || !st.IsDir() || st.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v, want a folder of the owner's alone", st, err)
	}
	all, err := s.All()
	slices.Sort(all)
	want := []string{a, b}
	slices.Sort(want)
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("All = %v, %v, want %v", all, err, want)
	}
}

// A sandbox's root must not be a link, so neither is the folder of the store.
func TestOpenResolvesLinks(t *testing.T) {
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	s, err := Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if got := filepath.Dir(s.Path(fresh(t, s))); got != real {
		t.Errorf("workspaces are in %s, want %s", got, real)
	}
}

func TestEmpty(t *testing.T) {
	s := newStore(t)
	id := fresh(t, s)
	if empty, err := s.Empty(id); err != nil || !empty {
		t.Errorf("a new one: %v, %v", empty, err)
	}
	in := func(name string) string { return filepath.Join(s.Path(id), name) }
	for _, d := range []string{".local/bin", ".local/lib/python3.11/site-packages"} { // sandboxes make them
		if err := os.MkdirAll(in(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sandlot_tools.pth", "sandlot_ready.pth"} {
		if err := os.WriteFile(in(".local/lib/python3.11/site-packages/"+name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if empty, err := s.Empty(id); err != nil || !empty {
		t.Errorf("with what every sandbox makes: %v, %v", empty, err)
	}
	for _, name := range []string{".hidden", ".local/x", ".local/bin/x", ".local/lib/x", ".local/lib/python3.11/x",
		".local/lib/python3.11/site-packages/x.py", "sandlot_tools.pth"} {
		if err := os.WriteFile(in(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if empty, err := s.Empty(id); err != nil || empty {
			t.Errorf("with %s: %v, %v", name, empty, err)
		}
		if err := os.Remove(in(name)); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	for _, d := range []string{".local/bin", ".local"} {
		if err := errors.Join(os.RemoveAll(in(d)), os.Symlink(outside, in(d))); err != nil {
			t.Fatal(err)
		}
		if empty, err := s.Empty(id); err != nil || empty {
			t.Errorf("%s is a link: %v, %v", d, empty, err)
		}
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if empty, err := s.Empty(id); err != nil || !empty {
		t.Errorf("one that is gone: %v, %v", empty, err)
	}
}

func TestEnsure(t *testing.T) {
	s := newStore(t)
	id := fresh(t, s)
	kept := filepath.Join(s.Path(id), "kept")
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("Ensure lost a file: %v", err)
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(id); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(s.Path(id)); err != nil || !st.IsDir() {
		t.Errorf("%v, %v, want the folder again", st, err)
	}
}

// What is in a workspace was written by hostile code: links in it are removed,
// not followed.
func TestRemoveFollowsNoLink(t *testing.T) {
	s, outside := newStore(t), t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, other := fresh(t, s), fresh(t, s)
	deep := filepath.Join(s.Path(id), "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"out": outside, "file": precious, "sibling": s.Path(other),
		"loop": "."} {
		if err := os.Symlink(target, filepath.Join(deep, name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // one that is not there is fine
		if err := s.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(s.Path(id)); !os.IsNotExist(err) {
		t.Errorf("the workspace is still there: %v", err)
	}
	for _, p := range []string{precious, s.Path(other)} {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("%s was removed through a link", p)
		}
	}
}

func TestAllLeavesOthersOut(t *testing.T) {
	s := newStore(t)
	id := fresh(t, s)
	for _, name := range []string{"lost+found", "notes.txt", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", id + "x"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.Path(id)), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.All(); err != nil || !slices.Equal(all, []string{id}) {
		t.Errorf("All = %v, %v, want %s alone", all, err, id)
	}
}

func TestPathRefusesWhatIsNoID(t *testing.T) {
	s := newStore(t)
	for _, id := range []string{"", ".", "..", "../x", "abc", "/etc", "aaaaaaaaaaaaaaaaaaaaaaaaa/",
		"aaaaaaaaaaaaaaaaaaaaaaaaaa\n", "AAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Path(%q) = a path", id)
				}
			}()
			s.Path(id)
		}()
	}
}

func TestManyAtOnce(t *testing.T) {
	s := newStore(t)
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for range 20 {
				id, err := s.New()
				if err == nil {
					_, err = s.All()
				}
				if err == nil {
					err = s.Remove(id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if all, err := s.All(); err != nil || len(all) != 0 {
		t.Errorf("left %v, %v", all, err)
	}
}

func TestOpenFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil {
		t.Error("a file is a store")
	}
}

// Remove takes no longer for a workspace of many files: Run removes them, also
// what an earlier server left, and ends when it is told to.
func TestRun(t *testing.T) {
	s := newStore(t)
	busy, left := fresh(t, s), fresh(t, s)
	for _, id := range []string{busy, left} {
		at := s.Path(id)
		for range 100 {
			at = filepath.Join(at, "folder")
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(left); err != nil {
		t.Fatal(err)
	}
	waiting := func() int {
		entries, err := os.ReadDir(s.trash())
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if n := waiting(); n != 1 {
		t.Fatalf("%d workspaces wait to be emptied, want 1", n)
	}
	s, err := Open(s.dir) // the next server
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx, slog.New(slog.DiscardHandler)) }()
	for _, remove := range []string{"", busy} {
		if remove != "" {
			if err := errors.Join(os.Chmod(s.Path(remove), 0o500), s.Remove(remove)); err != nil {
				t.Fatal(err)
			}
		}
		for range 1000 {
			if waiting() == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := waiting(); n != 0 {
			t.Errorf("%d workspaces were not emptied", n)
		}
	}
	stop()
	<-ended
	if all, err := s.All(); err != nil || len(all) != 0 {
		t.Errorf("All = %v, %v, want none", all, err)
	}
}

// The same workspace may be made and removed again before it was emptied.
func TestRemoveAgain(t *testing.T) {
	s := newStore(t)
	id := fresh(t, s)
	for range 3 {
		if err := errors.Join(s.Ensure(id), os.WriteFile(filepath.Join(s.Path(id), "file"), nil, 0o600),
			s.Remove(id)); err != nil {
			t.Fatal(err)
		}
	}
}

// A workspace is given to another user, and back, and only once.
func TestSetOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can change owners; CI is root")
	}
	s := newStore(t)
	id := fresh(t, s)
	file := filepath.Join(s.Path(id), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []int{61234, 61234, 0, 0} {
		before := ownerOf(t, s.Path(id))
		changed, err := s.SetOwner(t.Context(), id, owner, owner)
		if err != nil || changed != (before != owner) {
			t.Errorf("to %d: changed %v, %v", owner, changed, err)
		}
		for _, path := range []string{s.Path(id), file} {
			if got := ownerOf(t, path); got != owner {
				t.Errorf("%s belongs to %d, want %d", path, got, owner)
			}
		}
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetOwner(t.Context(), id, 1, 1); err == nil {
		t.Error("a workspace that is gone")
	}
}

func ownerOf(t *testing.T, path string) int {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(st.Sys().(*syscall.Stat_t).Uid)
}

// A workspace is kept until it is removed, also by later servers.
func TestKeep(t *testing.T) {
	s := newStore(t)
	id, other := fresh(t, s), fresh(t, s)
	for range 2 {
		if err := s.Keep(id); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := s.Kept(); err != nil || !slices.Equal(kept, []string{id}) {
		t.Errorf("Kept = %v, %v", kept, err)
	}
	if all, err := s.All(); err != nil || len(all) != 2 {
		t.Errorf("All = %v, %v", all, err)
	}
	if err := errors.Join(s.Remove(id), s.Remove(other)); err != nil {
		t.Fatal(err)
	}
	if kept, err := s.Kept(); err != nil || len(kept) != 0 {
		t.Errorf("after the removal, Kept = %v, %v", kept, err)
	}
}
