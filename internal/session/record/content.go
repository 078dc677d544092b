package record

import (
	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Content is what a session consists of: its memory, its files, and what they were made with. A session that gets it
// sleeps in the image, whose next use wakes it.
type Content struct {
	Image                     string // a frozen image
	Workspace                 string // the id of a workspace
	Runtime, Template, Flavor string
	Network                   NetworkOverride
	Secrets                   []string   // names of those whose values are in it; see session.Lease.NoteSecrets
	Scope                     auth.Scope // see Record
	Files                     int64      // the bytes of the workspace; 0: they are not known
}

// Hold makes a session's record have a content.
func (r *Record) Hold(c Content) {
	r.Image, r.Workspace, r.Secrets, r.Scope = c.Image, c.Workspace, c.Secrets, c.Scope
	r.Runtime, r.Template, r.Flavor = c.Runtime, c.Template, c.Flavor
}

// NetworkIn returns the operator's network setting of a session that gets the content: its own, or, if it has none, the
// content's, so that no program gets a network that was taken from it.
func (c Content) NetworkIn(r Record) (NetworkOverride, error) {
	switch {
	case c.Network.Mode == "" || c.Network.Mode == r.Network.Mode:
		return r.Network, nil
	case r.Network.Mode == "":
		return c.Network, nil
	}
	return r.Network, fault.New(fault.Forbidden, "the operator of this server has set the network of that session to "+
		"%s, and that of the snapshot's to %s: restore it into a new session (session_id: new)", r.Network.Mode,
		c.Network.Mode)
}
