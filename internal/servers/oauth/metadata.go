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
	maxMetadata = 1 << 20 // bytes of an authorization server's metadata; the SDK reads no more
	maxLoginURL = 8 << 10 // bytes of the URL at which a user logs in
	maxHostName = 253     // bytes of a host's name in the DNS
)

// endpoints are the members of an authorization server's metadata that are used here.
type endpoints struct {
	Issuer                string `json:"issuer"`
	AuthorizationEndpoint string `json:"authorization_endpoint"`
	TokenEndpoint         string `json:"token_endpoint"`
	RegistrationEndpoint  string `json:"registration_endpoint"`
	// ReturnsIssuer: authorization responses have the parameter iss (RFC 9207).
	ReturnsIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// step is what the last request of an attempt to log in was for.
type step int

const (
	stepFindServer   step = iota // looks for the authorization server
	stepReadMetadata             // reads the metadata of the authorization server
	stepRegister                 // registers Sandlot as a client
	stepExchange                 // exchanges a code for a token
)

// attempt is one attempt to log in. It waits for the user, so it outlives the MCP request
// for which it was started.
type attempt struct {
	cancel    context.CancelFunc
	metadata  metadata
	linkReady chan struct{} // closed when link is set, and the user has to log in
	link      string        // for the user
	done      chan struct{}
	err       error
}

// attemptKey is the context key of the attempt that a request belongs to.
type attemptKey struct{}

// metadata is what one attempt to log in has learned about the authorization server. It
// decides where the attempt may send secrets, and what its error says.
type metadata struct {
	mu        sync.Mutex
	endpoints endpoints // of the last metadata document
	origin    string    // the origin of that document, even if it did not exist
	step      step
	prompted  bool  // the user got the link to log in
	status    int   // the HTTP status of the last response; 0: there was none
	err       error // why there was none
}

// guardedTransport makes the requests of an attempt to log in. It sends secrets only to
// endpoints in the metadata, which the user is shown, and does not allow redirects of
// requests with secrets.
type guardedTransport struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	a, ok := r.Context().Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, errors.New("this request belongs to no log-in")
	}
	a.metadata.setStep(r)
	if r.Method != http.MethodGet {
		if err := a.metadata.checkSecretTarget(r.URL); err != nil {
			return nil, err
		}
	}
	resp, err := t.base.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet {
		err = a.metadata.readDocument(r.URL, resp)
	}
	if err == nil && r.Method != http.MethodGet && resp.StatusCode/100 == 3 {
		resp.Body.Close()
		err = safeError("the authorization server redirects what is secret elsewhere")
	}
	a.metadata.mu.Lock()
	defer a.metadata.mu.Unlock()
	if a.metadata.status, a.metadata.err = 0, err; err != nil {
		return nil, err
	}
	a.metadata.status = resp.StatusCode
	return resp, nil
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t guardedTransport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// wellKnown are parts of the paths at which authorization servers have their metadata.
var wellKnown = []string{"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"}

// setStep sets the step that a request belongs to.
func (m *metadata) setStep(r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.Method == http.MethodGet:
		m.step = stepFindServer
		if slices.ContainsFunc(wellKnown, func(p string) bool { return strings.Contains(r.URL.Path, p) }) {
			m.step = stepReadMetadata
		}
	case m.prompted:
		m.step = stepExchange
	default:
		m.step = stepRegister
	}
}

// readDocument reads a metadata document. The SDK can read the response's body again.
func (m *metadata) readDocument(from *url.URL, resp *http.Response) error {
	var parsed endpoints
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
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&parsed) // the SDK reports errors
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoints, m.origin = parsed, Origin(from.String())
	return nil
}

// checkSecretTarget returns an error if secrets must not be sent to a URL: it has to have the origin of
// an endpoint. An authorization server without metadata has its endpoints at the origin
// where the metadata would be.
func (m *metadata) checkSecretTarget(to *url.URL) error {
	if err := checkEndpoint(to); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	origin := Origin(to.String())
	for _, e := range []string{m.endpoints.TokenEndpoint, m.endpoints.RegistrationEndpoint} {
		if e != "" && Origin(e) == origin {
			return nil
		}
	}
	if m.endpoints == (endpoints{}) && m.origin == origin {
		return nil
	}
	return safeError("an endpoint of the authorization server is not where its metadata say")
}

