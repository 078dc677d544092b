package toolcall

import (
	"encoding/json"
	"errors"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// request is one line of a program. One of its fields is set.
type request struct {
	Call     *Call     `json:"call"`
	Search   *Search   `json:"search"`
	Describe *Describe `json:"describe"`
}

// Call is a request to call a tool.
type Call struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"` // the server's own name
	Arguments json.RawMessage `json:"arguments"`
	Timeout   float64         `json:"timeout"` // seconds; 0: none but the server's
}

// Search is a request for tools.
type Search struct {
	Query  string `json:"query"`
	Server string `json:"server"` // empty: all
	Limit  int    `json:"limit"`  // 0: the default
}

// Describe is a request for the definition of a tool, or of all tools of a server.
type Describe struct {
	Server string `json:"server"`
	Tool   string `json:"tool"` // empty: all
}

// answer is one line to a program. Any number with Progress precede the one that has another field.
type answer struct {
	Progress  string          `json:"progress,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"` // MCP's CallToolResult
	Found     any             `json:"found,omitempty"`
	Described any             `json:"described,omitempty"`
	Error     *answerError    `json:"error,omitempty"`
}

// answerError says why a request has no other answer.
type answerError struct {
	// Code is a fault's code in lower case, or one of those below.
	Code    string `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
	// Retry says that the program may send the request again soon: nothing was done, and the next server may do it.
	Retry bool `json:"retry,omitempty"`
}

// stopping is the answer to what was not begun when Sandlot is stopped.
var stopping = &answerError{Code: codeUnavailable, Retry: true,
	Message: "Sandlot is being stopped, and has not made the call: try again in a moment"}

// Codes of errors that are no faults'.
const (
	codeServerError = "server_error" // the third-party server answered with a JSON-RPC error, which is Data
	codeBusy        = "busy"         // too many calls are under way
	codeTimeout     = "timeout"      // the timeout of the request is over
	codeUnavailable = "unavailable"  // nothing was done, as Sandlot is being stopped (then with Retry), or is not there
	codeEnded       = "ended"        // Sandlot, the run or the sandbox has ended meanwhile
	codeTooLarge    = "too_large"
	codeInvalid     = "invalid_request"
)

// serverError is the data of codeServerError.
type serverError struct {
	Code int64           `json:"code"`
	Data json.RawMessage `json:"data,omitempty"`
}

// failed returns the answer of a request that failed.
func failed(err error) *answerError {
	if a, ok := errors.AsType[*answerError](err); ok {
		return a
	}
	if e, ok := errors.AsType[*tool.ExternalError](err); ok {
		return &answerError{Code: codeServerError, Message: e.Message, Data: serverError{e.Code, e.Data}}
	}
	f := fault.From(err)
	data := f.Data()
	return &answerError{Code: strings.ToLower(f.Code()), Message: f.Text(),
		Data: map[string]any{"recovery_suggestions": data.RecoverySuggestions, "context": data.Context}}
}

// Error implements error.
func (e *answerError) Error() string { return e.Message }
