package pool

import (
	"context"
	"fmt"
	"os"
	"slices"

	"sandlot/internal/image"
)

// runnable returns the template as the runtime can run it: with root as its user where it cannot run
// programs as another one. It logs that once for each template, and returns the same one each time: a runtime makes
// what sandboxes share once for each.
func (p *Pool) runnable(t *image.Template) *image.Template {
	if t.User.IsRoot() {
		return t
	}
	users := p.Capabilities(t.Runtime).Users
	if users == nil {
		return t
	}
	err := users.CanRunAs()
	if err == nil {
		return t
	}
	asRoot, known := p.asRoot.LoadOrStore(t, t.AsRoot())
	if !known {
		p.Log.Warn("programs in sandboxes of this template run as root of the sandbox, not as its user", "template",
			t.Name, "user", t.User.String(), "because", err)
	}
	return asRoot.(*image.Template)
}

// forgetReplaced forgets what runnable has made of templates that are not among these any more.
func (p *Pool) forgetReplaced(current []*image.Template) {
	p.asRoot.Range(func(t, _ any) bool {
		if !slices.Contains(current, t.(*image.Template)) {
			p.asRoot.Delete(t)
		}
		return true
	})
}

// giveWorkspace makes the workspace of a sandbox that is not booted yet belong to the template's
// user. A server that is not root cannot do that; the agent may.
func (p *Pool) giveWorkspace(ctx context.Context, r Request) error {
	if os.Geteuid() != 0 {
		return nil
	}
	u := p.runnable(r.Template).User
	uid, gid := int(u.UID), int(u.GID)
	var err error
	if users := p.Capabilities(r.Template.Runtime).Users; users != nil {
		uid, gid, err = users.HostUser(ctx, u)
	}
	var changed bool
	if err == nil {
		changed, err = p.Workspaces.SetOwner(ctx, r.Workspace, uid, gid)
	}
	if err != nil {
		return fmt.Errorf("its workspace cannot be given to the user %s of the template: %w", u, err)
	}
	if changed {
		p.Log.Debug("a workspace has another owner", "workspace", r.Workspace, "user", u.String())
	}
	return nil
}