// receivers returns the hosts that get data of the log-in, except login, the host of the
// page to log in.
func (m *metadata) receivers(login string) (hosts []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, e := range []string{m.endpoints.AuthorizationEndpoint, m.endpoints.TokenEndpoint,
		m.endpoints.RegistrationEndpoint} {
		if e == "" {
			continue
		}
		u, err := url.Parse(e)
		if err == nil {
			err = checkEndpoint(u)
		}
		if err != nil {
			return nil, safeError("an endpoint of the authorization server cannot be used: " + safeCause(err))
		}
		host, _ := asciiHost(u)
		if n > 0 && host != login && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// failure returns how the last request failed, as safe text that is appended to an error.
func (m *metadata) failure() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return ": " + safeCause(m.err)
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

// checkEndpoint returns an error if the URL of an endpoint cannot be used.
func checkEndpoint(u *url.URL) error {
	if u.Scheme != "https" && u.Scheme != "http" || u.Opaque != "" {
		return safeError("it is not an address of the web")
	}
	if u.User != nil || u.Fragment != "" || u.RawFragment != "" {
		return safeError("its address has a user's name or a fragment")
	}
	if _, err := asciiHost(u); err != nil {
		return err
	}
	counts, err := countParameters(u)
	if err == nil && len(counts) > 0 {
		err = safeError("its address has parameters of OAuth")
	}
	return err
}

// countParameters returns how often a URL has each parameter of OAuth, also under names that
// lenient servers treat the same, such as "State" or "state[]".
func countParameters(u *url.URL) (map[string]int, error) {
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

// parseLoginURL parses the URL at which a user logs in: the authorization endpoint with Sandlot's
// parameters. It makes the host ASCII, as the user is shown it and the browser gets it.
func parseLoginURL(address string) (*url.URL, error) {
	if len(address) > maxLoginURL {
		return nil, safeError(fmt.Sprintf("its address has over %d bytes", maxLoginURL))
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, safeError("its address cannot be read")
	}
	counts, err := countParameters(u)
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
	if err := checkEndpoint(&bare); err != nil {
		return nil, err
	}
	u.Host, err = asciiHost(u)
	return u, err
}

// asciiHost returns the host and port of a URL, the host as the DNS has it: so users see which
// host is connected to, and no invisible or similar characters.
func asciiHost(u *url.URL) (string, error) {
	host, port := u.Hostname(), u.Port()
	if ip := net.ParseIP(host); ip != nil {
		host = ip.String()
	} else {
		isPlain := func(r rune) bool {
			return r == '_' || r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z'
		}
		host = strings.ToLower(host)
		isSpecial := func(r rune) bool { return !isPlain(r) }
		if strings.ContainsFunc(host, isSpecial) || strings.Contains(host, "xn--") {
			var err error
			if host, err = idna.Lookup.ToASCII(host); err != nil {
				return "", safeError("the name of its host cannot be used")
			}
		}
		if host == "" || len(host) > maxHostName || strings.ContainsFunc(host, isSpecial) {
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

// sameIssuer reports whether two issuers are the same, by the SDK's rule.
func sameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// preregistered reports whether the settings have a client that the authorization
// server knows already. A client id that is a URL names a client metadata document
// instead.
func preregistered(o spec.OAuth) bool {
	return o.ClientID != "" && !strings.HasPrefix(o.ClientID, "https://")
}

// redact returns a safe error for an error of a log-in: texts of an authorization server
// may repeat secrets. The safe error says at which step the attempt failed.
func (m *metadata) redact(settings spec.OAuth, err error) error {
	var refused *oauth2.RetrieveError
	if safe, ok := errors.AsType[safeError](err); ok {
		return safe
	}
	if err == nil || errors.As(err, &refused) {
		return redactToken(err)
	}
	failure := m.failure()
	m.mu.Lock()
	step, named, issuer := m.step, m.endpoints, m.endpoints.Issuer
	if issuer == "" && m.err == nil { // without metadata, the issuer is the origin where they would be
		issuer = m.origin
	}
	m.mu.Unlock()
	switch step {
	case stepFindServer:
		return safeError("the server names no authorization server" + failure)
	case stepReadMetadata:
		switch {
		case preregistered(settings) && settings.Issuer != "" && issuer != "" && !sameIssuer(issuer, settings.Issuer):
			return errIssuer
		case !preregistered(settings) && named != (endpoints{}) && named.RegistrationEndpoint == "":
			return safeError("the authorization server registers no clients by itself: the operator's settings " +
				"have to name one (oauth_client_id)" + failure)
		}
		return safeError("the authorization server's metadata cannot be used" + failure)
	case stepRegister:
		text := "the authorization server does not register Sandlot as a client" + failure
		var unregistered *oauthex.ClientRegistrationError
		if errors.As(err, &unregistered) && slices.Contains(registrationErrors, unregistered.ErrorCode) {
			text += ": " + unregistered.ErrorCode
		}
		return safeError(text)
	}
	return safeError("the authorization server issued no token" + failure)
}

// checkIssuer returns an error if the parameter iss of an authorization response is wrong
// (RFC 9207).
func (m *metadata) checkIssuer(issuer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.endpoints.ReturnsIssuer && issuer == "":
		return safeError("the authorization server did not say that it was it that answered (iss)")
	case m.endpoints != (endpoints{}) && issuer != "" && issuer != m.endpoints.Issuer:
		return safeError("it was not the authorization server itself that answered (iss)")
	case !m.endpoints.ReturnsIssuer && issuer != "":
		return safeError("the authorization server says who it is (iss) though its metadata do not have that")
	}
	return nil
}
