package pool

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// rootOnly is a runtime whose programs can only be root.
type rootOnly struct {
	*sandboxtest.Fake
	sandbox.Users // nothing calls the rest
	err           error
}

func (r rootOnly) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{Users: r} }

func (r rootOnly) CanRunAs() error { return r.err }

// firstUser is the id on the host of root in sandboxes of rootOnly.
const firstUser = 100_000

func (r rootOnly) HostUser(_ context.Context, u image.User) (uid, gid int, err error) {
	return firstUser + int(u.UID), firstUser + int(u.GID), nil
}

// A template has root as its user where the runtime can run programs as no other, and the log says so
// once. Elsewhere the workspace belongs to the user before the sandbox boots.
func TestUserOfTemplate(t *testing.T) {
	workspaces, err := workspace.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	template := &image.Template{Name: "app", User: image.User{UID: 61234, GID: 62345, Name: "app"}}
	template.AddDefaultEnv()
	for why, wantUID := range map[error]uint32{nil: 61234, errors.New("the server is not root"): 0} {
		var log bytes.Buffer
		p := New(Config{Runtime: rootOnly{Fake: &sandboxtest.Fake{}, err: why}, Workspaces: workspaces,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			got := p.runnable(template)
			if got.User.UID != wantUID || got.User.IsRoot() && got.Env["USER"] != "root" {
				t.Errorf("with %v the template has the user %+v", why, got.User)
			}
			if again, adopted := p.runnable(template), p.runnable(got); again != got || adopted != got {
				t.Error("a template that can run is changed again")
			}
		}
		if n := strings.Count(log.String(), "run as root of the sandbox"); n != 0 != (why != nil) || n > 1 {
			t.Errorf("with %v the log is: %s", why, log.String())
		}
		p.Templates = func() []*image.Template { return []*image.Template{template} }
		p.Refresh()
		kept, _ := p.asRoot.Load(template)
		p.Templates = func() []*image.Template { return nil }
		p.Refresh()
		if forgotten, known := p.asRoot.Load(template); known || kept == nil != (why == nil) {
			t.Errorf("with %v a template is kept as %v, and a replaced one as %v", why, kept, forgotten)
		}
		if os.Getuid() != 0 {
			continue
		}
		ws, err := workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.giveWorkspace(t.Context(), Request{Workspace: ws, Template: template}); err != nil {
				t.Fatal(err)
			}
		}
		st, err := os.Stat(workspaces.Path(ws))
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != firstUser+wantUID {
			t.Errorf("the workspace: %+v, %v, want the user %d", st, err, firstUser+wantUID)
		}
	}
}
