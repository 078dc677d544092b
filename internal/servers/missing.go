package servers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Missing implements tool.Explainer: it says why a tool cannot be called that one
// of the principal's own servers has, had, or would have if it ran. Nil: no server
// of theirs knows it.
func (servers *Servers) Missing(p auth.Principal, name string) error {
	if err := servers.configure(p); err != nil {
		return err
	}
	var why *fault.Error
	longest := -1
	for _, s := range servers.all(p.ID) {
		f, of := s.missing(name)
		if f != nil && of > longest {
			why, longest = f, of
		}
	}
	if why == nil {
		return nil
	}
	return why.With("tool", spec.Clip(name))
}

// certain is how much is known of a tool that a server has offered: more than of
// one whose name only begins like those of a server.
const certain = 1 << 20

// missing says why a tool that seems to be this server's is not there, and how
// sure it is that it is.
func (s *server) missing(name string) (*fault.Error, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Removed {
		return nil, 0
	}
	var stopped *fault.Error // why it cannot be started comes first
	if err := s.unusable(); err != nil {
		stopped = fault.From(err)
	}
	c := s.rec.Catalog
	if i := slices.IndexFunc(c.Tools, func(d catalog.Definition) bool { return d.Key == name }); i >= 0 {
		return cmp.Or(stopped, s.withheld(c.Tools[i])), certain
	}
	for key, exposed := range c.Names {
		if remote, ok := strings.CutPrefix(key, "tool/"); ok && exposed == name {
			return cmp.Or(stopped, s.withdrawn(remote)), certain
		}
	}
	prefix := s.prefix()
	if prefix == "" || !catalog.Begins(name, prefix) {
		return nil, 0
	}
	if !c.Read {
		return cmp.Or(stopped, s.unread()), len(prefix)
	}
	return s.leftOut(name, prefix), len(prefix)
}

// prefix is what the names of its tools begin with. The lock is held.
func (s *server) prefix() string {
	if p := s.Settings.Prefix; p != nil && *p != "" {
		return *p + "_"
	} else if p != nil {
		return ""
	}
	return "ext_" + catalog.SafeName(s.id) + "_"
}

// absent is a fault about a tool of this server. The lock is held.
func (s *server) absent(kind fault.Kind, format string, args ...any) *fault.Error {
	return fault.New(kind, "%s %s", s.title(), fmt.Sprintf(format, args...)).
		With("connection_id", s.id).With("name", s.name).With("state", string(s.State))
}

// withheld is for a tool that the server offers, and that is not passed on. The
// lock is held.
func (s *server) withheld(d catalog.Definition) *fault.Error {
	if d.Held == "" || s.Settings.Trusts() != spec.Hold { // another server's tool has that name
		return nil
	}
	f := s.absent(fault.Forbidden, "has a tool %q that is held back: %s", spec.Clip(d.Remote), d.Held).With("held",
		d.Held)
	f.Advice = []string{"The user looks at it, and approves it on a terminal: " + s.command("inspect") + ", then " + s.command("approve"),
		"list_external_mcp shows what is held back, and which tools can be called"}
	return f
}

// withdrawn is for a tool that the server offered once. The lock is held.
func (s *server) withdrawn(remote string) *fault.Error {
	c := s.rec.Catalog
	switch {
	case !c.Read:
		return s.unread()
	case !s.Settings.Allows(remote):
		return s.absent(fault.NotFound, "has a tool %q, which the operator's settings leave out", spec.Clip(remote))
	}
	if why, ok := c.LeftOut(func(n string) bool { return n == spec.Clip(remote) }); ok {
		return s.refused(why)
	}
	f := s.absent(fault.NotFound, "had a tool %q, and does not offer it any more", spec.Clip(remote))
	f.Advice = []string{"list_external_mcp shows what it offers now", "Look at it: " + s.command("inspect")}
	return f
}

// unread is for a server of which nothing is known yet. The lock is held.
func (s *server) unread() *fault.Error {
	const unknown = "and what it offers is not known yet"
	var f *fault.Error
	switch {
	case s.State == state.NeedsAuth:
		f = s.absent(fault.Connection, "wants its user to log in, %s", unknown)
		if s.AuthURL != "" {
			f.With("auth_url", s.AuthURL)
			f.Advice = append(f.Advice, "The user opens this link in a browser: "+s.AuthURL)
		}
		f.Advice = append(f.Advice,
			"restart_external_mcp gives a new link to log in, and so does "+s.command("restart"))
		return f
	case s.State == state.Starting || s.start != nil && s.State != state.Backoff:
		f = s.absent(fault.Connection, "is starting, %s", unknown)
		f.Advice = []string{"Try again in a moment; list_external_mcp shows when it is connected"}
	case s.Why != "":
		f = s.absent(fault.Connection, "does not work, %s: %s", unknown, s.Why)
	default:
		f = s.absent(fault.Connection, "does not run, %s", unknown)
	}
	f.Advice = append(f.Advice, s.advice()...)
	return s.withLog(f)
}

// leftOut is for a name that nothing which the server offers has: it may be that
// of a tool that no client could use. Nil: there is none. The lock is held.
func (s *server) leftOut(name, prefix string) *fault.Error {
	why, ok := s.rec.Catalog.LeftOut(func(n string) bool { return prefix+catalog.SafeName(n) == name || n == name })
	if !ok {
		return nil
	}
	return s.refused(why)
}

// refused is for a tool that is left out of what the server offers. The lock is
// held.
func (s *server) refused(why string) *fault.Error {
	f := s.absent(fault.NotFound, "offers this tool, which cannot be passed on: %s", why)
	f.Advice = []string{"Tell the maker of the server", "Look at what was left out: " + s.command("inspect")}
	return f
}
