package console

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/auth/oidc/oidctest"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// almostOver is a life of tokens that end two seconds later: they count for a minute longer than they say.
const almostOver = -58 * time.Second

// atProvider returns log-ins at a provider, by the real clock, and the one of ann.
func atProvider(t *testing.T, change func(*oidctest.Provider)) (*Logins, *oidctest.Provider, halves) {
	t.Helper()
	l, _ := newLogins(t)
	l.now = time.Now
	p := oidctest.New(t)
	id := auth.IssuerID(p.URL)
	p.Redirects = []string{home + CallbackPath + id}
	change(p)
	v := oidc.New([]oidc.Issuer{{URL: p.URL, Algorithms: []string{"ES256"}, Required: map[string]string{"team": "a"},
		Client: oidc.Client{ID: p.ClientID}}}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { v.Close() })
	t.Cleanup(func() { l.Close() })
	l.UseProviders(v, slog.New(slog.DiscardHandler))
	p.Change = func(c map[string]any) { c["team"] = "a" }
	cookie, key, address, err := l.Start(t.Context(), id, home)
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Visit(address, "ann")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, home+"/console/login", nil)
	r.AddCookie(AttemptCookie(home, cookie))
	g, s, err := l.Finish(r, home, key.Reveal(), oidc.Response{Provider: id, Code: q.Get("code"), State: q.Get("state"),
		Issuer: q.Get("iss")})
	if err != nil || !strings.HasSuffix(g.Principal().ID, "/ann") {
		t.Fatalf("%v: %v", g.Principal(), err)
	}
	c, k := l.Begin(g, s)
	return l, p, halves{c.Reveal(), k.Reveal()}
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// open is a request of a log-in that is open.
func (l *Logins) open(t *testing.T, h halves) context.Context {
	t.Helper()
	l.mu.Lock()
	x := l.logins[secret.Hash(h.cookie)]
	l.mu.Unlock()
	ctx, release := l.Hold(t.Context(), x)
	t.Cleanup(release)
	return ctx
}

// A log-in counts as long as its provider vouches for it: it is asked when the ID token has ended. What is open ends when
// the provider refuses, and goes on when it does not.
func TestProviderVouches(t *testing.T) {
	for name, c := range map[string]struct {
		refresh bool
		then    func(*oidctest.Provider)
		counts  bool
	}{
		"it can be asked, and vouches": {true, func(p *oidctest.Provider) { p.Life = time.Hour }, true},
		"it cannot be asked":           {false, func(p *oidctest.Provider) { p.Life = time.Hour }, false},
		"it does not vouch":            {true, func(p *oidctest.Provider) { p.Ended["ann"] = true }, false},
		"without what the settings require": {true, func(p *oidctest.Provider) {
			p.Life, p.Change = time.Hour, func(map[string]any) {}
		}, false},
		"for somebody else": {true, func(p *oidctest.Provider) {
			p.Life, p.Change = time.Hour, func(c map[string]any) { c["sub"], c["team"] = "bob", "a" }
		}, false},
		"without an ID token": {true, func(p *oidctest.Provider) {
			p.Instead["/token"] = answering(200, `{"access_token": "x", "token_type": "Bearer", "expires_in": 600}`)
		}, true},
		"it is down": {true, func(p *oidctest.Provider) {
			p.Instead["/token"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }
		}, true}, // for Grace
		"something before it refuses": {true, func(p *oidctest.Provider) {
			p.Instead["/token"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }
		}, true},
		"it has an error that is about no log-in": {true, func(p *oidctest.Provider) {
			p.Instead["/token"] = answering(400, `{"error": "slow_down"}`)
		}, true},
		"the user has to log in again": {true, func(p *oidctest.Provider) {
			p.Instead["/token"] = answering(400, `{"error": "interaction_required"}`)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, p, h := atProvider(t, func(p *oidctest.Provider) { p.Life, p.Refresh = almostOver, c.refresh })
			if !l.counts(h) {
				t.Fatal("it does not count at first")
			}
			opened := l.open(t, h)
			p.Set(func() { c.then(p) })
			before := len(p.Requests("/token"))
			if c.refresh {
				until(t, "the provider is asked", func() bool { l.watch(t.Context()); return len(p.Requests("/token")) > before })
			}
			if !c.counts {
				until(t, "it has ended", func() bool { l.watch(t.Context()); return opened.Err() != nil && !l.counts(h) })
				return
			}
			if l.watch(t.Context()); opened.Err() != nil || !l.counts(h) {
				t.Error("it does not count any more")
			}
		})
	}
}

