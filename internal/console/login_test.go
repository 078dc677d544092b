package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
)

// noTokens is a store without tokens.
type noTokens struct{ auth.Store }

func (noTokens) HasTokens(context.Context) (bool, error) { return false, nil }

func newLogins(t *testing.T) (*Logins, *time.Time) {
	t.Helper()
	a, err := auth.NewAuthenticator(t.Context(), auth.Auto, "localhost", noTokens{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, now := NewLogins(a, ""), time.Now()
	l.now = func() time.Time { return now }
	l.attempts.now = l.now
	return l, &now
}

const home = "http://localhost:8000"

// halves are those of a log-in's secret.
type halves struct{ cookie, key string }

func (l *Logins) begin(name string) halves {
	cookie, key := l.Begin(grantOf(name), nil)
	return halves{cookie.Reveal(), key.Reveal()}
}

func (l *Logins) counts(h halves) bool {
	r := httptest.NewRequest(http.MethodGet, home+"/v1/x", nil)
	r.Header.Set(Header, h.key)
	r.AddCookie(&http.Cookie{Name: PlainCookie, Value: h.cookie})
	x, _, err := l.Of(r, home)
	return x != nil && err == nil
}

func grantOf(name string) auth.Grant { return auth.NewGrant(auth.User(name, false), "", nil) }

// A code counts for a minute, and once, also when many use it at the same moment.
func TestCodesCountOnce(t *testing.T) {
	l, now := newLogins(t)
	code, _ := l.NewCode(grantOf("ann"), nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	used := 0
	for range 20 {
		wg.Go(func() {
			if g, _, err := l.TakeCode(context.Background(), code.Reveal()); err == nil && g.Principal().ID == "user:ann" {
				mu.Lock()
				defer mu.Unlock()
				used++
			}
		})
	}
	wg.Wait()
	if used != 1 {
		t.Errorf("it was used %d times", used)
	}
	late, _ := l.NewCode(grantOf("ann"), nil)
	*now = now.Add(CodeAge)
	if _, _, err := l.TakeCode(t.Context(), late.Reveal()); err == nil {
		t.Error("an old code counts")
	}
	if _, _, err := l.TakeCode(t.Context(), ""); err == nil {
		t.Error("an empty code counts")
	}
}

// A log-in ends when it is not used for long; one with open requests is used.
func TestIdleLoginsEnd(t *testing.T) {
	l, now := newLogins(t)
	idle, open, used := l.begin("a"), l.begin("b"), l.begin("c")
	ctx, release := l.Hold(t.Context(), l.find([]*http.Cookie{{Value: open.cookie}}, open.key))
	for range 3 {
		*now = now.Add(IdleAge / 2)
		if !l.counts(used) {
			t.Fatal("a used log-in has ended")
		}
	}
	if l.counts(idle) || !l.counts(open) || ctx.Err() != nil {
		t.Error("idle, or not the open one")
	}
	release()
	*now = now.Add(IdleAge)
	if l.counts(open) || len(l.logins) > 0 {
		t.Errorf("%d are left", len(l.logins))
	}
}

// What many make is bounded, and the one who makes much loses their own first.
func TestLoginsAreBounded(t *testing.T) {
	l, _ := newLogins(t)
	kept := l.begin("ann")
	for range 3 * maxOwn {
		l.Begin(grantOf("eve"), nil)
		l.NewCode(grantOf("eve"), nil)
	}
	if !l.counts(kept) || len(l.logins) > maxOwn+1 || len(l.codes) > maxOwn {
		t.Errorf("%d log-ins and %d codes", len(l.logins), len(l.codes))
	}
	for i := range 2 * maxLogins {
		l.Begin(grantOf(fmt.Sprint("u", i)), nil)
	}
	if len(l.logins) > maxLogins {
		t.Errorf("%d log-ins", len(l.logins))
	}
}

// A log-in with open requests is used: those that nobody uses make room for new ones.
func TestOpenLoginsMakeNoRoom(t *testing.T) {
	l, now := newLogins(t)
	open := l.begin("ann")
	ctx, release := l.Hold(t.Context(), l.find([]*http.Cookie{{Value: open.cookie}}, open.key))
	defer release()
	for range 2 * maxOwn {
		*now = now.Add(time.Second)
		l.begin("ann")
	}
	if !l.counts(open) || ctx.Err() != nil {
		t.Error("the log-in that is in use made room")
	}
}

// A page of the same site may set cookies of the same name: the one that counts is found among them.
func TestOtherCookiesOfTheName(t *testing.T) {
	l, _ := newLogins(t)
	ann, eve := l.begin("ann"), l.begin("eve")
	r := httptest.NewRequest(http.MethodGet, home+"/v1/x", nil)
	r.Header.Set(Header, ann.key)
	for _, v := range []string{"attack", eve.cookie, ann.cookie} {
		r.AddCookie(&http.Cookie{Name: PlainCookie, Value: v})
	}
	if x, p, err := l.Of(r, home); x == nil || p.ID != "user:ann" || err != nil {
		t.Errorf("%v %v %v", x, p, err)
	}
	for _, h := range []halves{{ann.cookie[1:], ann.key}, {"", ann.key}, {ann.cookie, ann.key[1:]}, {ann.cookie, ""},
		{ann.cookie, NoKey}, {ann.cookie, eve.key}, {ann.key, ann.cookie}} {
		if l.counts(h) {
			t.Errorf("%v counts", h)
		}
	}
}

// Attempts come back with time, and addresses of one network of IPv6 are one.
func TestAttempts(t *testing.T) {
	l, now := newLogins(t)
	left := func(address string) (n int) {
		for l.Failed(address) == nil {
			if n++; n > 1000 {
				t.Fatalf("%s has no bound", address)
			}
		}
		return n
	}
	got := []int{left("192.0.2.1:5"), left("192.0.2.1:6"), left("192.0.2.2:5"), left("[2001:db8::1]:5"),
		left("[2001:db8::2]:5"), left("[2001:db8:0:1::1]:5"), left("::ffff:192.0.2.1"), left("@")}
	if want := []int{10, 0, 10, 10, 0, 10, 0, 10}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	*now = now.Add(2*attemptEvery + time.Second)
	if n := left("192.0.2.1:5"); n != 2 {
		t.Errorf("after some time %d", n)
	}
	for i := range 3 * maxAddresses {
		_ = l.Failed(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if n := len(l.attempts.left); n > maxAddresses+1 {
		t.Errorf("%d addresses are kept", n)
	}
}
