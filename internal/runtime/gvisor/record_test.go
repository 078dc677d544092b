package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// TestBrokenRecord: a sandbox whose record is broken is ended, and no other one is touched. While it cannot be ended,
// it is not said to be gone.
func TestBrokenRecord(t *testing.T) {
	for name, rootless := range map[string]bool{"Root": false, "Rootless": true} {
		t.Run(name, func(t *testing.T) {
			if !rootless && os.Getuid() != 0 {
				t.Skip("not root")
			}
			t.Parallel()
			s := subject(t, rootless)
			rt := s.Open(t)
			broken, other := create(t, s, rt), create(t, s, rt)
			state := rt.(*Runtime).StateDir
			if err := rt.Close(); err != nil {
				t.Fatal(err)
			}
			rt = s.Open(t)
			record := filepath.Join(state, "sandboxes", broken, specfile.Name)
			if err := os.WriteFile(record, []byte(`{"id":"`+broken+`","secret":"00"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := rt.Recover(over, broken)
			if errors.Is(err, sandbox.ErrGone) || !errors.Is(err, sandbox.ErrRemains) || !isThere(state, broken) {
				t.Errorf("one that could not be ended is gone: %v, %q", err, left(state))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err = rt.Recover(ctx, broken); !sandbox.Removed(err) || isThere(state, broken) {
				t.Errorf("one with a broken record: %v, %q", err, left(state))
			}
			b, err := rt.Recover(t.Context(), other)
			if err != nil {
				t.Fatalf("the other sandbox: %v; %q", err, left(state))
			}
			c := agent.New(b, sandboxtest.Log(t), nil)
			if _, err := c.Hello(t.Context()); err != nil {
				t.Errorf("the other sandbox: %v", err)
			}
			c.Close()
			if again, err := rt.Recover(t.Context(), other); again != b || err != nil {
				t.Errorf("one that is recovered already: another one, %v", err)
			}
			if err := errors.Join(b.Stop(t.Context()), rt.Close()); err != nil {
				t.Error(err)
			}
			if found := left(state); len(found) != 0 {
				t.Errorf("this is left: %q", found)
			}
		})
	}
}

// create makes a sandbox, waits for its agent, and returns its id.
func create(t *testing.T, s *sandboxtest.Subject, rt sandbox.Runtime) (id string) {
	t.Helper()
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b.Spec().ID
}

// isThere says whether there are processes of a sandbox, or its folder.
func isThere(state, id string) bool {
	r := &Runtime{Config: Config{StateDir: state}}
	return len(r.findProcesses(id)) > 0 ||
		slices.ContainsFunc(left(state), func(what string) bool { return strings.Contains(what, id) })
}
