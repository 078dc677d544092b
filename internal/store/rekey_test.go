package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/secret"
	"sandlot/internal/vault"
)

const killed = 400 // secrets

// dying is a store whose process is killed at a point of a change of the key.
type dying struct {
	*DB
	at string
}

func die(at, point string) {
	if at == point {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d dying) SealedRows(ctx context.Context) ([]vault.SealedRow, error) {
	die(d.at, "written")
	return d.DB.SealedRows(ctx)
}

func (d dying) Reseal(ctx context.Context, all []vault.SealedRow, mark string) error {
	switch d.at {
	case "half":
		time.AfterFunc(3*time.Millisecond, func() { die(d.at, "half") })
	case "some":
		time.AfterFunc(6*time.Millisecond, func() { die(d.at, "some") })
	}
	err := d.DB.Reseal(ctx, all, mark)
	if d.at == "half" || d.at == "some" {
		select {} // until the timer fires
	}
	die(d.at, "stored")
	return err
}

// TestRekeyChild is the process that TestRekeyKilled ends.
func TestRekeyChild(t *testing.T) {
	dir, at, _ := strings.Cut(os.Getenv("REKEY_CHILD"), " ")
	if dir == "" {
		return // it is a part of the other test
	}
	db := open(t, dir)
	v := &vault.Vault{Store: db, KeyFile: filepath.Join(dir, "secrets.key"), CreateKey: true}
	_, _, err := v.Rekey(t.Context(), dying{db, at}, func(string, string) string { return "" }, false)
	if err != nil {
		t.Fatal(err)
	}
	die(at, "end")
}

// A change of the key that is killed anywhere leaves one key, and it opens every
// secret; also where the key file is a link.
func TestRekeyKilled(t *testing.T) {
	for _, link := range []bool{false, true} {
		dir := t.TempDir()
		file := filepath.Join(dir, "secrets.key")
		keys := dir
		if link {
			keys = t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(keys, "k"), secret.Bytes(32), 0o600),
				os.Symlink(filepath.Join(keys, "k"), file)); err != nil {
				t.Fatal(err)
			}
		}
		db := open(t, dir)
		v := &vault.Vault{Store: db, KeyFile: file, CreateKey: true}
		for i := range killed {
			if _, err := v.Set(t.Context(), fmt.Sprintf("user:u%d", i%40), fmt.Sprintf("S%d", i),
				secret.Value(fmt.Sprint(i)), nil); err != nil {
				t.Fatal(err)
			}
		}
		db.Close()
		for _, at := range []string{"written", "half", "some", "stored", "end"} {
			c := exec.Command(os.Args[0], "-test.run=^TestRekeyChild$")
			c.Env = append(os.Environ(), "REKEY_CHILD="+dir+" "+at)
			out, err := c.CombinedOutput()
			var e *exec.ExitError
			if !errors.As(err, &e) || e.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: %v %s", at, err, out)
			}
			db := open(t, dir)
			v := &vault.Vault{Store: db, KeyFile: file, CreateKey: true}
			if err := v.FinishRekey(t.Context(), db); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			for i := range killed {
				if got, err := v.Reveal(t.Context(), fmt.Sprintf("user:u%d", i%40),
					fmt.Sprintf("S%d", i)); err != nil || got.Reveal() != fmt.Sprint(i) {
					t.Fatalf("link %v, killed at %q: secret %d: %q, %v", link, at, i, got.Reveal(), err)
				}
			}
			db.Close()
			if left, _ := filepath.Glob(filepath.Join(keys, "*.new")); len(left) > 0 {
				t.Errorf("%s: %v is left", at, left)
			}
			if st, err := os.Lstat(file); err != nil || (st.Mode()&os.ModeSymlink != 0) != link {
				t.Errorf("%s: the key file is %v, %v", at, st, err)
			}
		}
	}
}
