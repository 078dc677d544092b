package console

import (
	"context"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

const (
	// PlainAttempt and SecureAttempt are the names of the cookie that a browser has while its user logs in at a provider.
	PlainAttempt, SecureAttempt = "sandlot_console_attempt", "__Host-sandlot_console_attempt"
	// CallbackPath is the path to which a provider sends browsers back; its id follows.
	CallbackPath = Path + "oidc/"
	// AttemptAge is how long a user may take to log in at a provider.
	AttemptAge = 10 * time.Minute
	// Grace is how much longer than a provider vouches for a log-in it counts while the provider does not answer.
	Grace = 10 * time.Minute

	// renewPause is the shortest time between two questions to a provider about one log-in.
	renewPause = 15 * time.Second
	// watchInterval is how often log-ins with open requests are looked at.
	watchInterval = 2 * time.Second
	// maxUsed bounds the attempts whose answer came, and which are remembered so that none comes twice.
	maxUsed = 4096
	// maxCookies bounds the cookies of one name that are tried.
	maxCookies = 8
)

// providers logs browsers in at OIDC providers. An attempt is in a cookie of the browser, sealed with a key that lives as
// long as the server: who begins many attempts takes no memory, and pushes out nobody else's.
type providers struct {
	verifier *oidc.Verifier
	log      *slog.Logger
	seal     cipher.AEAD

	mu   sync.Mutex
	used map[string]time.Time // the states of attempts whose answer came, and when they end
}

// sealedAttempt is the content of the cookie of an attempt.
type sealedAttempt struct {
	oidc.Attempt
	Key     string    // the hash of the page's half of the attempt
	Expires time.Time // after which it does not count
}

// UseProviders makes browsers log in at the providers of a verifier, too. It must be called before the log-ins are used.
func (l *Logins) UseProviders(v *oidc.Verifier, log *slog.Logger) {
	seal, err := secret.NewCipher(secret.Bytes(32))
	if err != nil {
		panic(err) // the length of the key is wrong
	}
	l.providers = &providers{verifier: v, log: log, seal: seal, used: map[string]time.Time{}}
}

// Providers returns the providers at which browsers can log in.
func (l *Logins) Providers() []oidc.Provider {
	if l.providers == nil {
		return nil
	}
	return l.providers.verifier.Providers()
}

// errNoProvider means that the settings have no provider for browsers.
var errNoProvider = fault.New(fault.NotFound, "nobody logs in by OIDC here: no issuer in the settings has a client_id")

// Start begins a log-in at a provider, which sends the browser back to a page below base, the address of this server. It
// returns the cookie of the attempt, the page's half of it, and the address at the provider. As with a log-in, the cookie
// alone is not enough: servers on other ports of the host could set one, and so log a browser in as somebody else.
func (l *Logins) Start(ctx context.Context, provider, base string) (cookie, key secret.Value, url string, err error) {
	if l.providers == nil {
		return "", "", "", errNoProvider
	}
	a, url, err := l.providers.verifier.Begin(ctx, provider, base+CallbackPath+provider)
	if err != nil {
		return "", "", "", err
	}
	key = secret.Value(secret.ID())
	text, err := json.Marshal(sealedAttempt{a, secret.Hash(key.Reveal()), l.now().Add(AttemptAge)})
	if err != nil {
		return "", "", "", err
	}
	sealed := l.providers.seal.Seal(nil, nil, text, nil)
	return secret.Value(base64.RawURLEncoding.EncodeToString(sealed)), key, url, nil
}

// Finish ends the attempt whose cookie and key a request has with a provider's response, and returns the log-in's grant and
// source. The grant is somebody's beside an error if it is known whose log-in was refused.
func (l *Logins) Finish(r *http.Request, origin, key string, response oidc.Response) (auth.Grant, *Source, error) {
	if l.providers == nil {
		return auth.Grant{}, nil, errNoProvider
	}
	a, err := l.providers.take(r, origin, key, response.State, l.now())
	if err != nil {
		return auth.Grant{}, nil, l.failure(r, err)
	}
	s, err := l.providers.verifier.Finish(r.Context(), a, response)
	var g auth.Grant
	if s.Claims.Subject != "" {
		g = l.grantOf(s, secret.ID()[:12])
	}
	if err != nil {
		l.providers.log.Info("a log-in at a provider failed", "provider", a.Provider, "error", err)
		return g, nil, l.failure(r, err)
	}
	return g, &Source{session: &s}, nil
}

// failure counts an attempt that has failed, and returns its error or, when there were too many, that. It is counted
// afterwards: others at the address, whose attempts fail, lock out nobody. The verifier bounds the requests to a provider.
func (l *Logins) failure(r *http.Request, err error) error {
	if fault.Is(err, fault.Unauthorized) {
		if tooMany := l.Failed(r.RemoteAddr); tooMany != nil {
			return tooMany
		}
	}
	return err
}

// grantOf returns the grant of the log-in with an id and a session. Where the provider can be asked again, the log-in
// outlives what the provider has said by Grace.
func (l *Logins) grantOf(s oidc.Session, id string) auth.Grant {
	return auth.NewLoginGrant(s.Claims, id).Until(endOf(s))
}

func endOf(s oidc.Session) time.Time {
	if s.CanRenew() {
		return s.Claims.Expires.Add(Grace)
	}
	return s.Claims.Expires
}

// take returns the attempt of a request for a response with a state, once.
func (p *providers) take(r *http.Request, origin, key, state string, now time.Time) (oidc.Attempt, error) {
	for _, c := range namedCookies(r, AttemptName(origin)) {
		a, err := p.open(c.Value)
		if err != nil || subtle.ConstantTimeCompare([]byte(a.Key), []byte(secret.Hash(key))) != 1 || a.State != state {
			continue
		}
		if !now.Before(a.Expires) {
			return oidc.Attempt{}, fault.New(fault.Unauthorized, "the log-in took longer than %v: begin again", AttemptAge)
		}
		if !p.use(a.State, a.Expires, now) {
			return oidc.Attempt{}, fault.New(fault.Unauthorized, "this answer was used before: log in again")
		}
		return a.Attempt, nil
	}
	return oidc.Attempt{}, fault.New(fault.Unauthorized,
		"this tab has not begun this log-in, or another tab has begun one since: log in again").
		Advise("If this happens again, allow cookies and site data for this page")
}

func (p *providers) open(text string) (a sealedAttempt, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		sealed, err = p.seal.Open(nil, nil, sealed, nil)
	}
	if err == nil {
		err = json.Unmarshal(sealed, &a)
	}
	return a, err
}

