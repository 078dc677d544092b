package diagnosis

import (
	"errors"
	"fmt"
	"slices"

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Advice is read by agents, who have tools, and by people, who have the command line.

// command returns a command line of `sandlot mcp` for this server.
func (s *Server) command(verb string, more ...string) string {
	return "`" + spec.CommandLine(append([]string{"sandlot", "mcp", verb, s.Name}, more...)) + "`"
}

// options returns the options of that command line that name the values: without a value,
// the command line takes it from the environment variable of that name.
func options(env, headers []string) (all []string) {
	for _, k := range env {
		all = append(all, "--env", k)
	}
	for _, k := range headers {
		all = append(all, "--header", k)
	}
	return all
}

// advice returns what helps with a connected server that failed.
func (s *Server) advice() []string {
	var all []string
	if s.LogTail != nil {
		all = append(all, "Look at what it printed: external_mcp_logs, or "+s.command("logs"))
	}
	all = append(all, "Start it again: restart_external_mcp, or "+s.command("restart"))
	switch {
	case s.Configured && s.IsOperator:
		all = append(all, fmt.Sprintf("Check mcp.%s in the settings, and Sandlot's log", s.Name))
	case s.Configured:
		all = append(all, "Ask the operator of this server: what it is, is in their settings")
	case s.Settings.Kind == spec.Stdio:
		all = append(all, "Check its command, args and env, and connect it again")
	default:
		all = append(all, "Check its url and headers, and connect it again")
	}
	return all
}

// NotConnected replaces the advice of an error of a server that did not start when it was
// connected, and so was not added.
func NotConnected(err error, c spec.Configured) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || !causedByServer(f) || f.Context["auth_url"] != nil || f.Context["secret"] != nil {
		return err
	}
	copied := *f // others may have the same fault
	if c.Kind == spec.Stdio {
		copied.Advice = []string{"Check its command, args and env", "Run the program itself to see all that it " +
			"prints: sandbox_shell_exec, or `sandlot exec --session home -- COMMAND`"}
	} else {
		copied.Advice = []string{"Check its url, transport and headers",
			"Ask the operator of this server whether it may be reached from here (network.allow)"}
	}
	return &copied
}

// WithAdvice adds advice to an error that the server caused, and that has none.
func (s *Server) WithAdvice(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || !causedByServer(f) || len(f.Advice) > 0 {
		return err
	}
	copied := *f // others may have the same fault
	copied.Advice = s.advice()
	return &copied
}

func causedByServer(f *fault.Error) bool {
	return slices.Contains([]fault.Kind{fault.Connection, fault.CommandExecution}, f.Kind)
}
