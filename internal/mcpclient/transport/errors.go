package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sandlot/internal/fault"
)

var (
	// ErrClosed means that the session is over. The server may or may not have executed
	// the calls that were in flight.
	ErrClosed = errors.New("the session with the server is over")
	// ErrSessionLost means that the server does not know the session any more. The server has
	// not executed a call that fails with it: connect again, and repeat the call.
	ErrSessionLost = errors.New("the server has forgotten the session")
	// ErrTimeout means that the server did not answer in time.
	ErrTimeout = errors.New("the server did not answer in time")
	// ErrTooLarge means that the server sent more than is accepted.
	ErrTooLarge = errors.New("the server sent more than is accepted")
	// ErrSlow means that the memory for a large message was needed by others, or held for too long, before the server
	// had sent all of it.
	ErrSlow = errors.New("the server took too long to send a large answer")
)

// Error is a JSON-RPC error that the server sent, or that is sent to it.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("the server answered with error %d: %s", e.Code, Clip(e.Message, 1000))
}

// InvalidAnswerError is an answer whose result is no object, as MCP wants it to be.
type InvalidAnswerError struct{ Result string } // the JSON of the result, clipped

func (e *InvalidAnswerError) Error() string {
	if e.Result == "" || e.Result == "null" {
		return "the server answered with no result"
	}
	return "the server answered with a result that is not an object, as MCP wants it to be: " + e.Result
}

// Codes of JSON-RPC and of MCP.
const (
	CodeInvalidRequest = -32600
	CodeUnknownMethod  = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	CodeBusy           = -32000
	CodeVersion        = -32022 // the server does not speak the revision of the request
)

// UnauthorizedError is a response 401 or 403 after which no log-in was tried, or a log-in
// did not help. The error is always a pointer.
type UnauthorizedError struct {
	Status    int    // 401 or 403
	Challenge string // WWW-Authenticate, clipped
	Body      string // the beginning of the response's body
	Cause     error  // why the log-in failed; nil: none was possible, or the new token was refused too
}

func (e *UnauthorizedError) Error() string {
	what := "the server wants a login (HTTP 401)"
	if e.Status == 403 {
		what = "the server refuses what the credentials do not allow (HTTP 403)"
	}
	switch {
	case e.Cause != nil:
		return fmt.Sprintf("%s, and logging in failed: %v", what, e.Cause)
	case e.Body != "":
		return fmt.Sprintf("%s; check the credentials that it is given. It said: %s", what, e.Body)
	}
	return what + "; check the credentials that it is given"
}

func (e *UnauthorizedError) Unwrap() error { return e.Cause }

// UnreachableError is the error of an HTTP request without a response.
type UnreachableError struct{ Cause error }

func (u *UnreachableError) Error() string {
	return fmt.Sprintf("the server cannot be reached, or hung up: %v", u.Cause)
}
func (u *UnreachableError) Unwrap() error { return u.Cause }

// statusError is an HTTP response that the protocol does not allow, or that is an error.
type statusError struct {
	status int
	body   string // its beginning
	cause  error  // the JSON-RPC error in the body, if any
}

func (e *statusError) Error() string {
	switch {
	case e.cause != nil:
		return e.cause.Error()
	case e.body != "":
		return fmt.Sprintf("the server answered HTTP %d: %s", e.status, e.body)
	}
	return fmt.Sprintf("the server answered HTTP %d", e.status)
}

func (e *statusError) Unwrap() error { return e.cause }

// Clip makes a text of the server fit for an error or a log: one line of about max bytes,
// without control characters.
func Clip(s string, max int) string {
	return strings.Join(strings.Fields(fault.Printable(s, max)), " ")
}
