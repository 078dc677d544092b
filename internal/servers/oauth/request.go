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
	// LinkLifetime is how long a link to log in is valid.
	LinkLifetime = 10 * time.Minute

	maxRequests     = 1000 // authorization requests that wait for a browser
	MaxPerPrincipal = 20   // the same, of one principal
)

var (
	// ErrNotWaiting means that no attempt waits for this log-in (any more).
	ErrNotWaiting = errors.New("nobody waits for this log-in")
	// ErrOtherBrowser means that a log-in belongs to another browser, or that the browser
	// did not send its cookie.
	ErrOtherBrowser = errors.New("this log-in was not begun in this browser")
)

// newRequest is an OAuth authorization request that waits for the user's browser.
type newRequest struct {
	server    Server
	address   string // the MCP server's URL, as the user is shown it
	id, state string
	loginURL  *url.URL // the page to log in, of the authorization server
	receivers []string // other hosts that get data of the log-in
	result    chan *sdk.AuthorizationResult
	browser   string // the cookie of the browser that was redirected; empty: none was yet
}

// addRequest adds a request, unless there are too many. The error is safe.
func (l *Logins) addRequest(r *newRequest) error {
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
	if n >= MaxPerPrincipal {
		return safeError(fmt.Sprintf("%d log-ins of this user wait for a browser, which is the limit; "+
			"do one of them, or try again later", n))
	}
	if len(l.byID) >= maxRequests {
		return safeError("too many log-ins are in progress; try again later")
	}
	l.byID[r.id], l.byState[r.state] = r, r
	return nil
}

func (l *Logins) removeRequest(r *newRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byID, r.id)
	delete(l.byState, r.state)
}

// WaitingOwners returns the ids of the principals with log-ins that wait for a browser.
func (l *Logins) WaitingOwners() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for _, r := range l.byID {
		all[r.server.Owner.ID] = true
	}
	return all
}

// startLink returns the link that begins a log-in. Its path is beside that of the callback,
// so that the browser sends the same cookie to both.
func (l *Logins) startLink(id string) string {
	u, err := url.Parse(l.Callback)
	if err != nil {
		return ""
	}
	return u.ResolveReference(&url.URL{Path: "start/" + id}).String()
}

// ConsentPage is the content of the page that a user sees first. It shows for whom and
// for which server the log-in is, so that users notice a link that somebody else sent them.
type ConsentPage struct {
	User     string // the server's owner
	Server   string // the server's name
	Address  string // the server's URL, without parts that may be secret
	Operator bool   // the server is in the operator's settings
	Host     string // of the page to log in, in ASCII
	// Receivers are other hosts that get data of the log-in, such as that of the
	// token endpoint.
	Receivers []string
	// Browser is the cookie to set in the browser, and Proof a parameter of the page's link
	// to continue: it proves that this browser was shown the page.
	Browser, Proof string
}

// ConsentPage returns the page of the link with that id, for a browser that sent these
// cookies.
func (l *Logins) ConsentPage(id string, cookies []string) (ConsentPage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byID[id]
	if r == nil {
		return ConsentPage{}, ErrNotWaiting
	}
	browser := r.ownCookie(cookies)
	if browser == "" && r.browser != "" {
		return ConsentPage{}, ErrOtherBrowser
	}
	if browser == "" {
		browser = secret.ID()
	}
	return ConsentPage{User: spec.SafeText(r.server.Owner.Name, 200), Server: spec.SafeText(r.server.Name, 200),
		Address: r.address, Operator: r.server.Configured, Host: r.loginURL.Host, Receivers: r.receivers,
		Browser: browser, Proof: r.proof(browser)}, nil
}

// ownCookie returns which of the cookies is that of the browser that was redirected or, if none
// was yet, has the right length; empty: none.
func (r *newRequest) ownCookie(cookies []string) string {
	for _, c := range cookies {
		same := subtle.ConstantTimeCompare([]byte(c), []byte(r.browser)) == 1
		if r.browser == "" && len(c) == len(r.id) || r.browser != "" && same {
			return c
		}
	}
	return ""
}

// proof returns ConsentPage.Proof for a browser with that cookie.
func (r *newRequest) proof(browser string) string {
	sum := sha256.Sum256([]byte("sandlot log-in\x00" + r.id + "\x00" + browser))
	return hex.EncodeToString(sum[:16])
}

// Redirect returns the URL of the page to log in, if the proof shows that the browser was
// shown the consent page. From then on the log-in belongs to that browser.
func (l *Logins) Redirect(id string, cookies []string, proof string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byID[id]
	if r == nil {
		return "", ErrNotWaiting
	}
	for _, c := range cookies {
		if r.ownCookie([]string{c}) != "" && subtle.ConstantTimeCompare([]byte(r.proof(c)), []byte(proof)) == 1 {
			r.browser = c
			return r.loginURL.String(), nil
		}
	}
	return "", ErrOtherBrowser
}

// HandleCallback is called when a browser returns from the page to log in. cookies returns the
// cookies that it sent for the log-in with an id. A response is accepted once. The result
// is the id, or "" with ErrNotWaiting. After ErrOtherBrowser the log-in still waits.
func (l *Logins) HandleCallback(query url.Values, cookies func(id string) []string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byState[query.Get("state")]
	if r == nil {
		return "", ErrNotWaiting
	}
	if r.browser == "" || r.ownCookie(cookies(r.id)) == "" {
		return r.id, ErrOtherBrowser
	}
	delete(l.byID, r.id)
	delete(l.byState, r.state)
	r.result <- &sdk.AuthorizationResult{Code: query.Get("code"), State: r.state, Iss: query.Get("iss")}
	return r.id, nil
}

// shownAddress returns the URL of a server without parts that may be secret: for a user's
// server without the query, for one of the operator's settings only scheme and host. The
// host is in ASCII. The error is safe.
func shownAddress(address string, configured bool) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", safeError("it cannot be read")
	}
	host, err := asciiHost(u)
	if err != nil {
		return "", err
	}
	shown := url.URL{Scheme: u.Scheme, Host: host}
	if !configured {
		shown.Path = u.Path
	}
	return spec.SafeText(shown.String(), 2*maxHostName), nil
}
