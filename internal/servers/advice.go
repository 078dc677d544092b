package servers

import (
	"errors"
	"fmt"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// What can be done about a fault that a third-party server causes. Those who
// read it are agents, who have tools, and people, who have the command line.

// command is one of `sandlot mcp`, about this server.
func (s *server) command(verb string, more ...string) string {
	return "`" + spec.CommandLine(append([]string{"sandlot", "mcp", verb, s.name}, more...)) + "`"
}

// options are those of the command line that give a server its values, each
// without it: it is taken from a variable of that name.
func options(env, headers []string) (all []string) {
	for _, k := range env {
		all = append(all, "--env", k)
	}
	for _, k := range headers {
		all = append(all, "--header", k)
	}
	return all
}

// advice is for a server that is there, and does not do what it should. The lock
// is held.
func (s *server) advice() []string {
	var all []string
	if s.Settings.Kind == spec.Stdio && s.shows(s.owner) {
		all = append(all, "Look at what it printed: external_mcp_logs, or "+s.command("logs"))
	}
	all = append(all, "Start it again: restart_external_mcp, or "+s.command("restart"))
	switch {
	case s.configured && s.owner.Has(auth.Logs):
		all = append(all, fmt.Sprintf("Check mcp.%s in the settings, and Sandlot's log", s.name))
	case s.configured:
		all = append(all, "Ask the operator of this server: what it is, is in their settings")
	case s.Settings.Kind == spec.Stdio:
		all = append(all, "Check its command, args and env, and connect it again")
	default:
		all = append(all, "Check its url and headers, and connect it again")
	}
	return all
}

// unstarted is for a server that did not start when it was connected, so that it
// is not there.
func unstarted(c spec.Configured) []string {
	if c.Kind == spec.Stdio {
		return []string{"Check its command, args and env", "Run the program itself to see all that it prints: sandbox_shell_exec, or `sandlot exec --session home -- COMMAND`"}
	}
	return []string{"Check its url, transport and headers",
		"Ask the operator of this server whether it may be reached from here (network.allow)"}
}

// advised gives a fault of which the server is the cause its own advice.
func (s *server) advised(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || !ofServer(f) || len(f.Advice) > 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := *f // others may have it too
	own.Advice = s.advice()
	return &own
}

// notThere is for a fault after which the server is not there.
func notThere(err error, c spec.Configured) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || !ofServer(f) || f.Context["auth_url"] != nil || f.Context["secret"] != nil {
		return err
	}
	own := *f
	own.Advice = unstarted(c)
	return &own
}

func ofServer(f *fault.Error) bool {
	return slices.Contains([]fault.Kind{fault.Connection, fault.CommandExecution}, f.Kind)
}
