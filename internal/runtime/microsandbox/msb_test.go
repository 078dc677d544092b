//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// slow is a program in the place of msb whose answers are files in MSB_HOME: list-N is that of its Nth list, and list of
// the others.
const slow = `#!/bin/sh
case "$1" in
--version) echo "msb 0.7.11" ;;
metrics) echo "[]" ;;
list) n=$(ls "$MSB_HOME" | grep -c listed); touch "$MSB_HOME/listed-$n"
	cat "$MSB_HOME/list-$n" 2>/dev/null || cat "$MSB_HOME/list" ;;
create) touch "$MSB_HOME/creating"; exec sleep 20 ;;
remove) touch "$MSB_HOME/removed"
	[ ! -e "$MSB_HOME/broken" ] || { echo "error: a library is not found" >&2; exit 1; } ;;
esac
`

// openSlow returns a runtime whose msb is slow, and a function that sets an answer.
func openSlow(t *testing.T) (r *Runtime, set func(name, text string)) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "msb")
	if err := os.WriteFile(program, []byte(slow), 0o700); err != nil {
		t.Fatal(err)
	}
	r = open(t, stateFolder(t), program)
	t.Cleanup(func() { r.Close() })
	if err := os.MkdirAll(r.home(), 0o700); err != nil {
		t.Fatal(err)
	}
	return r, func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.home(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// machineList is the answer with one machine.
func machineList(status string) string {
	return `[{"name": "` + machineName("x") + `", "status": "` + status + `"}]`
}

// TestOldList: a machine that a list does not have that began before it is not dead; one that is paused is neither dead
// nor lost.
func TestOldList(t *testing.T) {
	r, set := openSlow(t)
	set("list-0", "[]")
	set("list", machineList(running))
	b := newBox(r, sandbox.Spec{ID: "x", Template: ofImage(t), Secret: secret.Bytes(wire.SecretLen)})
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Running {
		t.Errorf("a new machine: %+v, %v", st, err)
	}
	set("list", machineList("Paused"))
	if st, err := b.Status(t.Context()); err == nil {
		t.Errorf("a paused machine: %+v", st)
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := specfile.Write(b.dir, specfile.Of(b.spec, "agent")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Recover(t.Context(), "x"); err == nil || errors.Is(err, sandbox.ErrGone) {
		t.Errorf("recovering a paused machine: %v", err)
	}
	set("list", machineList("Stopped"))
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason != "exited" {
		t.Errorf("a stopped machine: %+v, %v", st, err)
	}
}

// TestNotFound: that something is not found does not mean that the machine is gone.
func TestNotFound(t *testing.T) {
	r, set := openSlow(t)
	set("list", machineList(running))
	set("broken", "")
	b := newBox(r, sandbox.Spec{ID: "x"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := b.remove(ctx); err == nil {
		t.Error("a machine that is listed counts as removed")
	}
	set("list", "[]")
	if err := b.remove(t.Context()); err != nil {
		t.Errorf("a machine that is not listed: %v", err)
	}
}

// TestCloseEndsTrial: a runtime that is closed during its check leaves no trial machine, and sweeps nothing of it.
func TestCloseEndsTrial(t *testing.T) {
	r, set := openSlow(t)
	set("list", "[]")
	locks := filepath.Join(r.home(), "run", "locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	checked := make(chan error)
	go func() { checked <- r.Check(ctx) }()
	for {
		if _, err := os.Stat(filepath.Join(r.home(), "creating")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if ids, err := r.Leftovers(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("a trial machine is left over: %q, %v", ids, err)
	}
	if _, err := os.Stat(locks); err != nil {
		t.Errorf("the locks of a trial machine: %v", err)
	}
	cancel()
	if err := <-checked; !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("the check: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(r.home(), "removed")); err != nil {
		t.Errorf("its machine was not removed: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.sandboxesDir(), "*")); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
	if err := r.Check(t.Context()); err == nil {
		t.Error("a closed runtime boots a trial machine")
	}
}
