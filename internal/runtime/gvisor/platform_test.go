package gvisor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
)

// onPlatform returns a runtime with that platform, and its log.
func onPlatform(t *testing.T, platform string) (*Runtime, *bytes.Buffer) {
	t.Helper()
	state, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	bin := programs(t)
	r, err := New(Config{Runsc: filepath.Join(bin, "sandlot-runsc"), Agent: filepath.Join(bin, "sandlot-agent"),
		StateDir: state, Platform: platform, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if found := left(state); len(found) > 0 {
			t.Errorf("this is left: %q", found)
		}
	})
	return r, &log
}

// TestTrial: a trial boots a sandbox of gVisor, which finds all well, and leaves nothing; one that is ended, too.
func TestTrial(t *testing.T) {
	t.Parallel()
	r, _ := onPlatform(t, systrap)
	got := r.try(t.Context(), systrap, maxTrial)
	if got.Err != nil || got.Platform != systrap || got.Start <= 0 || got.Call <= 0 || got.Process <= got.Call {
		t.Fatalf("%+v", got)
	}
	t.Logf("%+v", got)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := r.try(ended, systrap, maxTrial); !errors.Is(got.Err, context.Canceled) {
		t.Errorf("a trial that was ended: %+v", got)
	}
	if found := left(r.StateDir); len(found) > 0 {
		t.Errorf("this is left: %q", found)
	}
}

// TestFailedTrial: a platform of which runsc knows nothing fails with runsc's own words, and leaves nothing.
func TestFailedTrial(t *testing.T) {
	t.Parallel()
	r, _ := onPlatform(t, systrap)
	if got := r.try(t.Context(), "nowhere", maxTrial); got.Err == nil || !strings.Contains(got.Err.Error(), "nowhere") {
		t.Errorf("%+v", got)
	}
}

// TestChoose: with auto, new sandboxes have the platform kvm if and only if its trial on this machine passes and costs
// less; else they have systrap, and the log says why. kvm is an error where its trial fails.
func TestChoose(t *testing.T) {
	t.Parallel()
	strict, _ := onPlatform(t, kvm)
	err := strict.Choose(t.Context())
	t.Logf("kvm on this machine: %v", err)
	checkStrict(t, err)
	if got := newBox(strict, sandbox.Spec{}).platform; (got == kvm) != (err == nil) {
		t.Errorf("sandboxes have the platform %s", got)
	}
	checkAuto(t, err)
}

// checkAuto checks what auto chooses where kvm has that error.
func checkAuto(t *testing.T, kvmError error) {
	t.Helper()
	r, log := onPlatform(t, auto)
	if err := r.Choose(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := newBox(r, sandbox.Spec{}).platform
	if kvmError != nil && (got != systrap || !strings.Contains(log.String(), "kvm does not work here")) ||
		!strings.Contains(log.String(), "platform="+got) {
		t.Errorf("%s, where kvm: %v; the log: %s", got, kvmError, log)
	}
}

func checkStrict(t *testing.T, err error) {
	t.Helper()
	if err != nil && (!fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "set platform to auto")) {
		t.Errorf("%v", err)
	}
}

// TestWithoutKVM: where /dev/kvm is no device of virtual machines, auto takes systrap and says why, and kvm fails.
func TestWithoutKVM(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(kvmDevice); err == nil {
		if !apart(t) {
			return
		}
		if err := unix.Mount("/dev/null", kvmDevice, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	strict, _ := onPlatform(t, kvm)
	err := strict.Choose(t.Context())
	if err == nil {
		t.Fatal("it works")
	}
	t.Log(err)
	checkStrict(t, err)
	checkAuto(t, err)
}

// TestPlatformOfImage: preboot images of one platform are not used for sandboxes of another one.
func TestPlatformOfImage(t *testing.T) {
	t.Parallel()
	r, _ := onPlatform(t, systrap)
	spec := sandbox.Spec{ID: "any", Template: subject(t, r.Rootless).Template, Secret: make([]byte, wire.SecretLen)}
	one, err := r.imageKind(spec)
	if err != nil {
		t.Fatal(err)
	}
	r.setPlatform(kvm)
	other, err := r.imageKind(spec)
	if err != nil || one == other {
		t.Errorf("%q and %q, %v", one, other, err)
	}
}
