package interp

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What the user has installed, and PATH has before the template's program, runs the cells from the next start on; what
// is behind it, no file or not executable does not, and neither does anything in place of a program outside PATH.
func TestFirstOfPath(t *testing.T) {
	for driver, l := range map[string]struct{ name, code string }{
		"python": {"python3", "import os; print(os.environ.get('INSTALLED'))"},
		"node":   {"node", "console.log(process.env.INSTALLED)"},
		"bash":   {"bash", "echo $INSTALLED"},
	} {
		own := program(t, l.name)
		home := t.TempDir()
		before, behind, elsewhere := filepath.Join(home, "before"), filepath.Join(home, "behind"), t.TempDir()
		for _, folder := range []string{before, behind} {
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		path := elsewhere + ":" + before + ":" + filepath.Dir(own) + ":" + behind
		write := func(folder string, mode os.FileMode) {
			t.Helper()
			text := fmt.Sprintf("#!/bin/sh\nINSTALLED=%s exec %s \"$@\"\n", filepath.Base(folder), own)
			if err := os.WriteFile(filepath.Join(folder, l.name), []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
		i := New(Config{Driver: driver, Command: []string{own}, Dir: t.TempDir(), Start: start,
			Env:         func() []string { return []string{"PATH=/nothing", "PATH=" + path, "LANG=C.UTF-8", "HOME=" + home} },
			KilledSince: func(time.Time) string { return "" }})
		t.Cleanup(i.Close)
		if got := i.command(i.config.Env()); got[0] != own {
			t.Errorf("%s: nothing is installed, and %v is taken", driver, got)
		}
		write(elsewhere, 0o755) // a folder of the machine
		write(behind, 0o755)
		write(before, 0o644)
		if got := i.command(i.config.Env()); got[0] != own {
			t.Errorf("%s: %v is behind, or no program", driver, got)
		}
		if err := os.Chmod(filepath.Join(before, l.name), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := i.command([]string{"PATH=" + before + ":" + behind, "HOME=" + home}); got[0] != own {
			t.Errorf("%s: %v is in place of the operator's", driver, got)
		}
		r := (&lang{i, t}).run(l.code)
		if out := r.out; out != filepath.Base(before)+"\n" {
			t.Errorf("%s: it printed %q, want %q", driver, out, filepath.Base(before))
		}
	}
}
