package oauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
)

// safeError is an error in Sandlot's own words, which may be told.
type safeError string

func (e safeError) Error() string { return string(e) }

// errIssuer means that the operator's settings name another authorization server
// than the MCP server does.
const errIssuer = safeError("the server leads to another authorization server than the one that its settings name (oauth_issuer)")

// redact is what may be told of an error of a log-in: the words of an authorization
// server may repeat what it was sent, or what it gave. What is told is how far the
// attempt came, as its requests show.
func (l *Login) redact(a *attempt, err error) error {
	var refused *oauth2.RetrieveError
	if own, ok := errors.AsType[safeError](err); ok {
		return own
	}
	if err == nil || errors.As(err, &refused) {
		return redactToken(err)
	}
	ending := a.metadata.ending()
	a.metadata.mu.Lock()
	step, named, issuer := a.metadata.step, a.metadata.named, a.metadata.named.Issuer
	if issuer == "" && a.metadata.cause == nil { // one without metadata is where they should be
		issuer = a.metadata.from
	}
	a.metadata.mu.Unlock()
	switch step {
	case findsServer:
		return safeError("the server names no authorization server" + ending)
	case readsMetadata:
		switch {
		case l.preregistered() && l.known.Issuer != "" && issuer != "" && !issuerIs(issuer, l.known.Issuer):
			return errIssuer
		case !l.preregistered() && named != (endpoints{}) && named.Registration == "":
			return safeError("the authorization server registers no clients by itself: the operator's settings have to name one (oauth_client_id)" + ending)
		}
		return safeError("the authorization server's metadata cannot be used" + ending)
	case registers:
		say := "the authorization server does not register Sandlot as a client" + ending
		var unregistered *oauthex.ClientRegistrationError
		if errors.As(err, &unregistered) && slices.Contains(registrationErrors, unregistered.ErrorCode) {
			say += ": " + unregistered.ErrorCode
		}
		return safeError(say)
	}
	return safeError("the authorization server gives no token" + ending)
}

// answers says what is wrong with the issuer that came with the answer to a log-in
// (RFC 9207).
func (m *metadata) answers(issuer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.named.SaysIssuer && issuer == "":
		return safeError("the authorization server did not say that it was it that answered (iss)")
	case m.named != (endpoints{}) && issuer != "" && issuer != m.named.Issuer:
		return safeError("it was not the authorization server itself that answered (iss)")
	case !m.named.SaysIssuer && issuer != "":
		return safeError("the authorization server says who it is (iss) though its metadata do not have that")
	}
	return nil
}

// redactToken is what may be told of why there is no token.
func redactToken(err error) error {
	var refused *oauth2.RetrieveError
	if err == nil || !errors.As(err, &refused) {
		if err != nil {
			err = safeError("the authorization server gives no token: " + cause(err))
		}
		return err
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

// cause is what may be told of why a request was not made, or not answered: Sandlot's
// own words, and never those of who was asked, such as the names of a certificate.
func cause(err error) string {
	var f *fault.Error
	own, ok := errors.AsType[safeError](err)
	var slow net.Error
	switch {
	case ok:
		return string(own)
	case errors.As(err, &f):
		return f.Message
	case errors.Is(err, context.Canceled):
		return "it was given up"
	case errors.As(err, &slow) && slow.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "there was no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(err, &slow):
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

// tokenRefusal is what is left of an answer of an authorization server.
type tokenRefusal struct {
	status int // of HTTP; 0: none was an error
	code   string
}

func (r *tokenRefusal) Error() string {
	s := "the authorization server gives no token"
	if r.status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", r.status)
	}
	if r.code != "" {
		s += ": " + r.code
	}
	return s
}

// Unwrap gives what the code says to those who act on it.
func (r *tokenRefusal) Unwrap() error { return &oauth2.RetrieveError{ErrorCode: r.code} }

// final says whether a log-in is over: it will not be renewed, however often that
// is asked for.
func final(err error) bool {
	var refused *oauth2.RetrieveError
	return errors.As(err, &refused) && transport.LoginOver(refused.ErrorCode)
}
