package oauth

import (
	"bytes"
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

	"golang.org/x/net/idna"
)

const (
	maxMetadata  = 1 << 20 // bytes of what an authorization server says of itself; the SDK reads no more
	maxAuthorize = 8 << 10 // bytes of the address at which a user logs in
	maxHost      = 253     // bytes of a host's name in the DNS
)

// endpoints are where an authorization server says that its parts are.
type endpoints struct {
	Issuer       string `json:"issuer"`
	Authorize    string `json:"authorization_endpoint"`
	Token        string `json:"token_endpoint"`
	Registration string `json:"registration_endpoint"`
	// SaysIssuer: the answer to a log-in names the issuer (RFC 9207).
	SaysIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// step is how far an attempt to log in has come, by the last request that it made.
type step int

const (
	findsServer   step = iota // it looks for the authorization server
	readsMetadata             // of the authorization server
	registers                 // Sandlot as a client
	exchanges                 // a code for a token
)

// metadata is what one attempt to log in was told: by that, and no more, is judged
// where it may send anything, and what can be told when it fails.
type metadata struct {
	mu     sync.Mutex
	named  endpoints // by the last metadata
	from   string    // the origin that the last of it came from, or should have
	step   step
	asked  bool  // the user was asked to log in
	status int   // of HTTP, of the last answer
	cause  error // why there was none
}

// guardedTransport reaches an authorization server while a user logs in. It sends
// what is secret to no endpoint but those that the metadata name, which the user
// is shown, and follows no redirect with it.
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

// CloseIdleConnections is what http.Client calls.
func (t guardedTransport) CloseIdleConnections() {
	if c, ok := t.way.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// wellKnown are the paths at which authorization servers have their metadata.
var wellKnown = []string{"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"}

// begins takes note of which step a request belongs to.
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

// read takes note of metadata. The answer can be read again.
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
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&named) // the SDK checks it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.named, m.from = named, Origin(from.String())
	return nil
}

// may says whether something may be sent to an endpoint. An authorization server
// without metadata has all of them where that should be.
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

// receivers are the hosts, besides that of the log-in itself, that get something
// of it.
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

// ending is what may be told of how the last request ended.
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

// parameters are those of OAuth that an endpoint must not bring: Sandlot's would be
// the second of that name, and who reads it chooses between them.
var parameters = []string{"client_id", "client_secret", "client_assertion", "client_assertion_type", "code",
	"code_challenge", "code_challenge_method", "code_verifier",
	"grant_type", "redirect_uri", "refresh_token", "request", "request_uri", "resource", "response_mode", "response_type", "scope", "state"}

// plain says what is wrong with an endpoint, if anything is.
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

// counted is how often each parameter of OAuth stands in an address, in whatever
// way some would read its name.
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

// logsIn takes the address apart at which a user logs in: an endpoint, and Sandlot's
// parameters. Its host is made ASCII, as it is shown and as the browser gets it.
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

// ascii is the host of an address, with its port, as the DNS has it: what people
// are shown is then what is reached, and nothing of it is invisible.
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

// Origin is the scheme and host of an address.
func Origin(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// issuerIs says whether two names of issuers are of the same one, as the SDK has it.
func issuerIs(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }
