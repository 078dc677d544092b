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
	// Limit is how long a link to log in is good.
	Limit = 10 * time.Minute

	maxRequests = 1000 // that wait for a browser
	MaxOwn      = 20   // of them, of one principal
)

var (
	// ErrOver means that nobody waits for a log-in, or not any more.
	ErrOver = errors.New("nobody waits for this log-in")
	// ErrOtherBrowser means that a log-in is another browser's, or that the browser
	// did not bring its cookie.
	ErrOtherBrowser = errors.New("this log-in was not begun in this browser")
)

// request is an authorization request: a log-in of a user that has not come back
// from their browser yet.
type request struct {
	server    Server
	address   string // the server's, as it is shown; it may have another by now
	id, state string
	to        *url.URL // at the authorization server
	receivers []string // hosts, besides that one, that get something of the log-in
	back      chan *sdk.AuthorizationResult
	browser   string // the cookie of the one that went on to log in; empty: none has
}

// put adds a request, unless there are too many. The error is a safe one.
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
		return safeError(fmt.Sprintf("%d log-ins of this user wait for a browser, which is the limit; do one of them, or try again later", n))
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

// Waiting are the ids of those of whom log-ins wait for a browser.
func (l *Logins) Waiting() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for _, r := range l.byID {
		all[r.server.Owner.ID] = true
	}
	return all
}

// startsAt is the link to begin a log-in with. It lies beside the callback, so
// that one cookie is for both.
func (l *Logins) startsAt(id string) string {
	u, err := url.Parse(l.Callback)
	if err != nil {
		return ""
	}
	return u.ResolveReference(&url.URL{Path: "start/" + id}).String()
}

// ConsentPage is what someone is told who opens the link to log in, so that they
// see when it is not theirs.
type ConsentPage struct {
	User     string // whose server it is
	Server   string // its name
	Address  string // where it is, without what may be secret
	Operator bool   // it is one of the operator's
	Host     string // of the place to log in, in ASCII
	// Receivers are other hosts that get something of the log-in: above all where
	// tokens are, to which the one who logs in gives access.
	Receivers []string
	// Browser is for the browser's cookie, and Proof for the link that goes on: it
	// shows that the page was seen in that browser.
	Browser, Proof string
}

// ConsentPage returns what the page says that the link with that id leads to. The
// browser has brought these cookies, which may be none.
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
		Address:  r.address,
		Operator: r.server.Configured, Host: r.to.Host, Receivers: r.receivers, Browser: browser, Proof: r.proof(browser)}, nil
}

// own is which of the cookies is the one of the browser that went on to log in,
// or, while none has, one that may be; empty: none.
func (r *request) own(cookies []string) string {
	for _, c := range cookies {
		if r.browser == "" && len(c) == len(r.id) || r.browser != "" && subtle.ConstantTimeCompare([]byte(c),
			[]byte(r.browser)) == 1 {
			return c
		}
	}
	return ""
}

// proof is what only a page that was shown to that browser can know.
func (r *request) proof(browser string) string {
	sum := sha256.Sum256([]byte("sandlot log-in\x00" + r.id + "\x00" + browser))
	return hex.EncodeToString(sum[:16])
}

// Redirect returns where the user logs in, when the browser has shown them what for.
// From then on the log-in is that browser's.
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

// Returned is called when a browser comes back from a log-in; cookies are those that
// it brings for the one with that id. What came is good once. The error is nil,
// ErrOver or ErrOtherBrowser, after which it goes on waiting. Returned
// returns the id, or "" with ErrOver.
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

// shownAddress is a server's address as strangers may see it: of a user's own
// without what stands behind a question mark, of the operator's the host alone,
// which is in ASCII. The error is a safe one.
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
