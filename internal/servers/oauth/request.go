package oauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"

	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
)

const (
	// Limit is how long a link to log in is valid.
	Limit = 10 * time.Minute

	maxRequests = 1000 // that wait for a browser
	MaxOwn      = 20   // of them, of one principal
)

var (
	// ErrOver means that nobody waits for a log-in.
	ErrOver = errors.New("nobody waits for this log-in")
	// ErrOtherBrowser means that a log-in belongs to another browser, or that the browser
	// did not send its cookie.
	ErrOtherBrowser = errors.New("this log-in was not begun in this browser")
)

// request is an authorization request that waits for the user's browser.
type request struct {
	server    Server
	address   string // of the server, as it is shown; it may have changed since
	id, state string
	to        *url.URL // at the authorization server
	receivers []string // hosts, besides that one, that get something of the log-in
	back      chan *sdk.AuthorizationResult
	browser   string // the cookie of the browser that was redirected; empty: none was
}

// put adds a request, unless there are too many. The error is safe.
func (l *Logins) put(r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.state == "" || l.byState[r.state] != nil {
		return safeError("the state of the log-in is not its own")
	}
	n := 0
	for _, other := range l.byID {
		if other.server.Owner.ID == r.server.Owner.ID {
			n++
		}
	}
	if n >= MaxOwn {
		return safeError(fmt.Sprintf("%d log-ins of this user wait for a browser, which is the limit; "+
			"do one of them, or try again later", n))
	}
	if len(l.byID) >= maxRequests {
		return safeError("too many log-ins are on their way; try again later")
	}
	l.byID[r.id], l.byState[r.state] = r, r
	return nil
}

func (l *Logins) drop(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byID, r.id)
	delete(l.byState, r.state)
}

// Waiting returns the ids of the principals whose log-ins wait for a browser.
func (l *Logins) Waiting() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for _, r := range l.byID {
		all[r.server.Owner.ID] = true
	}
	return all
}

// startsAt returns the link that begins a log-in. It lies beside the callback, so that one
// cookie is sent to both.
func (l *Logins) startsAt(id string) string {
	u, err := url.Parse(l.Callback)
	if err != nil {
		return ""
	}
	return u.ResolveReference(&url.URL{Path: "start/" + id}).String()
}

// ConsentPage is the content of the page behind the link to log in. Users see from it
// when a link is not their own.
type ConsentPage struct {
	User     string // the server's owner
	Server   string // its name
	Address  string // its address, without parts that may be secret
	Operator bool   // the operator's settings name it
	Host     string // of the authorization server's page, in ASCII
	// Receivers are other hosts that get something of the log-in, such as that of the
	// token endpoint.
	Receivers []string
	// Browser is the browser's cookie, and Proof a parameter of the link that goes on:
	// it shows that the page was seen in that browser.
	Browser, Proof string
}

// ConsentPage returns the page of the link with that id, for a browser that sent these
// cookies, if any.
func (l *Logins) ConsentPage(id string, cookies []string) (ConsentPage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byID[id]
	if r == nil {
		return ConsentPage{}, ErrOver
	}
	browser := r.own(cookies)
	if browser == "" && r.browser != "" {
		return ConsentPage{}, ErrOtherBrowser
	}
	if browser == "" {
		browser = secret.ID()
	}
	return ConsentPage{User: spec.Text(r.server.Owner.Name, 200), Server: spec.Text(r.server.Name, 200),
		Address: r.address, Operator: r.server.Configured, Host: r.to.Host, Receivers: r.receivers,
		Browser: browser, Proof: r.proof(browser)}, nil
}

// own returns the cookie of the browser that was redirected or, while none was, a cookie
// of the right form; empty: there is none.
func (r *request) own(cookies []string) string {
	for _, c := range cookies {
		same := subtle.ConstantTimeCompare([]byte(c), []byte(r.browser)) == 1
		if r.browser == "" && len(c) == len(r.id) || r.browser != "" && same {
			return c
		}
	}
	return ""
}

// proof returns what only a page that was shown to that browser can know.
func (r *request) proof(browser string) string {
	sum := sha256.Sum256([]byte("sandlot log-in\x00" + r.id + "\x00" + browser))
	return hex.EncodeToString(sum[:16])
}

// Redirect returns where the user logs in, when the proof shows that the browser has
// shown the consent page. From then on the log-in belongs to that browser.
func (l *Logins) Redirect(id string, cookies []string, proof string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byID[id]
	if r == nil {
		return "", ErrOver
	}
	for _, c := range cookies {
		if r.own([]string{c}) != "" && subtle.ConstantTimeCompare([]byte(r.proof(c)), []byte(proof)) == 1 {
			r.browser = c
			return r.to.String(), nil
		}
	}
	return "", ErrOtherBrowser
}

// Returned is called when a browser comes back from a log-in; cookies returns those that
// it sent for the log-in with that id. An answer is accepted once. Returned returns the
// id, or "" with ErrOver. After ErrOtherBrowser the log-in still waits.
func (l *Logins) Returned(query url.Values, cookies func(id string) []string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byState[query.Get("state")]
	if r == nil {
		return "", ErrOver
	}
	if r.browser == "" || r.own(cookies(r.id)) == "" {
		return r.id, ErrOtherBrowser
	}
	delete(l.byID, r.id)
	delete(l.byState, r.state)
	r.back <- &sdk.AuthorizationResult{Code: query.Get("code"), State: r.state, Iss: query.Get("iss")}
	return r.id, nil
}

// shownAddress returns a server's address as strangers may see it: of a user's server
// without the query, of the operator's the host alone, which is in ASCII. The error is
// safe.
func shownAddress(address string, configured bool) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", safeError("it cannot be read")
	}
	host, err := ascii(u)
	if err != nil {
		return "", err
	}
	shown := url.URL{Scheme: u.Scheme, Host: host}
	if !configured {
		shown.Path = u.Path
	}
	return spec.Text(shown.String(), 2*maxHost), nil
}
