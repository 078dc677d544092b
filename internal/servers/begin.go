package servers

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"

	"sandlot/internal/secret"
)

const (
	loginLimit = 10 * time.Minute
	maxLogins  = 1000 // that wait for a browser
	ownLogins  = 20   // of them, of one principal
)

// LoginLimit is how long a link to log in is good.
const LoginLimit = loginLimit

var (
	// ErrLoginOver means that nobody waits for a log-in, or not any more.
	ErrLoginOver = errors.New("nobody waits for this log-in")
	// ErrOtherBrowser means that a log-in is another browser's, or that the browser
	// did not bring its cookie.
	ErrOtherBrowser = errors.New("this log-in was not begun in this browser")
)

// logins are the log-ins of users that have not come back from their browser
// yet: by the id in the link that the user was given, and by the state that comes
// back with them, which only the browser and the authorization server know.
type logins struct {
	mu      sync.Mutex
	byID    map[string]*pending
	byState map[string]*pending
}

// pending is one of them.
type pending struct {
	s         *server
	address   string // the server's, as it is shown; it may have another by now
	id, state string
	to        *url.URL // at the authorization server
	receivers []string // hosts, besides that one, that get something of the log-in
	back      chan *sdk.AuthorizationResult
	browser   string // the cookie of the one that went on to log in; empty: none has
}

// put adds one, unless there are too many. The error is one of ours.
func (l *logins) put(p *pending) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID, l.byState = map[string]*pending{}, map[string]*pending{}
	}
	if p.state == "" || l.byState[p.state] != nil {
		return ours("the state of the log-in is not its own")
	}
	n := 0
	for _, other := range l.byID {
		if other.s.owner.ID == p.s.owner.ID {
			n++
		}
	}
	if n >= ownLogins {
		return ours(fmt.Sprintf("%d log-ins of this user wait for a browser, which is the limit; do one of them, or try again later", n))
	}
	if len(l.byID) >= maxLogins {
		return ours("too many log-ins are on their way; try again later")
	}
	l.byID[p.id], l.byState[p.state] = p, p
	return nil
}

func (l *logins) drop(p *pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byID, p.id)
	delete(l.byState, p.state)
}

// startsAt is the link to begin a log-in with. It lies beside the callback, so
// that one cookie is for both.
func (b *Book) startsAt(id string) string {
	u, err := url.Parse(b.Callback)
	if err != nil {
		return ""
	}
	return u.ResolveReference(&url.URL{Path: "start/" + id}).String()
}

// Invitation is what someone is told who opens the link to log in, so that they
// see when it is not theirs.
type Invitation struct {
	User     string // whose connection it is
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

// Invite returns what the page says that the link with that id leads to. The
// browser has brought these cookies, which may be none.
func (b *Book) Invite(id string, cookies []string) (Invitation, error) {
	l := &b.logins
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.byID[id]
	if p == nil {
		return Invitation{}, ErrLoginOver
	}
	browser := p.own(cookies)
	if browser == "" && p.browser != "" {
		return Invitation{}, ErrOtherBrowser
	}
	if browser == "" {
		browser = secret.ID()
	}
	return Invitation{User: text(p.s.owner.Name, 200), Server: text(p.s.name, 200), Address: p.address, Operator: p.s.configured,
		Host: p.to.Host, Receivers: p.receivers, Browser: browser, Proof: p.proof(browser)}, nil
}

// own is which of the cookies is the one of the browser that went on to log in,
// or, while none has, one that may be; empty: none.
func (p *pending) own(cookies []string) string {
	for _, c := range cookies {
		if p.browser == "" && len(c) == len(p.id) || p.browser != "" && subtle.ConstantTimeCompare([]byte(c), []byte(p.browser)) == 1 {
			return c
		}
	}
	return ""
}

// proof is what only a page that was shown to that browser can know.
func (p *pending) proof(browser string) string {
	sum := sha256.Sum256([]byte("sandlot log-in\x00" + p.id + "\x00" + browser))
	return hex.EncodeToString(sum[:16])
}

// Begin returns where the user logs in, when the browser has shown them what for.
// From then on the log-in is that browser's.
func (b *Book) Begin(id string, cookies []string, proof string) (string, error) {
	l := &b.logins
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.byID[id]
	if p == nil {
		return "", ErrLoginOver
	}
	for _, c := range cookies {
		if p.own([]string{c}) != "" && subtle.ConstantTimeCompare([]byte(p.proof(c)), []byte(proof)) == 1 {
			p.browser = c
			return p.to.String(), nil
		}
	}
	return "", ErrOtherBrowser
}

// Came is called when a browser comes back from a log-in; cookies are those that
// it brings for the one with that id. What came is good once. The error is nil,
// ErrLoginOver or ErrOtherBrowser, after which it goes on waiting. Came returns
// the id, or "" with ErrLoginOver.
func (b *Book) Came(query url.Values, cookies func(id string) []string) (string, error) {
	l := &b.logins
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.byState[query.Get("state")]
	if p == nil {
		return "", ErrLoginOver
	}
	if p.browser == "" || p.own(cookies(p.id)) == "" {
		return p.id, ErrOtherBrowser
	}
	delete(l.byID, p.id)
	delete(l.byState, p.state)
	p.back <- &sdk.AuthorizationResult{Code: query.Get("code"), State: p.state, Iss: query.Get("iss")}
	return p.id, nil
}

// shownAddress is a server's address as strangers may see it: of a user's own
// without what stands behind a question mark, of the operator's the host alone,
// which is in ASCII. The error is one of ours.
func shownAddress(address string, configured bool) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", ours("it cannot be read")
	}
	host, err := ascii(u)
	if err != nil {
		return "", err
	}
	shown := url.URL{Scheme: u.Scheme, Host: host}
	if !configured {
		shown.Path = u.Path
	}
	return text(shown.String(), 2*maxHost), nil
}