// use marks an attempt as one whose answer came. It returns false if it was one before.
func (p *providers) use(state string, expires, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, before := p.used[state]; before {
		return false
	}
	if len(p.used) >= maxUsed {
		oldest := ""
		for s, end := range p.used {
			if !now.Before(end) {
				delete(p.used, s)
			} else if oldest == "" || end.Before(p.used[oldest]) {
				oldest = s
			}
		}
		if len(p.used) >= maxUsed {
			delete(p.used, oldest)
		}
	}
	p.used[state] = expires
	return true
}

// AttemptName returns the name of the cookie of an attempt.
func AttemptName(origin string) string {
	if isSecure(origin) {
		return SecureAttempt
	}
	return PlainAttempt
}

// AttemptCookie returns the cookie of an attempt. An empty value deletes it.
func AttemptCookie(origin string, value secret.Value) *http.Cookie {
	c := Cookie(origin, value)
	c.Name = AttemptName(origin)
	if value != "" {
		c.MaxAge = int(AttemptAge.Seconds())
	}
	return c
}

// isDue reports whether a log-in's provider has to be asked again. The caller holds mu.
func (l *Logins) isDue(x *Login) bool {
	now := l.now()
	return x.session != nil && x.session.CanRenew() && !now.Before(x.session.Claims.Expires) && !now.Before(x.next)
}

// renew asks the provider of a log-in again if that is due, and ends the log-in if the provider does not vouch for it any
// more. All who ask meanwhile wait for one answer.
func (l *Logins) renew(ctx context.Context, x *Login) {
	l.mu.Lock()
	if x.renewing == nil && !l.isDue(x) {
		l.mu.Unlock()
		return
	}
	if x.renewing == nil {
		done := make(chan struct{})
		x.renewing = done
		l.tasks.Go(func() {
			defer close(done)
			l.ask(x)
		})
	}
	done := x.renewing
	l.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// ask asks the provider of a log-in.
func (l *Logins) ask(x *Login) {
	s, err := x.session.Renew(l.ctx) // nobody else changes it while renewing is set
	refused := fault.Is(err, fault.Unauthorized) || fault.Is(err, fault.Forbidden)
	l.mu.Lock()
	x.renewing, x.next = nil, l.now().Add(renewPause)
	if !refused { // what has failed after the exchange has used up the refresh token, and has another
		x.session = &s
	}
	if err == nil {
		x.grant = x.grant.Until(endOf(s))
	}
	l.mu.Unlock()
	switch {
	case refused:
		l.End(x)
		l.providers.log.Info("a log-in has ended: its provider does not vouch for it any more", "provider",
			s.Issuer(), "principal", x.Grant().Principal().ID, "error", err)
	case err != nil && l.ctx.Err() == nil:
		l.providers.log.Warn("a provider cannot be asked whether a log-in still counts", "provider", s.Issuer(),
			"error", err)
	}
}

// Run asks providers about the log-ins with open requests, and ends those that they do not vouch for any more, until ctx
// ends. The other log-ins are looked at when they are used.
func (l *Logins) Run(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.watch(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// watch looks at all log-ins once.
func (l *Logins) watch(ctx context.Context) {
	l.mu.Lock()
	var due, over []*Login
	for _, x := range l.logins {
		switch at := x.root(); {
		case at.session == nil:
		case !l.now().Before(at.grant.Principal().Expires):
			over = append(over, at)
		case x.open > 0 && l.isDue(at):
			due = append(due, at)
		}
	}
	l.mu.Unlock()
	for _, x := range over {
		l.End(x)
	}
	var asking sync.WaitGroup
	for _, x := range due {
		asking.Go(func() { l.renew(ctx, x) })
	}
	asking.Wait()
}

// LogoutURL returns the address at which the user of a log-in logs out at its provider, and comes back to this server;
// empty: there is none.
func (l *Logins) LogoutURL(x *Login, base string) string {
	l.mu.Lock()
	s := x.session
	l.mu.Unlock()
	if s == nil {
		return ""
	}
	return s.LogoutURL(base + Path)
}

// Watched reports whether a log-in ends by itself when its provider does not vouch for it any more.
func (x *Login) Watched() bool { return x.watched }

// Close ends the questions to providers in progress, and waits for them.
func (l *Logins) Close() error {
	l.stop(errors.New("the server is stopping"))
	l.tasks.Wait()
	return nil
}
