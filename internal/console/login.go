package console

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

const (
	// PlainCookie and SecureCookie are the names of the cookie, without and with TLS. Programs in sandboxes do not get it.
	PlainCookie, SecureCookie = "sandlot_console", "__Host-sandlot_console"
	// Header is the header without which the cookie does not count. No page of another origin can send it: a browser
	// asks the server first, which allows it to nobody.
	Header = "Sandlot-Console"
	// CodeAge is how long a one-time code counts.
	CodeAge = time.Minute
	// IdleAge is how long a log-in counts that is not used.
	IdleAge = 12 * time.Hour

	// maxCodes and maxLogins bound the codes and log-ins of all principals, and maxOwn those of one. The oldest make
	// room.
	maxCodes, maxLogins, maxOwn = 1024, 1024, 64
)

// Logins has the log-ins of browsers, and the codes with which they log in. It keeps hashes only, in memory: after a
// restart of the server, browsers log in again.
type Logins struct {
	auth        *auth.Authenticator
	portsDomain string // of exposed ports; empty: names below localhost
	now         func() time.Time

	attempts attempts

	mu     sync.Mutex
	codes  map[string]*code  // by hash
	logins map[string]*Login // by hash of the cookie
}

type code struct {
	grant   auth.Grant
	expires time.Time
}

// Login is the log-in of one browser.
type Login struct {
	Grant auth.Grant

	hash string
	// used and open are guarded by the Logins' mutex. A log-in with open requests is not idle.
	used  time.Time
	open  int
	ended context.Context // cancelled with auth.ErrEnded
	end   context.CancelCauseFunc
}

// NewLogins returns the log-ins of a server whose exposed ports have names below a domain; empty: below localhost.
func NewLogins(a *auth.Authenticator, portsDomain string) *Logins {
	return &Logins{auth: a, portsDomain: portsDomain, now: time.Now, codes: map[string]*code{},
		logins: map[string]*Login{}, attempts: attempts{now: time.Now, left: map[netip.Prefix]*bucket{}}}
}

// NewCode returns a code with which a browser can log in once, within CodeAge, as the grant's principal.
func (l *Logins) NewCode(g auth.Grant) (value secret.Value, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for hash, c := range l.codes {
		if !now.Before(c.expires) {
			delete(l.codes, hash)
		}
	}
	makeRoom(l.codes, maxCodes, g, func(c *code) (auth.Grant, time.Time) { return c.grant, c.expires }, func(*code) {})
	id := secret.ID()
	c := &code{g, now.Add(CodeAge)}
	l.codes[secret.Hash(id)] = c
	return secret.Value(id), c.expires
}

// makeRoom removes the oldest of all, by their keys, so that one more of a grant's principal fits.
func makeRoom[T any](all map[string]T, most int, g auth.Grant, of func(T) (auth.Grant, time.Time), removed func(T)) {
	own, oldest, oldestOwn := 0, "", ""
	older := func(hash, than string) bool {
		if than == "" {
			return true
		}
		_, at := of(all[hash])
		_, other := of(all[than])
		return at.Before(other)
	}
	for hash, x := range all {
		if older(hash, oldest) {
			oldest = hash
		}
		if by, _ := of(x); by.Principal().ID == g.Principal().ID {
			own++
			if older(hash, oldestOwn) {
				oldestOwn = hash
			}
		}
	}
	drop := ""
	switch {
	case own >= maxOwn:
		drop = oldestOwn
	case len(all) >= most:
		drop = oldest
	}
	if drop != "" {
		removed(all[drop])
		delete(all, drop)
	}
}

// TakeCode uses up a code, and returns its grant. It returns an error if there is no such code, any more, or if its
// token has ended.
func (l *Logins) TakeCode(ctx context.Context, value string) (auth.Grant, error) {
	l.mu.Lock()
	hash := secret.Hash(value)
	c := l.codes[hash]
	delete(l.codes, hash)
	l.mu.Unlock()
	if c == nil || !l.now().Before(c.expires) {
		return auth.Grant{}, fault.New(fault.Unauthorized,
			"this link was used before, or is older than a minute: `sandlot console` prints a new one")
	}
	_, err := l.auth.Renew(ctx, c.grant)
	return c.grant, err
}

// Begin logs a browser in, and returns the value of its cookie.
func (l *Logins) Begin(g auth.Grant) secret.Value {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropIdle()
	makeRoom(l.logins, maxLogins, g, func(x *Login) (auth.Grant, time.Time) { return x.Grant, x.used },
		func(x *Login) { x.end(auth.ErrEnded) })
	id := secret.Value(secret.ID() + secret.ID())
	x := &Login{Grant: g, hash: secret.Hash(id.Reveal()), used: l.now()}
	x.ended, x.end = context.WithCancelCause(context.Background())
	l.logins[x.hash] = x
	return id
}

