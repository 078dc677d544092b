package oauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
)

// safeError is an error without text of third parties, so that clients may see it.
type safeError string

func (e safeError) Error() string { return string(e) }

// errIssuer means that the MCP server names another authorization server than the
// operator's settings.
const errIssuer = safeError("the server refers to another authorization server than the one that its settings name " +
	"(oauth_issuer)")

// redactToken returns a safe error for an error of the token endpoint.
func redactToken(err error) error {
	if err == nil {
		return nil
	}
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return safeError("the authorization server issued no token: " + safeCause(err))
	}
	r := &tokenRefusal{}
	if refused.Response != nil {
		r.status = refused.Response.StatusCode
	}
	if slices.Contains(tokenErrors, refused.ErrorCode) {
		r.code = refused.ErrorCode
	}
	return r
}

// safeCause returns why a request failed, without text of the server, such as the names in a
// certificate.
func safeCause(err error) string {
	var f *fault.Error
	safe, ok := errors.AsType[safeError](err)
	var netErr net.Error
	switch {
	case ok:
		return string(safe)
	case errors.As(err, &f):
		return f.Message
	case errors.Is(err, context.Canceled):
		return "it was cancelled"
	case errors.As(err, &netErr) && netErr.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "there was no answer in time"
	case errors.Is(err, errConnRefused):
		return "nothing listens there"
	case errors.As(err, &netErr):
		return "it cannot be reached"
	}
	return "there was no answer that can be used"
}

// registrationErrors are the errors of RFC 7591, 3.2.2.
var registrationErrors = []string{"invalid_redirect_uri", "invalid_client_metadata", "invalid_software_statement",
	"unapproved_software_statement"}

// tokenErrors are the errors of RFC 6749, 5.2.
var tokenErrors = []string{"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client",
	"unsupported_grant_type", "invalid_scope"}

// tokenRefusal is a safe error: the token endpoint gave no token.
type tokenRefusal struct {
	status int    // of HTTP; 0: there was no response
	code   string // one of tokenErrors; "": none of them
}

func (r *tokenRefusal) Error() string {
	s := "the authorization server issued no token"
	if r.status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", r.status)
	}
	if r.code != "" {
		s += ": " + r.code
	}
	return s
}

// Unwrap lets callers find out the code.
func (r *tokenRefusal) Unwrap() error { return &oauth2.RetrieveError{ErrorCode: r.code} }

// isFinal reports whether an error means that a log-in can never be renewed.
func isFinal(err error) bool {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	return ok && transport.CannotRenew(refused.ErrorCode)
}
