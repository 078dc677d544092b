package pool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// TestAwaitDial: an agent that never connects is given up long before a boot may take too long, and one that does is
// not.
func TestAwaitDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		err := awaitDial(ctx, never)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not connect") {
			t.Errorf("an agent that never connects: %v", err)
		}
		if ctx.Err() != nil {
			t.Error("the whole time of the boot was waited for it")
		}
		if err := awaitDial(ctx, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		over, end := context.WithCancel(ctx)
		end()
		if err := awaitDial(over, never); !errors.Is(err, context.Canceled) {
			t.Errorf("a boot that was cancelled: %v", err)
		}
	})
}

// TestWorkdirError: a sandbox whose agent has no folder where programs start is none, and the error says why.
func TestWorkdirError(t *testing.T) {
	workspaces, err := workspace.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rt := &sandboxtest.Fake{SettingsErr: wire.Errorf(connect.CodeFailedPrecondition, "no folder")}
	p := New(Config{Runtime: rt, Workspaces: workspaces, Log: sandboxtest.Log(t), BootTimeout: time.Minute})
	defer p.Wait()
	for workdir, want := range map[string]bool{"/proc/self/fd/7": true, "": false} {
		ws, err := workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		template := &image.Template{Name: "t", Workdir: workdir}
		template.AddDefaultEnv()
		_, err = p.Boot(t.Context(), Request{Workspace: ws, Template: template})
		var w *WorkdirError
		if got := errors.As(err, &w); got != want || err == nil || got && !strings.Contains(w.Error(), workdir) {
			t.Errorf("with WORKDIR %q: %v", workdir, err)
		}
	}
	if left := rt.List(); len(left) > 0 {
		t.Errorf("sandboxes are left: %v", left)
	}
}