// dropIdle ends the log-ins that were not used for IdleAge. The caller holds mu.
func (l *Logins) dropIdle() {
	for hash, x := range l.logins {
		if x.open == 0 && l.now().Sub(x.used) >= IdleAge {
			x.end(auth.ErrEnded)
			delete(l.logins, hash)
		}
	}
}

// End ends the log-in of a request, and what the browser has open with it.
func (l *Logins) End(x *Login) {
	l.mu.Lock()
	delete(l.logins, x.hash)
	l.mu.Unlock()
	x.end(auth.ErrEnded)
}

// Of returns the log-in whose cookie a request has, and its principal now; nil: it has none that counts. The origin is
// the scheme and the host under which the browser reaches the server. An error means that the log-in has ended with its
// token.
func (l *Logins) Of(r *http.Request, origin string) (*Login, auth.Principal, error) {
	if !counts(r, origin) {
		return nil, auth.Principal{}, nil
	}
	x := l.find(r.CookiesNamed(CookieName(origin)))
	if x == nil {
		return nil, auth.Principal{}, nil
	}
	p, err := l.auth.Renew(r.Context(), x.Grant)
	if err != nil {
		if fault.Is(err, fault.Unauthorized) {
			l.End(x)
		}
		return nil, auth.Principal{}, err
	}
	return x, p, nil
}

// counts reports whether the console's cookie counts for a request: the console's page has sent it. SameSite is not
// enough: without TLS, browsers send the cookie with requests of pages on other hosts of the same site, and do not mark
// them. A handshake of a WebSocket has no header of the page's choice, but always the page's origin.
func counts(r *http.Request, origin string) bool {
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		given := r.Header.Values("Origin")
		return origin != "" && len(given) == 1 && given[0] == origin
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get(Header) == "1" && (site == "" || site == "same-origin")
}

// find returns the log-in of the cookies. Another page of the same site can set a cookie of the same name too.
func (l *Logins) find(cookies []*http.Cookie) *Login {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropIdle()
	for _, c := range cookies[:min(len(cookies), 8)] {
		if x := l.logins[secret.Hash(c.Value)]; x != nil {
			x.used = l.now()
			return x
		}
	}
	return nil
}

// Hold returns a context that ends with the log-in, which is not idle before release.
func (l *Logins) Hold(ctx context.Context, x *Login) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(x.ended, func() { cancel(auth.ErrEnded) })
	l.mu.Lock()
	defer l.mu.Unlock()
	x.open++
	return ctx, func() {
		stop()
		cancel(nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		x.open--
		x.used = l.now()
	}
}

// CookieName returns the name of the cookie for browsers that reach the server under an origin.
func CookieName(origin string) string {
	if isSecure(origin) {
		return SecureCookie
	}
	return PlainCookie
}

func isSecure(origin string) bool { return strings.HasPrefix(origin, "https://") }

// Cookie returns the cookie of a log-in. An empty value deletes it.
func Cookie(origin string, value secret.Value) *http.Cookie {
	c := &http.Cookie{Name: CookieName(origin), Value: value.Reveal(), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: isSecure(origin)}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// CheckSite is the function CheckSite for the server's own domain of exposed ports.
func (l *Logins) CheckSite(origin string) error { return CheckSite(origin, l.portsDomain) }

// CheckSite returns an error if no browser can log in safely under an origin: without TLS, browsers do not mark requests
// from pages of exposed ports on the same site. An empty domain of ports: they are below localhost.
func CheckSite(origin, portsDomain string) error {
	_, host, _ := strings.Cut(origin, "://")
	host, _, _ = strings.Cut(host, "/")
	if portsDomain == "" || isSecure(origin) || site(host) != site(portsDomain) {
		return nil
	}
	return fault.New(fault.Forbidden, "nobody logs in here without TLS: pages of sandboxes are on the same site, "+
		"below %s", portsDomain).Advise("Use https://", "The operator sets ports_domain to a name of another site")
}

// site returns the part of a host name that pages of one site have in common.
func site(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if name, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return name
	}
	return host
}

// Attempt counts an attempt to log in from an address. It returns an error when there were too many.
func (l *Logins) Attempt(address string) error { return l.attempts.take(address) }

// Succeeded takes an attempt back.
func (l *Logins) Succeeded(address string) { l.attempts.giveBack(address) }
