// Package fault defines the errors that clients get: each has a kind out of a closed list.
// The code that fails chooses the kind, and each edge (MCP, HTTP, CLI) translates it to its
// protocol. Failures of the user's own code in a sandbox are results, not faults.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Kind is the kind of a fault.
type Kind int

// The kinds. An error without a kind counts as Internal.
const (
	Internal Kind = iota
	ResourceLimit
	Configuration
	SandboxCreation
	CodeExecution
	CommandExecution
	SessionNotFound
	Connection
	InvalidParameters
	NotFound
	FileAccess
	FileChanged
	Unauthorized
	Forbidden
	SessionState
	SessionPaused
	Canceled
)

// kindInfo describes a kind; prefix begins the messages of its faults.
type kindInfo struct {
	code, category, severity, prefix string
	rpc, http                        int
	advice                           []string
}

var kinds = map[Kind]kindInfo{
	Internal: {"INTERNAL_ERROR", "internal", "high", "Internal error: ", -32603, 500,
		[]string{"Try again; if it happens again, look at the server's log for this request"}},
	ResourceLimit: {"RESOURCE_LIMIT_EXCEEDED", "resource", "high", "Resource limit exceeded: ", -32600, 429,
		[]string{"Stop a session that you no longer need (stop_session)", "Use a smaller flavor",
			"Ask the operator to raise the limit"}},
	Configuration: {"CONFIGURATION_ERROR", "configuration", "high", "Configuration error: ", -32603, 500,
		[]string{"Run `sandlot config` to see the settings and where each comes from"}},
	SandboxCreation: {"SANDBOX_CREATION_ERROR", "resource", "high", "Sandbox creation failed: ", -32603, 503,
		[]string{"Run `sandlot doctor` on the server's machine", "Try again"}},
	CodeExecution: {"CODE_EXECUTION_ERROR", "execution", "medium", "Code execution failed: ", -32603, 500,
		[]string{"Try again", "Use session_id \"new\" if the session stays broken"}},
	CommandExecution: {"COMMAND_EXECUTION_ERROR", "execution", "medium", "Command execution failed: ", -32603, 500,
		[]string{"Check the command and its working directory", "Try again"}},
	SessionNotFound: {"SESSION_NOT_FOUND", "session", "low", "Session not found: ", -32602, 404,
		[]string{"Leave session_id out to use your default session", "Use session_id \"new\" for a fresh one",
			"To see yours, call get_sessions (or: sandlot sessions)"}},
	Connection: {"CONNECTION_ERROR", "network", "high", "Connection error: ", -32603, 503,
		[]string{"Try again in a moment", "Run `sandlot doctor` on the server's machine"}},
	InvalidParameters: {"INVALID_PARAMETERS", "validation", "low", "Invalid parameters: ", -32602, 400,
		[]string{"Correct the argument and call again"}},
	NotFound: {"NOT_FOUND", "validation", "low", "", -32602, 404,
		[]string{"Check the name; list what is there first"}},
	FileAccess: {"FILE_ACCESS_ERROR", "validation", "low", "", -32602, 400,
		[]string{"List the directory to see what is there (sandbox_list_files)"}},
	FileChanged: {"FILE_CHANGED", "validation", "low", "", -32602, 412,
		[]string{"Read the file again, and decide with its new ETag"}},
	Unauthorized: {"UNAUTHORIZED", "authentication", "medium", "Unauthorized: ", -32600, 401,
		[]string{"Send a valid token: Authorization: Bearer …", "Make one with `sandlot token create --user NAME`"}},
	Forbidden: {"FORBIDDEN", "authentication", "medium", "Not allowed: ", -32600, 403,
		[]string{"Ask the operator of this server"}},
	SessionState: {"SESSION_STATE_ERROR", "session", "high", "Session state: ", -32603, 503,
		[]string{"Try again later", "Keep what matters in files in /workspace", "Ask the operator of this server, who " +
			"sees why in its log"}},
	SessionPaused: {"SESSION_PAUSED", "session", "low", "Session paused: ", -32600, 409,
		[]string{"Resume the session (resume_session)", "Use session_id \"new\" for another one"}},
	Canceled: {"CANCELED", "execution", "low", "Canceled: ", -32800, 499, []string{"Call again"}},
}