// answering answers with a document.
func answering(status int, document string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(document))
	}
}

// A provider that signs with a new key, which it does not publish yet, ends no log-in: it is asked again, with the refresh
// token that came with the ID token.
func TestProviderChangesItsKey(t *testing.T) {
	t.Parallel()
	l, p, h := atProvider(t, func(p *oidctest.Provider) { p.Life, p.Refresh = almostOver, true })
	opened := l.open(t, h)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(func() {
		before, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.Key.Public()}})
		if err != nil {
			t.Error(err)
		}
		p.Instead["/keys"] = answering(200, string(before))
		p.Life, p.Key = time.Hour, jose.JSONWebKey{Key: key, KeyID: "new", Algorithm: "ES256", Use: "sig"}
	})
	before := len(p.Requests("/token"))
	until(t, "the provider is asked", func() bool { l.watch(t.Context()); return len(p.Requests("/token")) > before })
	if l.watch(t.Context()); opened.Err() != nil || !l.counts(h) {
		t.Fatal("it does not count while the key is not known")
	}
	p.Set(func() { delete(p.Instead, "/keys") })
	l.now = func() time.Time { return time.Now().Add(renewPause) }
	l.watch(t.Context())
	l.now = func() time.Time { return time.Now().Add(Grace + time.Minute) }
	if l.watch(t.Context()); opened.Err() != nil || !l.counts(h) {
		t.Error("it does not count when the key is known")
	}
}

// Others at an address, whose attempts fail, do not keep anybody from logging in.
func TestProviderAttemptsOfOthers(t *testing.T) {
	l, p, _ := atProvider(t, func(*oidctest.Provider) {})
	id := auth.IssuerID(p.URL)
	cookie, key, address, err := l.Start(t.Context(), id, home)
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Visit(address, "ann")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, home+"/console/login", nil)
	r.AddCookie(AttemptCookie(home, cookie))
	response := oidc.Response{Provider: id, Code: q.Get("code"), State: q.Get("state"), Issuer: q.Get("iss")}
	for range 2 * maxAttempts {
		_, _, err = l.Finish(r, home, "x", response)
	}
	if !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("many that fail: %v", err)
	}
	if _, _, err := l.Finish(r, home, key.Reveal(), response); err != nil {
		t.Errorf("one that is right: %v", err)
	}
}

// A log-in by a link that was made in a log-in at a provider counts as long as that one: while the provider vouches, for
// which it is asked for the one that is used, and no longer than that one.
func TestProviderLinks(t *testing.T) {
	for name, c := range map[string]struct {
		then   func(l *Logins, p *oidctest.Provider, parent *Login)
		counts bool
	}{
		"the provider vouches":       {func(_ *Logins, p *oidctest.Provider, _ *Login) { p.Life = time.Hour }, true},
		"the provider does not":      {func(_ *Logins, p *oidctest.Provider, _ *Login) { p.Ended["ann"] = true }, false},
		"the browser has logged out": {func(l *Logins, _ *oidctest.Provider, parent *Login) { l.End(parent) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, p, h := atProvider(t, func(p *oidctest.Provider) { p.Life, p.Refresh = almostOver, true })
			l.mu.Lock()
			in := l.logins[secret.Hash(h.cookie)]
			l.mu.Unlock()
			byLink := func(in *Login) halves {
				code, _ := l.NewCode(in.Grant(), in)
				g, from, err := l.TakeCode(t.Context(), code.Reveal())
				if err != nil {
					t.Fatal(err)
				}
				cookie, key := l.Begin(g, from)
				r := httptest.NewRequest(http.MethodPost, home+"/console/login", nil)
				r.AddCookie(Cookie(home, secret.Value(h.cookie))) // the same browser may open it
				l.EndOthers(r, home, from)
				return halves{cookie.Reveal(), key.Reveal()}
			}
			child := byLink(in)
			l.mu.Lock()
			x := l.logins[secret.Hash(child.cookie)]
			l.mu.Unlock()
			grandchild := byLink(x)
			late, _ := l.NewCode(x.Grant(), x)
			opened := l.open(t, grandchild)
			before := len(p.Requests("/token"))
			p.Set(func() { c.then(l, p, in) })
			if in.ended.Err() == nil {
				until(t, "the provider is asked", func() bool { l.watch(t.Context()); return len(p.Requests("/token")) > before })
			}
			if c.counts {
				l.now = func() time.Time { return time.Now().Add(Grace + time.Minute) }
			}
			until(t, "it ends, or goes on", func() bool {
				l.watch(t.Context())
				return c.counts || opened.Err() != nil
			})
			if l.counts(child) != c.counts || l.counts(grandchild) != c.counts || (opened.Err() == nil) != c.counts {
				t.Errorf("they count: %v, %v, %v", l.counts(child), l.counts(grandchild), opened.Err())
			}
			l.now = time.Now
			if _, _, err := l.TakeCode(t.Context(), late.Reveal()); (err == nil) != c.counts {
				t.Errorf("a link that was made before: %v", err)
			}
		})
	}
}

