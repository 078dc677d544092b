package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/net/idna"
	"golang.org/x/oauth2"

	"sandlot/internal/servers/spec"
)

const (
	maxMetadata  = 1 << 20 // bytes of an authorization server's metadata; the SDK reads no more
	maxAuthorize = 8 << 10 // bytes of the URL at which a user logs in
	maxHost      = 253     // bytes of a host's name in the DNS
)

// endpoints are the members of an authorization server's metadata that are used here.
type endpoints struct {
	Issuer       string `json:"issuer"`
	Authorize    string `json:"authorization_endpoint"`
	Token        string `json:"token_endpoint"`
	Registration string `json:"registration_endpoint"`
	// SaysIssuer: authorization responses have the parameter iss (RFC 9207).
	SaysIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// step is what the last request of an attempt to log in was for.
type step int

const (
	findsServer   step = iota // looks for the authorization server
	readsMetadata             // reads the metadata of the authorization server
	registers                 // registers Sandlot as a client
	exchanges                 // exchanges a code for a token
)

// attempt is one attempt to log in. It waits for the user, so it outlives the MCP request
// for which it was started.
type attempt struct {
	cancel   context.CancelFunc
	metadata metadata
	asked    chan struct{} // closed when link is set, and the user has to log in
	link     string        // for the user
	done     chan struct{}
	err      error
}

// attemptKey is the context key of the attempt that a request belongs to.
type attemptKey struct{}

// metadata is what one attempt to log in has learned about the authorization server. It
// decides where the attempt may send secrets, and what its error says.
type metadata struct {
	mu     sync.Mutex
	named  endpoints // of the last metadata document
	from   string    // the origin of that document, even if it did not exist
	step   step
	asked  bool  // the user got the link to log in
	status int   // the HTTP status of the last response; 0: there was none
	cause  error // why there was none
}

// guardedTransport makes the requests of an attempt to log in. It sends secrets only to
// endpoints in the metadata, which the user is shown, and does not allow redirects of
// requests with secrets.
type guardedTransport struct{ way http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	a, ok := r.Context().Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, errors.New("this request belongs to no log-in")
	}
	a.metadata.begins(r)
	if r.Method != http.MethodGet {
		if err := a.metadata.may(r.URL); err != nil {
			return nil, err
		}
	}
	resp, err := t.way.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet {
		err = a.metadata.read(r.URL, resp)
	}
	if err == nil && r.Method != http.MethodGet && resp.StatusCode/100 == 3 {
		resp.Body.Close()
		err = safeError("the authorization server redirects what is secret elsewhere")
	}
	a.metadata.mu.Lock()
	defer a.metadata.mu.Unlock()
	if a.metadata.status, a.metadata.cause = 0, err; err != nil {
		return nil, err
	}
	a.metadata.status = resp.StatusCode
	return resp, nil
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t guardedTransport) CloseIdleConnections() {
	if c, ok := t.way.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// wellKnown are parts of the paths at which authorization servers have their metadata.
var wellKnown = []string{"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"}

// begins sets the step that a request belongs to.
func (m *metadata) begins(r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.Method == http.MethodGet:
		m.step = findsServer
		if slices.ContainsFunc(wellKnown, func(p string) bool { return strings.Contains(r.URL.Path, p) }) {
			m.step = readsMetadata
		}
	case m.asked:
		m.step = exchanges
	default:
		m.step = registers
	}
}

// read reads a metadata document. The SDK can read the response's body again.
func (m *metadata) read(from *url.URL, resp *http.Response) error {
	var named endpoints
	if resp.StatusCode == http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
		if err != nil {
			resp.Body.Close()
			return err
		}
		resp.Body = struct {
			io.Reader
			io.Closer
		}{bytes.NewReader(body), resp.Body}
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&named) // the SDK reports errors
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.named, m.from = named, Origin(from.String())
	return nil
}

// may returns an error if secrets must not be sent to a URL: it has to have the origin of
// an endpoint. An authorization server without metadata has its endpoints at the origin
// where the metadata would be.
func (m *metadata) may(to *url.URL) error {
	if err := plain(to); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := Origin(to.String())
	for _, e := range []string{m.named.Token, m.named.Registration} {
		if e != "" && Origin(e) == at {
			return nil
		}
	}
	if m.named == (endpoints{}) && m.from == at {
		return nil
	}
	return safeError("an endpoint of the authorization server is not where its metadata say")
}

// receivers returns the hosts that get data of the log-in, except login, the host of the
// page to log in.
func (m *metadata) receivers(login string) (hosts []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, e := range []string{m.named.Authorize, m.named.Token, m.named.Registration} {
		if e == "" {
			continue
		}
		u, err := url.Parse(e)
		if err == nil {
			err = plain(u)
		}
		if err != nil {
			return nil, safeError("an endpoint of the authorization server cannot be used: " + cause(err))
		}
		host, _ := ascii(u)
		if n > 0 && host != login && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// ending returns how the last request failed, as safe text that is appended to an error.
func (m *metadata) ending() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.cause != nil:
		return ": " + cause(m.cause)
	case m.status >= 300:
		return fmt.Sprintf(" (HTTP %d)", m.status)
	}
	return ""
}

