package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

var (
	// ErrClosed means that the session is over. Whether a call that was on its way
	// has had an effect is not known.
	ErrClosed = errors.New("the session with the server is over")
	// ErrLost means that the server does not know the session any more. A call
	// that fails with it has not run: connect again, and repeat it.
	ErrLost = errors.New("the server has forgotten the session")
	// ErrTimeout means that the server did not answer in time.
	ErrTimeout = errors.New("the server did not answer in time")
	// ErrTooLarge means that the server sent more than is accepted.
	ErrTooLarge = errors.New("the server sent more than is taken")
)

// Error is a JSON-RPC error, of the server or for it.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("the server answered with error %d: %s", e.Code, Clip(e.Message, 1000))
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

// ErrUnauthorized is a 401 or 403 that a log-in could not, or may not, mend. It is
// always a pointer.
type ErrUnauthorized struct {
	Status    int    // 401 or 403
	Challenge string // WWW-Authenticate, clipped
	Body      string // the beginning of the answer
	Cause     error  // why the log-in failed; nil: nobody could log in, or the new token was refused too
}

func (e *ErrUnauthorized) Error() string {
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

func (e *ErrUnauthorized) Unwrap() error { return e.Cause }

// Unreachable is the error of a request to which nothing came back.
type Unreachable struct{ Cause error }

func (u *Unreachable) Error() string {
	return fmt.Sprintf("the server cannot be reached, or hung up: %v", u.Cause)
}
func (u *Unreachable) Unwrap() error { return u.Cause }

// statusError is an HTTP answer that is none of the protocol.
type statusError struct {
	status int
	body   string // its beginning
	cause  error  // the JSON-RPC error in the body, if there was one
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

// Clip makes a server's text fit for a message: one line of at most max bytes.
func Clip(s string, max int) string {
	if len(s) > max {
		s = s[:max] + "…"
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}
