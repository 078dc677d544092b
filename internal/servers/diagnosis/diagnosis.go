// Package diagnosis explains why a third-party server, or one of its tools, cannot be
// used: as faults that name the server, with advice and the end of its log. It has no
// effects.
package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Identity is what never changes of a server.
type Identity struct {
	ID, Name   string
	Configured bool // by the operator's settings
}

// Title is how texts call the server.
func (i Identity) Title() string {
	if i.Configured {
		return fmt.Sprintf("the configured server %q", i.Name)
	}
	return fmt.Sprintf("%q (%s)", i.Name, i.ID)
}

// Server is a server at one moment, as its owner may know it.
type Server struct {
	Identity
	state.Status
	Launched   bool // an attempt to start is under way
	Settings   spec.Configured
	Spec       spec.Spec
	Values     spec.Values
	Prefix     string // of the names of its tools; may be empty
	Catalog    catalog.Catalog
	IsOperator bool          // the owner may read Sandlot's log
	LogTail    func() string // the last lines of the server's log; nil: its owner may not read it
}

// Fault returns a fault whose subject is the server.
func (s *Server) Fault(kind fault.Kind, format string, args ...any) *fault.Error {
	return fault.New(kind, "%s %s", s.Title(), fmt.Sprintf(format, args...)).
		With("connection_id", s.ID).With("name", s.Name).With("state", string(s.State))
}

// Failure returns a fault that the server caused, with advice and the end of its log.
func (s *Server) Failure(kind fault.Kind, cause error, format string, args ...any) *fault.Error {
	f := s.Fault(kind, format, args...)
	f.Cause, f.Advice = cause, s.advice()
	if tail := s.tail(); tail != "" {
		f.With("log", tail)
	}
	return f
}

// tail returns the end of the server's log, or "" when its owner may not read that.
func (s *Server) tail() string {
	if s.LogTail == nil {
		return ""
	}
	return s.LogTail()
}

// LastWords returns the line of the log that most likely says what went wrong, as the
// end of a sentence. It may be empty.
func (s *Server) LastWords() string {
	tail := s.tail()
	if tail == "" {
		return ""
	}
	return ". It said: " + spec.SafeText(fault.Telling(tail), 300)
}

// Unusable returns why the server cannot be started; nil: it can.
func (s *Server) Unusable() error {
	switch {
	case s.Removed:
		return s.Fault(fault.NotFound, "is gone")
	case s.Configured && s.Settings.Disabled:
		return s.Fault(fault.Connection, "is disabled in the settings (mcp.%s.disabled)", s.Name).
			Advise("Ask the operator of this server to enable it")
	case s.Settings.Invalid != "":
		return s.Fault(fault.Configuration, "cannot be used: %s", s.Settings.Invalid)
	case s.State == state.Disabled:
		return s.Fault(fault.Connection, "is disconnected; restart_external_mcp connects it again").
			Advise("Connect it again: restart_external_mcp, or " + s.command("restart"))
	case !s.Values.Complete:
		return s.lacksValues()
	case s.State == state.Failed:
		return s.Failure(fault.Connection, nil,
			"does not work: %s. restart_external_mcp tries again; external_mcp_logs shows what it printed", s.Why)
	}
	return nil
}

// lacksValues returns the fault of a server whose values are never stored, and have to be
// given again.
func (s *Server) lacksValues() *fault.Error {
	env, headers := s.Spec.Missing(s.Values)
	return s.Fault(fault.Connection,
		"needs values again that are never stored: give %s to restart_external_mcp as env, "+
			"or ${secret:NAME} in place of one that its user stores with `sandlot secret set NAME`",
		strings.Join(slices.Concat(env, headers), ", ")).
		With("env_keys", env).With("header_keys", headers).
		Advise("Give all of the values again: restart_external_mcp, or " +
			s.command("restart", options(env, headers)...))
}
