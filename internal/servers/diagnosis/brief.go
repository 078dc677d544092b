package diagnosis

import (
	"fmt"
	"strings"

	"sandlot/internal/servers/state"
)

// A saying is how texts for agents say that a server cannot be used now.
type saying struct {
	is    string // what is so
	tells string // what a search says in addition; empty: nothing
	helps string // what the tool restart_external_mcp does about it; empty: nothing
}

var (
	starting = saying{"is starting, and what it offers is not known yet", "how it is", ""}
	sayings  = map[state.State]saying{
		state.Disabled:   {"is disconnected", "", "connects it again"},
		state.Failed:     {"does not work", "why", "tries again"},
		state.NeedsEnv:   {"lacks values", "which", "takes them"},
		state.NeedsAuth:  {"needs its user to log in", "where", "gives a link"},
		state.Installing: starting,
		state.Starting:   starting,
	}
)

const restart = "restart_external_mcp "

// sayingOf returns the words for a server in a state, of which it is known what it offers or not; false: it can be
// used, or will be started when it is.
func sayingOf(s state.State, known bool) (saying, bool) {
	say, ok := sayings[s]
	return say, ok && !(known && say == starting)
}

// Brief says in a few words why the server cannot be used at the moment, and what helps; empty: it can be, or will be
// started when it is.
func (s *Server) Brief() string {
	why := ""
	if s.Why != "" {
		why = ": " + strings.TrimSuffix(s.Why, ".")
	}
	say, ok := sayingOf(s.State, s.Catalog.Loaded)
	switch {
	case s.State == state.Backoff:
		return "failed just now" + why + "; it starts again by itself"
	case !ok:
		return ""
	case s.State == state.Disabled && s.Configured:
		return "is disabled by the operator"
	case s.State == state.NeedsAuth && s.AuthURL != "":
		return say.is + " at " + s.AuthURL
	case s.State == state.Failed || s.State == state.NeedsEnv:
		say.is += why
	}
	if say.helps != "" {
		say.is += "; " + restart + say.helps
	}
	return say.is
}

// Lasting is Brief for the tool tree, of a server by its name: it leaves out what changes often, and the reason, which
// may have a link. Who searches gets that.
func Lasting(name string, s state.State, known bool) string {
	say, ok := sayingOf(s, known)
	if !ok {
		return ""
	}
	var more []string
	if say.tells != "" {
		more = append(more, "`mcp search "+name+"` says "+say.tells)
	}
	if say.helps != "" {
		more = append(more, "the tool "+restart+say.helps)
	}
	return "it " + say.is + "; " + strings.Join(more, ", and ")
}

// HeldBrief says why a tool is held back, and what helps.
func (s *Server) HeldBrief(why string) string {
	return fmt.Sprintf("held back: %s; its user approves it with %s", why, s.command("approve"))
}
