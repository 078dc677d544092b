package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/vault"
)

// sealedLogins is a vault.LoginStore in memory.
type sealedLogins struct {
	mu   sync.Mutex
	all  map[[2]string][]byte
	puts int
	hook func() // before one is put
	full bool   // nothing can be put or removed
}

var errFull = errors.New("the disk is full")

// fill has nothing be put or removed any more, or again.
func (m *sealedLogins) fill(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

func (m *sealedLogins) PutLogin(_ context.Context, owner, connection string, sealed []byte) error {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	if hook != nil {
		hook()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[[2]string][]byte{}
	}
	if m.full {
		return errFull
	}
	m.puts++
	m.all[[2]string{owner, connection}] = sealed
	return nil
}

func (m *sealedLogins) Login(_ context.Context, owner, connection string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.all[[2]string{owner, connection}]; ok {
		return b, nil
	}
	return nil, vault.ErrNoLogin
}

func (m *sealedLogins) RemoveLogin(_ context.Context, owner, connection string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		return errFull
	}
	delete(m.all, [2]string{owner, connection})
	return nil
}

func (m *sealedLogins) Logins(context.Context) ([][2]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.all)), nil
}

func (m *sealedLogins) rows() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all)
}

func (m *sealedLogins) before(hook func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// lasting is what outlives the servers of a test.
type lasting struct {
	t      *testing.T
	store  *kept
	rows   *sealedLogins
	logins *vault.Logins
	log    *log
}

func newLasting(t *testing.T) *lasting {
	rows := &sealedLogins{}
	return &lasting{t: t, store: &kept{}, rows: rows, log: &log{},
		logins: &vault.Logins{Vault: &vault.Vault{KeyFile: filepath.Join(t.TempDir(), "key"), CreateKey: true},
			Store: rows}}
}

// server is another server, after all that were before it.
func (l *lasting) server(configured ...spec.Configured) *Servers {
	l.t.Helper()
	servers := New(Config{Store: l.store, Version: "1", Callback: "http://localhost:1/oauth/callback",
		Dial: serverstest.Dial, LoginStore: l.logins,
		Log: slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	l.t.Cleanup(servers.Close)
	if err := servers.Recover(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	servers.SetConfigured(configured)
	return servers
}

// browse opens the link of a log-in, goes on, agrees, and comes back.
func browse(t *testing.T, servers *Servers, link string) {
	t.Helper()
	_, id, ok := strings.Cut(link, "/oauth/start/")
	if !ok || strings.Contains(link, "state=") {
		t.Fatalf("the link is %q", link)
	}
	i, err := servers.Logins.ConsentPage(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := servers.Logins.Redirect(id, []string{i.Browser}, i.Proof)
	if err != nil {
		t.Fatal(err)
	}
	if came, err := servers.Logins.HandleCallback(agree(t, to),
		func(of string) []string { return []string{i.Browser} }); err != nil || came != id {
		t.Fatalf("came back as %q, %v", came, err)
	}
}

// agree is what a browser comes back with from an authorization server.
func agree(t *testing.T, to string) url.Values {
	t.Helper()
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return back.Query()
}

// logIn connects a principal to a bank, and logs in there.
func logIn(t *testing.T, servers *Servers, p auth.Principal, name, address string) {
	t.Helper()
	i, err := servers.Connect(t.Context(), p, spec.ConnectRequest{Name: name, URL: address})
	if err != nil || i.State != state.NeedsAuth {
		t.Fatalf("%+v, %v", i, err)
	}
	logInAt(t, servers, p, name, i.AuthURL)
}

func logInAt(t *testing.T, servers *Servers, p auth.Principal, name, link string) {
	t.Helper()
	browse(t, servers, link)
	until(t, "connected", func() bool {
		i, _, err := servers.Info(p, name)
		return err == nil && i.State == state.Connected
	})
}

// works reports whether a server can be used, or its user has to log in.
func works(t *testing.T, servers *Servers, p auth.Principal, name string, want bool) {
	t.Helper()
	err := get(servers, p, name).ready(t.Context())
	i, _, ierr := servers.Info(p, name)
	if ierr != nil || (err == nil) != want || !want && (i.State != state.NeedsAuth || i.AuthURL == "") {
		t.Errorf("%s of %s is %s (%s), %v", name, p.Name, i.State, i.LastError, err)
	}
}

func counts(t *testing.T, k *serverstest.Protected, logins, renewals int) {
	t.Helper()
	if l, r, reused := k.Counts(); l != logins || r != renewals || reused != 0 {
		t.Errorf("%d log-ins and %d renewals, want %d and %d; %d times a token that was used", l, r, logins, renewals,
			reused)
	}
}

// A log-in is good at the next server, and the one after, each with the token
// that the one before it got; for its user alone.
func TestLoginSurvives(t *testing.T) {
	bank := serverstest.NewProtected(t, 1) // a token is too old at once
	l := newLasting(t)
	one := l.server()
	logIn(t, one, P, "bank", bank.URL)
	if _, err := one.Connect(t.Context(), bob, spec.ConnectRequest{Name: "bank", URL: bank.URL}); err != nil {
		t.Fatal(err)
	}
	if l.rows.rows() != 1 {
		t.Errorf("%d log-ins are stored", l.rows.rows())
	}
	logins, before, _ := bank.Counts()
	one.Close()
	two := l.server()
	works(t, two, P, "bank", true)
	works(t, two, bob, "bank", false)
	two.Close()
	three := l.server()
	works(t, three, P, "bank", true)
	if n, after, reused := bank.Counts(); n != logins || after < before+2 || reused != 0 {
		t.Errorf("%d log-ins and %d renewals; then %d and %d, and %d with a token that was used", logins, before, n,
			after, reused)
	}
	l.rows.mu.Lock()
	stored := fmt.Sprintf("%s %+v", slices.Collect(maps.Values(l.rows.all)), l.store.text())
	l.rows.mu.Unlock()
	list, err := json.Marshal(three.List(P))
	if err != nil || len(bank.Given()) < 4 {
		t.Fatal(err, bank.Given())
	}
	for _, v := range bank.Given() {
		for where, text := range map[string]string{"the store": stored, "the log": l.log.String(),
			"the list": string(list)} {
			if strings.Contains(text, v) {
				t.Errorf("%s has %s", where, v)
			}
		}
	}
}

// What ends a log-in ends it for the next server too.
func TestLoginsAreForgotten(t *testing.T) {
	for name, tt := range map[string]struct {
		do    func(t *testing.T, servers *Servers, bank, other *serverstest.Protected)
		works bool // without another log-in
	}{
		"restarted": {func(t *testing.T, servers *Servers, _, _ *serverstest.Protected) {
			i, err := servers.Restart(t.Context(), P, "bank", nil, nil, nil)
			if err != nil || i.State != state.Connected {
				t.Errorf("%+v, %v", i, err)
			}
		}, true},
		"disconnected": {func(t *testing.T, servers *Servers, _, _ *serverstest.Protected) {
			if _, err := servers.Disconnect(t.Context(), P, "bank", false); err != nil {
				t.Fatal(err)
			}
			i, err := servers.Restart(t.Context(), P, "bank", nil, nil, nil)
			if err == nil || i.State != state.NeedsAuth {
				t.Errorf("connected again it is %s, %v", i.State, err)
			}
		}, false},
		"removed and made again": {func(t *testing.T, servers *Servers, bank, _ *serverstest.Protected) {
			if _, err := servers.Disconnect(t.Context(), P, "bank", true); err != nil {
				t.Fatal(err)
			}
			if i, err := servers.Connect(t.Context(), P,
				spec.ConnectRequest{Name: "bank", URL: bank.URL}); err != nil || i.State != state.NeedsAuth {
				t.Errorf("%+v, %v", i, err)
			}
		}, false},
		"connected anew": {func(t *testing.T, servers *Servers, bank, _ *serverstest.Protected) {
			if i, err := servers.Connect(t.Context(), P,
				spec.ConnectRequest{Name: "bank", URL: bank.URL}); err != nil || i.State != state.NeedsAuth {
				t.Errorf("%+v, %v", i, err)
			}
		}, false},
		"connected to another": {func(t *testing.T, servers *Servers, _, other *serverstest.Protected) {
			if i, err := servers.Connect(t.Context(), P,
				spec.ConnectRequest{Name: "bank", URL: other.URL}); err != nil || i.State != state.NeedsAuth {
				t.Errorf("%+v, %v", i, err)
			}
		}, false},
		"not connected to one that does not work": {
			func(t *testing.T, servers *Servers, bank, _ *serverstest.Protected) {
				before := get(servers, P, "bank").account.Current()
				bad := strings.TrimSuffix(bank.URL, "/mcp") + "/none"
				if i, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: bad}); err == nil {
					t.Errorf("%+v", i)
				}
				works(t, servers, P, "bank", true)
				if get(servers, P, "bank").account.Current() != before {
					t.Error("what is in memory of it alone is lost")
				}
			}, true},
		"its tokens ended": {
			func(t *testing.T, servers *Servers, bank, _ *serverstest.Protected) { bank.Expire() }, true},
		"revoked": {func(t *testing.T, servers *Servers, bank, _ *serverstest.Protected) {
			bank.Revoke()
			i, err := servers.Restart(t.Context(), P, "bank", nil, nil, nil)
			if err == nil || i.State != state.NeedsAuth {
				t.Errorf("%s, %v", i.State, err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bank, other := serverstest.NewProtected(t, 0), serverstest.NewProtected(t, 0)
			l := newLasting(t)
			b := l.server()
			logIn(t, b, P, "bank", bank.URL)
			counts(t, bank, 1, 0)
			tt.do(t, b, bank, other)
			if want := map[bool]int{true: 1}[tt.works]; l.rows.rows() != want {
				t.Errorf("%d log-ins are stored, want %d", l.rows.rows(), want)
			}
			b.Close()
			works(t, l.server(), P, "bank", tt.works)
			if n, _, reused := bank.Counts(); n != 1 || reused != 0 {
				t.Errorf("%d log-ins, %d with a token that was used", n, reused)
			}
		})
	}
}

// A token that its server refuses is renewed, once; then the user logs in.
func TestRefusedTokenIsRenewed(t *testing.T) {
	bank := serverstest.NewProtected(t, 0)
	b := newLasting(t).server()
	logIn(t, b, P, "bank", bank.URL)
	bank.Expire()
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Fatalf("%s, %v", i.State, err)
	}
	counts(t, bank, 1, 1)
	s := get(b, P, "bank")
	a := s.account.Current()
	if ok, err := a.Renew(); !ok || err != nil {
		t.Error("it is not renewed again, after it has worked")
	}
	if ok, err := a.Renew(); ok || err != nil {
		t.Error("it is renewed again and again")
	}
	counts(t, bank, 1, 2)
	s.account.ServerAnswered()
	if ok, err := a.Renew(); !ok || err != nil {
		t.Error("it is not renewed, after it has worked")
	}
}

// Many calls at once renew a token once, and none of them has it before it is
// stored; a server that ends meanwhile loses nothing.
func TestRenewedOnceAndStoredFirst(t *testing.T) {
	bank := serverstest.NewProtected(t, 0)
	l := newLasting(t)
	b := l.server()
	logIn(t, b, P, "bank", bank.URL)
	login := get(b, P, "bank").account.Current()
	k, err := login.TokenSource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old, err := k.Token()
	if err != nil {
		t.Fatal(err)
	}
	get(b, P, "bank").account.ServerAnswered()
	entered, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	l.rows.before(func() {
		once.Do(func() { close(entered) })
		<-goOn
	})
	var all sync.WaitGroup
	var mu sync.Mutex
	tokens, early := map[string]int{}, 0
	for range 20 {
		all.Go(func() {
			_, err := login.Renew()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			got, err := k.Token()
			if err != nil {
				t.Error(err)
				return
			}
			tokens[got.AccessToken]++
			select {
			case <-goOn:
			default:
				early++
			}
		})
	}
	<-entered
	closed := make(chan struct{})
	go func() { b.Close(); close(closed) }()
	<-b.life.Done()
	select { // it must not be over: what the authorization server gave is not stored
	case <-closed:
		t.Error("the server ended while a token was renewed")
	case <-time.After(200 * time.Millisecond):
	}
	close(goOn)
	all.Wait()
	<-closed
	if len(tokens) != 1 || tokens[old.AccessToken] > 0 || early > 0 {
		t.Errorf("%d tokens, %d of them before it was stored", len(tokens), early)
	}
	counts(t, bank, 1, 1)
	l.rows.before(nil)
	bank.Expire()
	works(t, l.server(), P, "bank", true) // with the refresh token that came last
	counts(t, bank, 1, 2)
}

// Without a key that can be used log-ins are in memory, which is said once.
func TestLoginsWithoutKey(t *testing.T) {
	l := newLasting(t)
	l.logins.Vault = &vault.Vault{KeyFile: filepath.Join(t.TempDir(), "none")}
	bank, other := serverstest.NewProtected(t, 0), serverstest.NewProtected(t, 0)
	b := l.server()
	logIn(t, b, P, "bank", bank.URL)
	logIn(t, b, P, "other", other.URL)
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Errorf("%s, %v", i.State, err)
	}
	if n := strings.Count(l.log.String(), "in memory alone"); n != 1 || l.rows.rows() != 0 {
		t.Errorf("it is said %d times; %d are stored\n%s", n, l.rows.rows(), l.log)
	}
	b.Close()
	b = l.server()
	works(t, b, P, "bank", false)
	b.Close()

	// Another key.
	l.logins.Vault = &vault.Vault{KeyFile: filepath.Join(t.TempDir(), "key"), CreateKey: true}
	b = l.server()
	for _, name := range []string{"bank", "other"} {
		err := get(b, P, name).ready(t.Context())
		i, _, _ := b.Info(P, name)
		if err == nil {
			t.Fatal(i.State)
		}
		logInAt(t, b, P, name, i.AuthURL)
	}
	b.Close()
	if err := os.WriteFile(l.logins.Vault.KeyFile, secret.Bytes(32), 0o600); err != nil {
		t.Fatal(err)
	}
	b = l.server()
	works(t, b, P, "bank", false)
	works(t, b, P, "other", false)
	if n := strings.Count(l.log.String(), "is needed again, as all are"); n != 1 {
		t.Errorf("it is said %d times\n%s", n, l.log)
	}
	i, _, _ := b.Info(P, "bank")
	logInAt(t, b, P, "bank", i.AuthURL)
	b.Close()
	works(t, l.server(), P, "bank", true)
}

// What an authorization server says when it refuses, which may be all that it was
// sent, is told nowhere.
func TestRefusalsAreNotRepeated(t *testing.T) {
	bank := serverstest.NewProtected(t, 1) // so that each use renews it
	l := newLasting(t)
	b := l.server()
	logIn(t, b, P, "bank", bank.URL)
	k, err := get(b, P, "bank").account.Current().TokenSource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bank.Expire()
	bank.Forget()
	_, err = b.Restart(t.Context(), P, "bank", nil, nil, nil)
	if i, _, _ := b.Info(P, "bank"); i.State != state.NeedsAuth || err == nil {
		t.Fatalf("%s, %v", i.State, err)
	}
	_, refusal := k.Token()
	if refusal == nil || !strings.Contains(refusal.Error(), "invalid_client") {
		t.Errorf("the refusal is %v", refusal)
	}
	said := fmt.Sprint(err, refusal)
	for e := err; e != nil; e = errors.Unwrap(e) {
		said += fmt.Sprintf("\n%+v", e)
	}
	i, _, _ := b.Info(P, "bank")
	browse(t, b, i.AuthURL) // the exchange of the code fails as well
	until(t, "the log-in failed", func() bool {
		i, _,
			_ = b.Info(P, "bank")
		return strings.Contains(i.LastError, "the log-in failed")
	})
	list, err := json.Marshal(b.List(P))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range bank.Given() {
		for where, text := range map[string]string{"the errors": said, "the list": string(list),
			"the log": l.log.String()} {
			if strings.Contains(text, v) {
				t.Errorf("%s has %s:\n%s", where, v, text)
			}
		}
	}
}

// A log-in at one of the operator's servers is each user's own, and goes when the
// settings do not have the server any more, for users who do not come too.
func TestConfiguredLogins(t *testing.T) {
	bank, other := serverstest.NewProtected(t, 0), serverstest.NewProtected(t, 0)
	c := spec.Configured{Name: "bank", Kind: spec.HTTP, URL: bank.URL}
	l := newLasting(t)
	needs := func(servers *Servers, p auth.Principal) string {
		t.Helper()
		if _, _, err := servers.Info(p, "bank"); err != nil {
			t.Fatal(err)
		}
		works(t, servers, p, "bank", false)
		i, _, _ := servers.Info(p, "bank")
		return i.AuthURL
	}
	has := func(servers *Servers, p auth.Principal) {
		t.Helper()
		if _, _, err := servers.Info(p, "bank"); err != nil {
			t.Fatal(err)
		}
		works(t, servers, p, "bank", true)
	}
	b := l.server(c)
	logInAt(t, b, P, "bank", needs(b, P))
	needs(b, bob)
	b.Close()
	b = l.server(c)
	has(b, P)
	needs(b, bob)
	b.Close()
	counts(t, bank, 1, 0)

	// At another address, or as another client, it is not used.
	for _, changed := range []spec.Configured{{Name: "bank", Kind: spec.HTTP, URL: other.URL},
		{Name: "bank", Kind: spec.HTTP, URL: bank.URL,
			OAuth: spec.OAuth{ClientID: "other", ClientSecret: "s", Issuer: strings.TrimSuffix(bank.URL, "/mcp")}}} {
		b = l.server(changed)
		needs(b, P)
		b.Close()
	}
	if l.rows.rows() != 1 {
		t.Errorf("%d are stored", l.rows.rows())
	}
	for name, gone := range map[string][]spec.Configured{"removed": nil, "for others": {{Name: "bank",
		Kind: spec.HTTP, URL: bank.URL, Principals: []string{"user:bob"}}},
		"disabled": {{Name: "bank", Kind: spec.HTTP, URL: bank.URL, Disabled: true}}} {
		b = l.server(c)
		if l.rows.rows() == 0 {
			logInAt(t, b, P, "bank", needs(b, P))
		}
		b.Close()
		if l.rows.rows() != 1 {
			t.Fatalf("%d are stored", l.rows.rows())
		}
		l.server(gone...).Close()
		if l.rows.rows() != 0 {
			t.Errorf("%s: it is still stored", name)
		}
	}
}
