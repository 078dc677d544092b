package diagnosis

import (
	"fmt"
	"strings"

	"sandlot/internal/servers/state"
)

// Brief says in a few words why the server cannot be used at the moment, and what helps; empty: it can be, or will be
// started when it is.
func (s *Server) Brief() string {
	why := ""
	if s.Why != "" {
		why = ": " + strings.TrimSuffix(s.Why, ".")
	}
	switch s.State {
	case state.Disabled:
		if s.Configured {
			return "is disabled by the operator"
		}
		return "is disconnected; restart_external_mcp connects it again"
	case state.Failed:
		return "does not work" + why + "; restart_external_mcp tries again"
	case state.Backoff:
		return "failed just now" + why + "; it starts again by itself"
	case state.NeedsEnv:
		return "lacks values" + why + "; give them to restart_external_mcp"
	case state.NeedsAuth:
		if s.AuthURL == "" {
			return "needs its user to log in; restart_external_mcp gives a link"
		}
		return "needs its user to log in at " + s.AuthURL
	case state.Installing, state.Starting:
		if !s.Catalog.Loaded {
			return "is starting, and what it offers is not known yet"
		}
	}
	return ""
}

// HeldBrief says why a tool is held back, and what helps.
func (s *Server) HeldBrief(why string) string {
	return fmt.Sprintf("held back: %s; its user approves it with %s", why, s.command("approve"))
}
