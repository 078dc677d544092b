package diagnosis

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// certain is the certainty about a tool that a server has offered: it is more than that
// about a name that only begins like those of a server.
const certain = 1 << 20

// MissingTool returns why a tool that seems to be this server's is not there, and how
// certain it is that the tool is this server's. The fault is nil when there is nothing to say.
func (s *Server) MissingTool(name string) (f *fault.Error, certainty int) {
	if s.Removed {
		return nil, 0
	}
	unusable, _ := errors.AsType[*fault.Error](s.Unusable()) // comes first
	if i := slices.IndexFunc(s.Catalog.Tools, func(d catalog.Definition) bool { return d.Exposed == name }); i >= 0 {
		return cmp.Or(unusable, s.heldBack(s.Catalog.Tools[i])), certain
	}
	for key, exposed := range s.Catalog.Names {
		if remote, ok := strings.CutPrefix(key, "tool/"); ok && exposed == name {
			return cmp.Or(unusable, s.withdrawn(remote)), certain
		}
	}
	if s.Prefix == "" || !catalog.MayHavePrefix(name, s.Prefix) {
		return nil, 0
	}
	if !s.Catalog.Loaded {
		return cmp.Or(unusable, s.unread()), len(s.Prefix)
	}
	return s.leftOut(name), len(s.Prefix)
}

// heldBack returns the fault of a tool that the server offers, and that awaits its user's
// approval.
func (s *Server) heldBack(d catalog.Definition) *fault.Error {
	if d.HeldBecause == "" || s.Settings.TrustMode() != spec.TrustHold { // another server's tool has that name
		return nil
	}
	return s.Fault(fault.Forbidden, "has a tool %q that is %s", spec.ClipName(d.Remote), s.HeldBrief(d.HeldBecause)).
		With("held", d.HeldBecause).
		Advise("The user looks at it first, on a terminal: "+s.command("inspect"),
			"list_external_mcp shows what is held back, and which tools can be called")
}

// withdrawn returns the fault of a tool that the server offered once.
func (s *Server) withdrawn(remote string) *fault.Error {
	c := s.Catalog
	switch {
	case !c.Loaded:
		return s.unread()
	case !s.Settings.AllowsTool(remote):
		return s.Fault(fault.NotFound, "has a tool %q, which the operator's settings leave out", spec.ClipName(remote))
	}
	if why, ok := c.WhyOmitted(func(n string) bool { return n == spec.ClipName(remote) }); ok {
		return s.refused(why)
	}
	return s.Fault(fault.NotFound, "had a tool %q, and does not offer it any more", spec.ClipName(remote)).
		Advise("list_external_mcp shows what it offers now", "Look at it: "+s.command("inspect"))
}

// unread returns the fault of a tool of a server whose lists have not been read yet.
func (s *Server) unread() *fault.Error {
	const unknown = "and what it offers is not known yet"
	switch {
	case s.State == state.NeedsAuth:
		f := s.Fault(fault.Connection, "wants its user to log in, %s", unknown)
		if s.AuthURL != "" {
			f.With("auth_url", s.AuthURL)
			f.Advice = append(f.Advice, "The user opens this link in a browser: "+s.AuthURL)
		}
		f.Advice = append(f.Advice,
			"restart_external_mcp gives a new link to log in, and so does "+s.command("restart"))
		return f
	case s.State == state.Starting || s.Launched && s.State != state.Backoff:
		f := s.Failure(fault.Connection, nil, "is starting, %s", unknown)
		f.Advice = slices.Insert(f.Advice, 0, "Try again in a moment; list_external_mcp shows when it is connected")
		return f
	case s.Why != "":
		return s.Failure(fault.Connection, nil, "does not work, %s: %s", unknown, s.Why)
	}
	return s.Failure(fault.Connection, nil, "does not run, %s", unknown)
}

// leftOut returns the fault of a tool that the server offers under a name or in a form that
// no client could use; nil: there is no such tool.
func (s *Server) leftOut(name string) *fault.Error {
	why, ok := s.Catalog.WhyOmitted(func(n string) bool { return s.Prefix+catalog.SafeName(n) == name || n == name })
	if !ok {
		return nil
	}
	return s.refused(why)
}

// refused returns the fault of a tool that is left out of the server's offer.
func (s *Server) refused(why string) *fault.Error {
	return s.Fault(fault.NotFound, "offers this tool, which cannot be passed on: %s", why).
		Advise("Tell the maker of the server", "Look at the parts that were left out: "+s.command("inspect"))
}
