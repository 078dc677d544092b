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

// said are Issuers that take "x.SUBJECT.ISSUER" for valid, for a minute. The real ones are in the package oidc,
// which imports this one.
type said struct{ name string }

func (s said) Verify(_ context.Context, token string) (Claims, error) {
	p := strings.Split(token, ".")
	if p[0] != "x" {
		return Claims{}, fault.New(fault.Unauthorized, "refused")
	}
	return Claims{Issuer: "https://" + p[2], Subject: p[1], Name: s.name, Expires: time.Now().Add(time.Minute)}, nil
}

func (said) IsForServer(token string) bool { return strings.HasPrefix(token, "x.") }

// An issuer's user has an id that FromID parses, and that is nobody else's, whatever the display name is.
func TestIssuersUsers(t *testing.T) {
	s := &shelf{}
	_, stored := issue(t, s, "ann", false, 0)
	ids := map[string]string{"local": "local", "user:ann": "token"}
	for _, name := range []string{"", "ann", "local", "user:ann", "operator",
		"a\x1b[31m\nb" + strings.Repeat("x", 500)} {
		d, err := NewAuthenticator(t.Context(), Auto, "localhost", s, said{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range []string{"ann", "local", "user:ann", "ANN", "a/b", "a%2Fb", "%", "~", "ä", "a b", "",
			strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("/", 100), "\x00\xff",
			"~" + strings.Repeat("a", 52)} {
			for _, issuer := range []string{"a", "b", "A", "a:8443", "a/", "[::1]:1"} {
				id := oidcID("https://"+issuer, subject)
				who := subject + "\x00" + issuer
				if was, there := ids[id]; there && was != who {
					t.Errorf("%q at %q has the id of %q", subject, issuer, was)
				}
				ids[id] = who
				if strings.Contains(subject, ".") || strings.Contains(issuer, ".") {
					t.Fatal("the token of this test cannot say that")
				}
				p, err := d.Authenticate(t.Context(), "Bearer x."+subject+"."+issuer)
				if err != nil || p.ID != id || p.Roles != 0 || p.Service || !p.Authenticated || p.Token == "" {
					t.Fatalf("%+v, %v", p, err)
				}
				if len(p.Name) > 110 || strings.ContainsAny(p.Name, "\x1b\n\x00") {
					t.Errorf("the name %q", p.Name)
				}
				if subject == "" {
					continue // Verify refuses it
				}
				known, ok := FromID(id)
				parsed, err := ParseID(id)
				if !ok || known != p.Identity() || err != nil || parsed != id || known.Token != "" {
					t.Errorf("%s: %+v, %v; %v", id, known, ok, err)
				}
				if name != "" && name != "operator" && known.Name == p.Name && subject != name {
					t.Errorf("the display name %q is part of the identity", name)
				}
			}
		}
		if p, err := d.Authenticate(t.Context(), stored); err != nil || p.ID != "user:ann" {
			t.Errorf("a stored token: %+v, %v", p, err)
		}
	}
	for _, id := range []string{"oidc:", "oidc:x", "oidc:a-aaaaaaaaaaaaaaaa/", "oidc:a-aaaaaaaaaaaaaaaa/a/b",
		"oidc:a-aaaaaaaaaaaaaaaa/%2f", "oidc:a-aaaaaaaaaaaaaaa/x", "oidc:A-aaaaaaaaaaaaaaaa/x",
		"oidc:a-aaaaaaaaaaaaaaaa/x\n", "oidc:a-aaaaaaaaaaaaaaaa/~x",
		"oidc:a-aaaaaaaaaaaaaaaa/" + strings.Repeat("x", 129)} {
		if p, ok := FromID(id); ok {
			t.Errorf("%q is %+v", id, p)
		}
	}
}

// With issuers, auto needs a token, and a server on any address starts without a stored one.
func TestIssuersRequireToken(t *testing.T) {
	for host, mode := range map[string]Mode{"localhost": Auto, "0.0.0.0": Auto} {
		d, err := NewAuthenticator(t.Context(), mode, host, &shelf{}, said{})
		if err != nil {
			t.Fatal(err)
		}
		if required, err := d.TokenRequired(t.Context()); !required || err != nil {
			t.Errorf("%s: %v, %v", host, required, err)
		}
		for _, header := range []string{"", "Bearer y.a.b", "Bearer x.y", "Bearer x.y.z.v.w", "Basic x.ann.a"} {
			if p, err := d.Authenticate(t.Context(), header); !fault.Is(err, fault.Unauthorized) {
				t.Errorf("%q: %+v, %v", header, p, err)
			}
		}
		for header, want := range map[string]bool{"Bearer x.a.b": true, "bearer  x.a.b ": true, "DPoP x.a.b": true,
			"Bearer y.a.b": false, "Bearer slt_x": true, "Basic dTpw": false, "": false} {
			if d.IsToken(header) != want {
				t.Errorf("IsToken(%q) is not %v", header, want)
			}
		}
	}
	if _, err := NewAuthenticator(t.Context(), Off, "0.0.0.0", &shelf{}, said{}); !fault.Is(err, fault.Configuration) {
		t.Errorf("auth off on all addresses: %v", err)
	}
}

// What a JWT holds open ends with it, also while the stored tokens cannot be read.
func TestWatchJWT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		d, err := NewAuthenticator(t.Context(), Auto, "localhost", s, said{})
		if err != nil {
			t.Fatal(err)
		}
		s.breaks(errors.New("the disk is full"))
		p, err := d.Authenticate(t.Context(), "Bearer x.ann.a")
		if err != nil {
			t.Fatal(err)
		}
		told := event.New()
		w := NewTokenWatch(d, slog.New(slog.DiscardHandler), told)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); w.Run(ctx) }()
		held, release := w.TokenContext(t.Context(), p)
		defer release()
		time.Sleep(59 * time.Second)
		if held.Err() != nil {
			t.Errorf("it ended before the token: %v", context.Cause(held))
		}
		time.Sleep(checkInterval + time.Second)
		if !errors.Is(context.Cause(held), ErrEnded) {
			t.Errorf("it goes on: %v", context.Cause(held))
		}
		ended, _, _ := told.Subscribe(event.Filter{Principal: p.ID, Kinds: []event.Kind{event.Token}}, 0).Read()
		if len(ended) != 1 || ended[0].Operation != event.TokenEnded || ended[0].Name != p.Token {
			t.Errorf("told of %+v", ended)
		}
		stop()
		<-over
	})
}

func BenchmarkAuthenticateJWT(b *testing.B) {
	d, err := NewAuthenticator(b.Context(), Auto, "localhost", &shelf{}, said{"ann"})
	if err != nil {
		b.Fatal(err)
	}
	header := "Bearer x." + strings.Repeat("s", 36) + "." + "login-example-com/realms/sandlot"
	for b.Loop() {
		if _, err := d.Authenticate(b.Context(), header); err != nil {
			b.Fatal(err)
		}
	}
}
