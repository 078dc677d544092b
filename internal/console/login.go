package console

import (
	"context"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"

	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

const (
	// PlainCookie and SecureCookie are the names of the cookie, without and with TLS. Programs in sandboxes do not get it.
	PlainCookie, SecureCookie = "sandlot_console", "__Host-sandlot_console"
	// Header is the header without which the cookie does not count. Its value is the key of the log-in or, of who has
	// none, NoKey. No page of another origin can send it: a browser asks the server first, which allows it to nobody.
	Header, NoKey = "Sandlot-Console", "1"
	// KeyProtocol begins the subprotocol with which the page's WebSockets say the key: a page cannot give them a header.
	KeyProtocol = "sandlot.key."
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

	attempts  attempts
	providers *providers // nil: nobody logs in by OIDC

	ctx   context.Context // of questions to providers
	stop  context.CancelCauseFunc
	tasks sync.WaitGroup

	mu     sync.Mutex
	codes  map[string]*code  // by hash
	logins map[string]*Login // by hash of the cookie
}

type code struct {
	grant   auth.Grant
	from    *Source // of the log-in that the code makes
	expires time.Time
}

// Source is what a log-in depends on beside its grant, such as a session at a provider.
type Source struct {
	session *oidc.Session // at an OIDC provider; nil: the log-in is by a link
	parent  *Login        // by a session at a provider, in which the link was made; nil: none
}

// AtProvider reports whether the user has just logged in at a provider.
func (s *Source) AtProvider() bool { return s != nil && s.session != nil }

// Login is the log-in of one browser. Its secret has two halves: the browser sends the cookie to every server on the
// host, whatever its port, and only the page of the console's own origin knows the key.
type Login struct {
	hash, key string // hashes of the cookie and of the key
	watched   bool   // it, or its parent, has a session at a provider
	// parent is the log-in at a provider in whose place this one is, for another browser: it has that one's grant, and ends
	// with it. Nil: there is none.
	parent *Login

	logins *Logins
	// These are guarded by the Logins' mutex. A log-in with open requests is not idle.
	grant    auth.Grant
	used     time.Time
	open     int
	session  *oidc.Session // at an OIDC provider; nil: the log-in is by a link or a token
	next     time.Time     // before which the provider is not asked again
	renewing chan struct{} // closed when the provider has answered; nil: it is not being asked

	ended context.Context // cancelled with auth.ErrEnded
	end   context.CancelCauseFunc
}

// NewLogins returns the log-ins of a server whose exposed ports have names below a domain; empty: below localhost.
func NewLogins(a *auth.Authenticator, portsDomain string) *Logins {
	l := &Logins{auth: a, portsDomain: portsDomain, now: time.Now, codes: map[string]*code{},
		logins: map[string]*Login{}, attempts: attempts{now: time.Now, left: map[netip.Prefix]*bucket{}}}
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	return l
}

// NewCode returns a code with which a browser can log in once, within CodeAge, as the grant's principal. A code that is made
// in a log-in at a provider makes one that ends with it; nil: it is made elsewhere.
func (l *Logins) NewCode(g auth.Grant, in *Login) (value secret.Value, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var from *Source
	if in != nil && in.watched {
		from = &Source{parent: in.root()}
	}
	now := l.now()
	for hash, c := range l.codes {
		if !now.Before(c.expires) {
			delete(l.codes, hash)
		}
	}
	makeRoom(l.codes, maxCodes, g, func(c *code) (auth.Grant, time.Time) { return c.grant, c.expires }, func(*code) {})
	id := secret.ID()
	c := &code{g, from, now.Add(CodeAge)}
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

// TakeCode uses up a code, and returns its grant and source. It returns an error if there is no such code, any more, or if
// its token, or the log-in in which it was made, has ended.
func (l *Logins) TakeCode(ctx context.Context, value string) (auth.Grant, *Source, error) {
	l.mu.Lock()
	hash := secret.Hash(value)
	c := l.codes[hash]
	delete(l.codes, hash)
	l.mu.Unlock()
	if c == nil || !l.now().Before(c.expires) {
		return auth.Grant{}, nil, fault.New(fault.Unauthorized,
			"this link was used before, or is older than a minute: `sandlot console` prints a new one")
	}
	if c.from != nil && c.from.parent.ended.Err() != nil {
		return c.grant, nil, auth.ErrEnded
	}
	_, err := l.auth.Renew(ctx, c.grant)
	return c.grant, c.from, err
}

// root returns the log-in on which a log-in depends: itself, or its parent.
func (x *Login) root() *Login {
	if x.parent != nil {
		return x.parent
	}
	return x
}

// Grant returns what the log-in may do now.
func (x *Login) Grant() auth.Grant {
	x.logins.mu.Lock()
	defer x.logins.mu.Unlock()
	return x.root().grant
}

// Begin logs a browser in, and returns the two halves of the log-in's secret. The source is as Finish or TakeCode returns
// it; nil: the log-in depends on the grant alone.
func (l *Logins) Begin(g auth.Grant, from *Source) (cookie, key secret.Value) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropIdle()
	makeRoom(l.logins, maxLogins, g, l.lastUse, func(x *Login) { x.end(auth.ErrEnded) })
	cookie, key = secret.Value(secret.ID()+secret.ID()), secret.Value(secret.ID())
	x := &Login{logins: l, grant: g, hash: secret.Hash(cookie.Reveal()), key: secret.Hash(key.Reveal()), used: l.now()}
	above := context.Background()
	if from != nil {
		x.session, x.parent, x.watched = from.session, from.parent, true
	}
	if x.parent != nil {
		above = x.parent.ended
	}
	x.ended, x.end = context.WithCancelCause(above)
	l.logins[x.hash] = x
	return cookie, key
}

// lastUse returns the grant of a log-in, and when it was last used: now, while it has open requests. The caller holds
// mu.
func (l *Logins) lastUse(x *Login) (auth.Grant, time.Time) {
	if x.open > 0 {
		return x.grant, l.now()
	}
	return x.grant, x.used
}

// dropIdle ends the log-ins that were not used for IdleAge, and forgets those that have ended with their parents. The caller
// holds mu.
func (l *Logins) dropIdle() {
	for hash, x := range l.logins {
		if x.ended.Err() != nil || x.open == 0 && l.now().Sub(x.used) >= IdleAge {
			x.end(auth.ErrEnded)
			delete(l.logins, hash)
		}
	}
}

// EndOthers ends the log-ins whose cookies a request has: a browser that logs in anew has one log-in, and its other tabs
// learn who it is now. The one on which the new log-in depends, by its source, stays.
func (l *Logins) EndOthers(r *http.Request, origin string, from *Source) {
	for _, c := range cookiesOf(r, origin) {
		l.mu.Lock()
		x := l.logins[secret.Hash(c.Value)]
		l.mu.Unlock()
		if x != nil && (from == nil || from.parent != x) {
			l.End(x)
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

// Of returns the log-in whose cookie and key a request has, and its principal now; nil: it has none that counts. The origin is
// the scheme and the host under which the browser reaches the server. An error means that the log-in has ended with its
// token.
func (l *Logins) Of(r *http.Request, origin string) (*Login, auth.Principal, error) {
	x := l.find(cookiesOf(r, origin), keyOf(r, origin))
	if x == nil {
		x = l.signed(r, cookiesOf(r, origin))
	}
	if x == nil {
		return nil, auth.Principal{}, nil
	}
	l.renew(r.Context(), x.root())
	p, err := l.auth.Renew(r.Context(), x.Grant())
	if err == nil && x.ended.Err() != nil {
		err = auth.ErrEnded
	}
	if err != nil {
		if fault.Is(err, fault.Unauthorized) {
			l.End(x)
		}
		return nil, auth.Principal{}, err
	}
	return x, p, nil
}

// keyOf returns the key of a request that the console's page has sent; empty: it has none that counts. The cookie alone
// is worth nothing: browsers send it to the other ports of the host too, and without TLS with requests of pages on other
// hosts of the same site, which they do not mark. A handshake of a WebSocket has no header of the page's choice, but
// always the page's origin.
func keyOf(r *http.Request, origin string) string {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
			return ""
		}
		return r.Header.Get(Header)
	}
	if given := r.Header.Values("Origin"); origin == "" || len(given) != 1 || given[0] != origin {
		return ""
	}
	for protocol := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		if key, ok := strings.CutPrefix(strings.TrimSpace(protocol), KeyProtocol); ok {
			return key
		}
	}
	return ""
}

// cookiesOf returns the cookies of a request that may be the console's. Another page of the same site can set some of the
// same name.
func cookiesOf(r *http.Request, origin string) []*http.Cookie {
	return namedCookies(r, CookieName(origin))
}

// namedCookies returns the first cookies of a request with a name.
func namedCookies(r *http.Request, name string) []*http.Cookie {
	all := r.CookiesNamed(name)
	return all[:min(len(all), maxCookies)]
}

// find returns the log-in that has one of the cookies, and the key.
func (l *Logins) find(cookies []*http.Cookie, key string) *Login {
	if key == "" {
		return nil
	}
	key = secret.Hash(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropIdle()
	for _, c := range cookies {
		if x := l.logins[secret.Hash(c.Value)]; x != nil && subtle.ConstantTimeCompare([]byte(x.key), []byte(key)) == 1 {
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

// Failed counts an attempt to log in from an address that has failed. It returns an error when there were too many.
func (l *Logins) Failed(address string) error { return l.attempts.take(address) }
