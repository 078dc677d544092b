package mcpclient

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
	// ErrTooLarge means that the server sent more than is taken.
	ErrTooLarge = errors.New("the server sent more than is taken")
)

// Error is a JSON-RPC error, of the server or for it.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("the server answered with error %d: %s", e.Code, clip(e.Message, 1000))
}

// JSON-RPC's own codes, and MCP's.
const (
	codeInvalidRequest = -32600
	codeUnknownMethod  = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeBusy           = -32000
	codeVersion        = -32022 // the revision of the protocol is not spoken
)

// ErrUnauthorized is a 401 or 403 that a login could not, or may not, mend. It is
// always a pointer.
type ErrUnauthorized struct {
	Status    int    // 401 or 403
	Challenge string // WWW-Authenticate, clipped
	Said      string // the beginning of the server's own words
	Cause     error  // why the login failed; nil: nobody could log in, or the new token was refused as well
}

func (e *ErrUnauthorized) Error() string {
	what := "the server wants a login (HTTP 401)"
	if e.Status == 403 {
		what = "the server refuses what the credentials do not allow (HTTP 403)"
	}
	switch {
	case e.Cause != nil:
		return fmt.Sprintf("%s, and logging in failed: %v", what, e.Cause)
	case e.Said != "":
		return fmt.Sprintf("%s; check the credentials that it is given. It said: %s", what, e.Said)
	}
	return what + "; check the credentials that it is given"
}

func (e *ErrUnauthorized) Unwrap() error { return e.Cause }

// statusError is an HTTP answer that is none of the protocol.
type statusError struct {
	status int
	said   string
	cause  error // what the body said, if it was a JSON-RPC error
}

func (e *statusError) Error() string {
	switch {
	case e.cause != nil:
		return e.cause.Error()
	case e.said != "":
		return fmt.Sprintf("the server answered HTTP %d: %s", e.status, e.said)
	}
	return fmt.Sprintf("the server answered HTTP %d", e.status)
}

func (e *statusError) Unwrap() error { return e.cause }

// clip makes words of the server fit for a message: one line, bounded.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}
