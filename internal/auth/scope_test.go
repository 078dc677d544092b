package auth

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/event"
	"sandlot/internal/fault"
)

func issueToken(t *testing.T, s Store, n NewToken) (Token, string) {
	t.Helper()
	tok, value, err := IssueToken(t.Context(), s, n)
	if err != nil {
		t.Fatal(err)
	}
	return tok, "Bearer " + value.Reveal()
}

// A stored scope restricts, also one that this version does not know the names of.
func TestScopeAllows(t *testing.T) {
	for scope, allowed := range map[Scope]string{
		"": "file.read code.execute later.operation", "file.*": "file.read file.write", "file.read": "file.read",
		"code.execute file.*": "code.execute file.read", "later.operation": "later.operation", "nonsense": "",
		" ": "", ".*": "", "*.read": "", "file.* ": "file.read",
	} {
		for _, o := range []string{"file.read", "file.write", "code.execute", "filex.read", "file", "later.operation"} {
			want := scope == "" || strings.Contains(" "+allowed+" ", " "+o+" ") ||
				strings.Contains(string(scope), "file.*") && strings.HasPrefix(o, "file.")
			if scope != "" && o == "file" {
				want = strings.Contains(string(scope), "file.*")
			}
			if got := scope.Allows(o); got != want {
				t.Errorf("%q allows %s: %v", scope, o, got)
			}
		}
	}
	if NewScope("file.read", "file.*", "code.execute") != NewScope("code.execute", "file.*", "file.*") {
		t.Error("one set has two forms")
	}
}

// The scope is the token's, and outlives it in nothing.
func TestScopeIsTheTokens(t *testing.T) {
	s := &shelf{}
	d := door(t, Auto, "localhost", s)
	_, header := issueToken(t, s, NewToken{User: "ann", Scope: "code.execute"})
	_, other := issueToken(t, s, NewToken{User: "ann"})
	p, err := d.Authenticate(t.Context(), header)
	if err != nil || p.Scope != "code.execute" || p.Identity() != User("ann", false) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := d.Authenticate(t.Context(), other); err != nil || p.Scope != "" {
		t.Errorf("%+v, %v", p, err)
	}
}

// A service names its users, and nobody else's; another token names none.
func TestActFor(t *testing.T) {
	s := &shelf{}
	d := door(t, Auto, "localhost", s)
	admit := func(header string) Principal {
		t.Helper()
		p, err := d.Authenticate(t.Context(), header)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	tok, header := issueToken(t, s, NewToken{User: "gitu", Service: true, ActsFor: true, Scope: "file.*",
		Roles: []Role{Operator}})
	gitu := admit(header)
	if p, err := gitu.ActFor(nil); err != nil || p != gitu || !p.Service || !p.HasRole(Operator) {
		t.Errorf("without the header: %+v, %v", p, err)
	}
	want := Principal{ID: "user:gitu/ann", Name: "ann", Authenticated: true, Token: tok.ID, Scope: "file.*"}
	ann, err := gitu.ActFor([]string{"ann"})
	if err != nil || ann != want {
		t.Errorf("its user: %+v, %v", ann, err)
	}
	if stored, ok := FromID(ann.ID); !ok || stored != ann.Identity() {
		t.Errorf("the stored id: %+v, want %+v", stored, ann.Identity())
	}
	if service, ok := ServiceOf(ann.ID); !ok || service != "user:gitu" {
		t.Errorf("the service is %q", service)
	}
	if _, err := ann.ActFor([]string{"bob"}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a user of the service acts for another: %v", err)
	}
	for _, bad := range [][]string{{""}, {"ann", "ann"}, {"ann", "bob"}, {"ann/bob"}, {"../ann"}, {"/"}, {"ann "},
		{" ann"}, {"ann,bob"}, {"ann\n"}, {"ann\x00"}, {"änn"}, {strings.Repeat("a", 65)}, {"user:ann"}, {".ann"},
		{strings.Repeat("a", 1<<20)}} {
		if p, err := gitu.ActFor(bad); !fault.Is(err, fault.InvalidParameters) || p != (Principal{}) ||
			len(err.Error()) > 500 {
			t.Errorf("%.80q: %+v, %v", bad, p, err)
		}
	}
	_, plain := issueToken(t, s, NewToken{User: "ann", Service: true, Roles: []Role{Operator}})
	for who, p := range map[string]Principal{"a service": admit(plain), "the local user": Local,
		"the owner": SocketOwner(), "nobody": {}} {
		for _, header := range [][]string{{"ann"}, {""}, {"a", "b"}} {
			if got, err := p.ActFor(header); !fault.Is(err, fault.Forbidden) || got != (Principal{}) {
				t.Errorf("%s sends %q: %+v, %v", who, header, got, err)
			}
		}
		if got, err := p.ActFor(nil); err != nil || got != p {
			t.Errorf("%s: %+v, %v", who, got, err)
		}
	}
	if _, _, err := IssueToken(t.Context(), s, NewToken{User: "x", ActsFor: true}); !fault.Is(err,
		fault.InvalidParameters) {
		t.Errorf("a user's token that acts for others: %v", err)
	}
}

// Nobody gets the id of a service's user in another way.
func TestIDsOfServicesUsers(t *testing.T) {
	s := &shelf{}
	for _, name := range []string{"gitu/ann", "user:gitu/ann", "/ann"} {
		if _, _, err := IssueToken(t.Context(), s, NewToken{User: name}); err == nil {
			t.Errorf("a token of %q was made", name)
		}
	}
	_, header := issue(t, s, "ann", false, 0)
	s.tokens[0].Owner = "user:gitu/ann"
	if p, err := door(t, Auto, "localhost", s).Authenticate(t.Context(), header); !fault.Is(err, fault.Unauthorized) {
		t.Errorf("a stored token of a service's user: %+v, %v", p, err)
	}
	for _, id := range []string{"user:gitu/", "user:/ann", "user:gitu/ann/bob", "local/ann", "gitu/ann",
		"user:gitu/ ann"} {
		if p, ok := FromID(id); ok {
			t.Errorf("%q is %+v", id, p)
		}
	}
	if id, err := ParseID("gitu/ann"); err != nil || id != "user:gitu/ann" {
		t.Errorf("in the settings: %q, %v", id, err)
	}
}

// A revoked token ends what it holds for each user that it acted for, and for the service.
func TestWatchOfAServicesUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := &shelf{}, event.New()
		d := door(t, Auto, "localhost", s)
		tok, header := issueToken(t, s, NewToken{User: "gitu", Service: true, ActsFor: true})
		_, otherHeader := issueToken(t, s, NewToken{User: "gitu", Service: true, ActsFor: true})
		w := NewTokenWatch(d, slog.New(slog.DiscardHandler), events)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); w.Run(ctx) }()
		hold := func(header string, users ...string) context.Context {
			p, err := d.Authenticate(t.Context(), header)
			if err == nil {
				p, err = p.ActFor(users)
			}
			if err != nil {
				t.Fatal(err)
			}
			c, release := w.TokenContext(t.Context(), p)
			t.Cleanup(release)
			return c
		}
		ended := []context.Context{hold(header), hold(header, "ann"), hold(header, "bob")}
		stays := []context.Context{hold(otherHeader), hold(otherHeader, "ann")}
		time.Sleep(3 * checkInterval)
		if err := s.RemoveToken(t.Context(), tok.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * checkInterval)
		for i, c := range ended {
			if !errors.Is(context.Cause(c), ErrEnded) {
				t.Errorf("%d of the revoked token: %v", i, context.Cause(c))
			}
		}
		for i, c := range stays {
			if c.Err() != nil {
				t.Errorf("%d of the other token: %v", i, context.Cause(c))
			}
		}
		for _, id := range []string{"user:gitu", "user:gitu/ann", "user:gitu/bob"} {
			list, _, _ := events.Subscribe(event.Filter{Principal: id}, 0).Read()
			if len(list) == 0 || list[len(list)-1].Operation != event.TokenEnded {
				t.Errorf("%s was told %+v", id, list)
			}
		}
		stop()
		<-over
	})
}

