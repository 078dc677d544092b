package record

import (
	"cmp"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
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

// NetworkIn returns the operator's network setting of a session that gets the content, and whose own one is given. What
// the operator gives to one session, no other gets by a copy, nor the same one after it was taken back. What the
// operator has shut stays shut: origin is the present setting of the session that the content is of, and empty if that
// is gone; base is the mode of sessions for which nothing is set.
func (c Content) NetworkIn(own, origin NetworkOverride, base egress.Mode) (NetworkOverride, error) {
	shut := cmp.Or(origin.Mode, c.Network.Mode)
	switch {
	case shut == "" || !shut.Narrower(cmp.Or(own.Mode, base)) && (shut != egress.None || own.Mode != ""):
		return own, nil
	case own.Mode == "":
		own.Mode = shut
		return own, nil
	}
	return own, fault.New(fault.Forbidden, "the operator of this server has set the network of that session to %s, "+
		"and that of the snapshot's to %s: restore it into a new session (session_id: new)", own.Mode, shut)
}
