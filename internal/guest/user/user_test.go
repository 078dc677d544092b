package user

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

const (
	testUID = 61234
	testGID = 62345
)

func newUser(t *testing.T) *User {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user; CI is root")
	}
	u, err := New(testUID, testGID, []uint32{63456}, "someone", "")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// folder makes a folder that everybody may enter and write.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func owner(t *testing.T, path string) (uid, gid uint32) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Uid, st.Sys().(*syscall.Stat_t).Gid
}

func TestNil(t *testing.T) {
	u, err := New(uint32(os.Geteuid()), 0, nil, "", "")
	if u != nil || err != nil {
		t.Fatalf("the agent's own user is %+v, %v", u, err)
	}
	want := errors.New("own")
	if err := u.Do(func() error { return want }); err != want || u.Credential() != nil || u.Label() != "root" {
		t.Errorf("%v, %v, %s", err, u.Credential(), u.Label())
	}
}

// In Do files belong to the user, and root's are closed to it; outside of it nothing is changed.
func TestDo(t *testing.T) {
	u := newUser(t)
	dir := folder(t)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			made, roots := filepath.Join(dir, fmt.Sprint("user", i)), filepath.Join(dir, fmt.Sprint("root", i))
			err := u.Do(func() error {
				if _, err := os.ReadFile(secret); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("reading root's file: %v", err)
				}
				groups, err := os.Getgroups()
				if err != nil || len(groups) != 1 || groups[0] != 63456 {
					t.Errorf("groups %v, %v", groups, err)
				}
				return os.WriteFile(made, nil, 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.ReadFile(secret); err != nil {
				t.Errorf("after Do: %v", err)
			}
			if err := os.WriteFile(roots, nil, 0o600); err != nil {
				t.Error(err)
				return
			}
			if uid, gid := owner(t, made); uid != testUID || gid != testGID {
				t.Errorf("a file of the user belongs to %d:%d", uid, gid)
			}
			if uid, gid := owner(t, roots); uid != 0 || int(gid) != os.Getgid() {
				t.Errorf("a file of root belongs to %d:%d", uid, gid)
			}
		})
	}
	all.Wait()
}

// The ids come back when the function panics.
func TestPanic(t *testing.T) {
	u := newUser(t)
	func() {
		defer func() { _ = recover() }()
		_ = u.Do(func() error { panic("on purpose") })
	}()
	made := filepath.Join(folder(t), "file")
	if err := os.WriteFile(made, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if uid, _ := owner(t, made); uid != 0 || os.Geteuid() != 0 {
		t.Errorf("after a panic a file belongs to %d, and the user is %d", uid, os.Geteuid())
	}
	if len(u.threads) != 0 {
		t.Errorf("%d threads are counted as the user's", len(u.threads))
	}
}