// The time of the last use is stored at most once a minute, and at the end.
func TestTokenUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingShelf{}
		d := door(t, Auto, "localhost", s)
		_, header := issue(t, s, "ann", false, 0)
		gone, goneHeader := issue(t, s, "bob", false, 0)
		issue(t, s, "unused", false, 0)
		w := NewTokenWatch(d, slog.New(slog.DiscardHandler), nil)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); w.Run(ctx) }()
		use := func(header string) time.Time {
			t.Helper()
			if _, err := d.Authenticate(t.Context(), header); err != nil {
				t.Fatal(err)
			}
			return time.Now()
		}
		stored := func() time.Time {
			all, _ := s.Tokens(t.Context())
			if all[len(all)-1].Used != nil {
				t.Errorf("a token that nobody used: %v", all[len(all)-1].Used)
			}
			if all[0].Used == nil {
				return time.Time{}
			}
			return *all[0].Used
		}
		first := use(header)
		use(goneHeader)
		time.Sleep(2 * checkInterval)
		if !stored().Equal(first) {
			t.Errorf("the first use, at %v, is stored as %v", first, stored())
		}
		if err := s.RemoveToken(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			use(header)
			time.Sleep(time.Second)
		}
		if s.puts > 3 {
			t.Errorf("100 uses in 100 seconds caused %d writes", s.puts)
		}
		use(header)
		s.breaks(errors.New("the disk is full"))
		time.Sleep(2 * time.Minute)
		s.breaks(nil)
		last := use(header)
		stop()
		<-over
		if !stored().Equal(last) {
			t.Errorf("the last use, at %v, is stored as %v", last, stored())
		}
		if len(d.uses.uses) != 1 {
			t.Errorf("%d tokens are remembered", len(d.uses.uses))
		}
	})
}

// countingShelf counts the writes of uses.
type countingShelf struct {
	shelf
	puts int
}

func (s *countingShelf) PutTokenUses(ctx context.Context, uses map[string]time.Time) error {
	s.puts++
	return s.shelf.PutTokenUses(ctx, uses)
}

func BenchmarkAuthenticate(b *testing.B) {
	s := &shelf{}
	_, value, err := IssueToken(b.Context(), s, NewToken{User: "gitu", Service: true, ActsFor: true, Scope: "file.*"})
	if err != nil {
		b.Fatal(err)
	}
	d, err := NewAuthenticator(b.Context(), Auto, "localhost", s, nil)
	if err != nil {
		b.Fatal(err)
	}
	header, users := "Bearer "+value.Reveal(), []string{"ann"}
	for b.Loop() {
		p, err := d.Authenticate(b.Context(), header)
		if err == nil {
			_, err = p.ActFor(users)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