// Error is a fault. Its text is shown to the user. Its cause, which Unwrap returns, is only
// for the server's log.
type Error struct {
	Kind    Kind
	Message string         // without the kind's prefix
	Context map[string]any // details for programs, by name
	Advice  []string       // what the user can do; empty: the kind's advice
	Cause   error
}

// New returns a fault of a kind, with a message as by fmt.Sprintf.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns a fault of a kind with a cause. Users do not see the text of the cause: what
// they need of it belongs in the message.
func Wrap(kind Kind, cause error, format string, args ...any) *Error {
	e := New(kind, format, args...)
	e.Cause = cause
	return e
}

// Argument returns an InvalidParameters fault about one argument of a call.
func Argument(name, format string, args ...any) *Error {
	return New(InvalidParameters, format, args...).With("argument", name)
}

// Limit returns a ResourceLimit fault: so much of a resource is used, or asked for, and that is the limit.
func Limit(resource string, used, limit any, format string, args ...any) *Error {
	return New(ResourceLimit, format, args...).With("resource_type", resource).With("current_usage", used).
		With("limit", limit)
}

// Advise sets what the user can do, and returns e.
func (e *Error) Advise(advice ...string) *Error {
	e.Advice = advice
	return e
}

// With adds one detail to the context, and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Context == nil {
		e.Context = map[string]any{}
	}
	e.Context[key] = value
	return e
}

func (e *Error) Error() string { return kinds[e.Kind].prefix + e.Message }

// Text returns the message with the fault's own advice: most programs show users and models nothing else.
func (e *Error) Text() string {
	if len(e.Advice) == 0 || strings.Contains(e.Error(), e.Advice[0]) {
		return e.Error()
	}
	return e.Error() + ". " + e.Advice[0]
}

func (e *Error) Unwrap() error { return e.Cause }

// Code returns the kind's code for clients, such as "SESSION_NOT_FOUND".
func (e *Error) Code() string { return kinds[e.Kind].code }

// RPC returns the JSON-RPC error code.
func (e *Error) RPC() int { return kinds[e.Kind].rpc }

// HTTP returns the HTTP status.
func (e *Error) HTTP() int { return kinds[e.Kind].http }

// Data is a fault for programs: the `data` of a JSON-RPC error.
type Data struct {
	ErrorCode           string         `json:"error_code"`
	Category            string         `json:"category"`
	Severity            string         `json:"severity"`
	RecoverySuggestions []string       `json:"recovery_suggestions"`
	Context             map[string]any `json:"context"`
}

// contextFields are the fields that the context of a kind's faults always has in Data.
var contextFields = map[Kind][]string{
	ResourceLimit:    {"resource_type", "current_usage", "limit"},
	CodeExecution:    {"template", "session_id", "error_type"},
	CommandExecution: {"command", "exit_code", "session_id"},
}

// Data returns the fault for programs.
func (e *Error) Data() Data {
	info := kinds[e.Kind]
	facts := map[string]any{}
	for _, name := range contextFields[e.Kind] {
		facts[name] = nil // null in JSON, unless the fault has a value
	}
	maps.Copy(facts, e.Context)
	advice := e.Advice
	if len(advice) == 0 {
		advice = info.advice
	}
	return Data{info.code, info.category, info.severity, advice, facts}
}

// From returns the fault in err's chain. For another error it returns a new fault with err
// as its cause: Canceled, Connection for a deadline, or else Internal.
func From(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return Wrap(Canceled, err, "the call was cancelled")
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(Connection, err, "no answer in time")
	}
	return Wrap(Internal, err, "something went wrong inside Sandlot")
}

// Is reports whether err is a fault of that kind.
func Is(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}