// parameters are the parameters of OAuth that the URL of an endpoint must not have:
// Sandlot adds them, and servers differ in which of two values they use.
var parameters = strings.Fields(`client_id client_secret client_assertion client_assertion_type code code_challenge
	code_challenge_method code_verifier grant_type redirect_uri refresh_token request request_uri resource response_mode
	response_type scope state`)

// plain returns an error if the URL of an endpoint cannot be used.
func plain(u *url.URL) error {
	if u.Scheme != "https" && u.Scheme != "http" || u.Opaque != "" {
		return safeError("it is no address of the web")
	}
	if u.User != nil || u.Fragment != "" || u.RawFragment != "" {
		return safeError("its address has a user's name or a fragment")
	}
	if _, err := ascii(u); err != nil {
		return err
	}
	counts, err := counted(u)
	if err == nil && len(counts) > 0 {
		err = safeError("its address has parameters of OAuth")
	}
	return err
}

// counted returns how often a URL has each parameter of OAuth, also under names that
// lenient servers treat the same, such as "State" or "state[]".
func counted(u *url.URL) (map[string]int, error) {
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, safeError("the query of its address cannot be read")
	}
	n := map[string]int{}
	for k, v := range q {
		k, _, _ = strings.Cut(strings.ToLower(strings.TrimSpace(k)), "[")
		if slices.Contains(parameters, k) {
			n[k] += len(v)
		}
	}
	return n, nil
}

// logsIn parses the URL at which a user logs in: the authorization endpoint with Sandlot's
// parameters. It makes the host ASCII, as the user is shown it and the browser gets it.
func logsIn(address string) (*url.URL, error) {
	if len(address) > maxAuthorize {
		return nil, safeError(fmt.Sprintf("its address has over %d bytes", maxAuthorize))
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, safeError("its address cannot be read")
	}
	counts, err := counted(u)
	if err != nil {
		return nil, err
	}
	for k, n := range counts {
		if n > 1 || k == "request" || k == "request_uri" || k == "response_mode" {
			return nil, safeError("its address has parameters of OAuth")
		}
	}
	bare := *u
	bare.RawQuery = ""
	if err := plain(&bare); err != nil {
		return nil, err
	}
	u.Host, err = ascii(u)
	return u, err
}

// ascii returns the host and port of a URL, the host as the DNS has it: so users see which
// host is connected to, and no invisible or similar characters.
func ascii(u *url.URL) (string, error) {
	host, port := u.Hostname(), u.Port()
	if ip := net.ParseIP(host); ip != nil {
		host = ip.String()
	} else {
		known := func(r rune) bool {
			return r == '_' || r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z'
		}
		host = strings.ToLower(host)
		strange := func(r rune) bool { return !known(r) }
		if strings.ContainsFunc(host, strange) || strings.Contains(host, "xn--") {
			var err error
			if host, err = idna.Lookup.ToASCII(host); err != nil {
				return "", safeError("the name of its host cannot be used")
			}
		}
		if host == "" || len(host) > maxHost || strings.ContainsFunc(host, strange) {
			return "", safeError("the name of its host cannot be used")
		}
	}
	switch {
	case port != "":
		return net.JoinHostPort(host, port), nil
	case strings.Contains(host, ":"):
		return "[" + host + "]", nil
	}
	return host, nil
}

// Origin returns the scheme, host and port of a URL.
func Origin(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// issuerIs reports whether two issuers are the same, by the SDK's rule.
func issuerIs(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// preregistered reports whether the settings have a client that the authorization
// server knows already. A client id that is a URL names a client metadata document
// instead.
func preregistered(o spec.OAuth) bool {
	return o.ClientID != "" && !strings.HasPrefix(o.ClientID, "https://")
}

// redact returns a safe error for an error of a log-in: texts of an authorization server
// may repeat secrets. The safe error says at which step the attempt failed.
func (m *metadata) redact(known spec.OAuth, err error) error {
	var refused *oauth2.RetrieveError
	if own, ok := errors.AsType[safeError](err); ok {
		return own
	}
	if err == nil || errors.As(err, &refused) {
		return redactToken(err)
	}
	ending := m.ending()
	m.mu.Lock()
	step, named, issuer := m.step, m.named, m.named.Issuer
	if issuer == "" && m.cause == nil { // without metadata, the issuer is the origin where they would be
		issuer = m.from
	}
	m.mu.Unlock()
	switch step {
	case findsServer:
		return safeError("the server names no authorization server" + ending)
	case readsMetadata:
		switch {
		case preregistered(known) && known.Issuer != "" && issuer != "" && !issuerIs(issuer, known.Issuer):
			return errIssuer
		case !preregistered(known) && named != (endpoints{}) && named.Registration == "":
			return safeError("the authorization server registers no clients by itself: the operator's settings " +
				"have to name one (oauth_client_id)" + ending)
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

// answers returns an error if the parameter iss of an authorization response is wrong
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