// While the provider does not answer, a log-in ends after Grace; it is asked at most every renewPause, for all who wait.
func TestProviderIsAskedOnce(t *testing.T) {
	t.Parallel()
	l, p, h := atProvider(t, func(p *oidctest.Provider) { p.Life, p.Refresh = almostOver, true })
	p.Set(func() { p.Instead["/token"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) } })
	before := len(p.Requests("/token"))
	until(t, "the provider is asked", func() bool { l.counts(h); return len(p.Requests("/token")) > before })
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if !l.counts(h) {
				t.Error("it does not count any more")
			}
		})
	}
	all.Wait()
	if asked := len(p.Requests("/token")) - before; asked > 2 {
		t.Errorf("the provider was asked %d times", asked)
	}
	l.now = func() time.Time { return time.Now().Add(Grace + time.Minute) }
	l.watch(t.Context())
	if l.counts(h) {
		t.Error("it counts for longer than the grace")
	}
}

// What an attempt remembers is sealed, ends, and takes no memory of the server.
func TestProviderAttempts(t *testing.T) {
	l, p, _ := atProvider(t, func(*oidctest.Provider) {})
	id := auth.IssuerID(p.URL)
	cookie, key, address, err := l.Start(t.Context(), id, home)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{key.Reveal(), id} {
		if strings.Contains(cookie.Reveal(), text) || strings.Contains(address, key.Reveal()) {
			t.Errorf("the cookie has %q", text)
		}
	}
	q, err := p.Visit(address, "ann")
	if err != nil {
		t.Fatal(err)
	}
	finish := func(l *Logins, key string) error {
		r := httptest.NewRequest(http.MethodPost, home+"/console/login", nil)
		r.AddCookie(&http.Cookie{Name: PlainAttempt, Value: "x"}) // of another page of the site
		r.AddCookie(AttemptCookie(home, cookie))
		_, _, err := l.Finish(r, home, key, oidc.Response{Provider: id, Code: q.Get("code"), State: q.Get("state"), Issuer: q.Get("iss")})
		return err
	}
	restarted, _ := newLogins(t)
	restarted.UseProviders(l.providers.verifier, slog.New(slog.DiscardHandler))
	if err := finish(restarted, key.Reveal()); err == nil {
		t.Error("another server opens it")
	}
	l.now = func() time.Time { return time.Now().Add(AttemptAge + time.Second) }
	if err := finish(l, key.Reveal()); err == nil || !strings.Contains(err.Error(), "took longer") {
		t.Errorf("too late: %v", err)
	}
	l.now = time.Now
	if err := finish(l, key.Reveal()); err != nil {
		t.Errorf("in time: %v", err)
	}
	now := time.Now()
	for i := range 2 * maxUsed {
		l.providers.use(fmt.Sprint(i), now.Add(AttemptAge), now)
	}
	if n := len(l.providers.used); n > maxUsed {
		t.Errorf("%d states are remembered", n)
	}
}
