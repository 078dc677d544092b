package auth

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// shelf is a Store in memory; broken makes it fail.
type shelf struct {
	mu     sync.Mutex
	tokens []Token
	broken error
}

func (s *shelf) breaks(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

func (s *shelf) AddToken(_ context.Context, t Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = append(s.tokens, t)
	return s.broken
}

func (s *shelf) Tokens(context.Context) ([]Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tokens), s.broken
}

func (s *shelf) HasTokens(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens) > 0, s.broken
}

func (s *shelf) TokenByHash(_ context.Context, hash string) (Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.tokens, func(t Token) bool { return t.Hash == hash }); i >= 0 {
		return s.tokens[i], s.broken
	}
	return Token{}, errors.Join(s.broken, ErrNoToken)
}

func (s *shelf) RemoveToken(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.tokens)
	s.tokens = slices.DeleteFunc(s.tokens, func(t Token) bool { return t.ID == id })
	if len(s.tokens) == n {
		return ErrNoToken
	}
	return s.broken
}

func (s *shelf) PutTokenUses(_ context.Context, uses map[string]time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.tokens {
		if used, ok := uses[s.tokens[i].ID]; ok && s.broken == nil {
			s.tokens[i].Used = &used
		}
	}
	return s.broken
}

// anyone is the local user as they come over the network.
func anyone() Principal {
	p := Local
	p.WithoutToken = true
	return p
}

func door(t *testing.T, mode Mode, host string, s Store) *Authenticator {
	t.Helper()
	d, err := NewAuthenticator(t.Context(), mode, host, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func issue(t *testing.T, s Store, user string, service bool, expires time.Duration) (Token, string) {
	t.Helper()
	tok, value, err := Issue(t.Context(), s, user, service, expires)
	if err != nil {
		t.Fatal(err)
	}
	return tok, "Bearer " + value.Reveal()
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "[::1]": true,
		"::ffff:127.0.0.1": true,
		"":                 false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "example.com": false,
		"localhost.example.com": false,
		"127.0.0.1.example.com": false, "128.0.0.1": false, "169.254.169.254": false,
	} {
		if got := Loopback(host); got != want {
			t.Errorf("Loopback(%q) = %v, want %v", host, got, want)
		}
	}
}

// A server that would be open to others does not start.
func TestNewDoor(t *testing.T) {
	empty, full := &shelf{}, &shelf{}
	issue(t, full, "ann", false, 0)
	tests := []struct {
		mode  Mode
		host  string
		store Store
		opens bool
	}{
		{Auto, "localhost", empty, true}, {Required, "127.0.0.1", empty, true}, {Off, "::1", empty, true},
		{Off, "localhost", full, true},
		{Auto, "0.0.0.0", empty, false}, {Required, "0.0.0.0", empty, false}, {Off, "0.0.0.0", empty, false},
		{Auto, "0.0.0.0", full, true}, {Required, "example.com", full, true}, {Off, "0.0.0.0", full, false},
		{Off, "", full, false},
	}
	for _, tt := range tests {
		_, err := NewAuthenticator(t.Context(), tt.mode, tt.host, tt.store, nil)
		if (err == nil) != tt.opens {
			t.Errorf("auth %s on %q: %v, want to start: %v", tt.mode, tt.host, err, tt.opens)
		}
		if err != nil && (!fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), tt.host)) {
			t.Errorf("auth %s on %q: %v, want a Configuration fault that names the host", tt.mode, tt.host, err)
		}
	}
	broken := errors.New("no disk")
	if _, err := NewAuthenticator(t.Context(), Auto, "0.0.0.0", &shelf{broken: broken}, nil); !errors.Is(err, broken) {
		t.Errorf("a store that fails: %v", err)
	}
}

func TestAdmitWithoutToken(t *testing.T) {
	empty, full := &shelf{}, &shelf{}
	issue(t, full, "ann", false, 0)
	tests := []struct {
		name  string
		door  *Authenticator
		local bool
	}{
		{"auto, none exists", door(t, Auto, "localhost", empty), true},
		{"auto, one exists", door(t, Auto, "localhost", full), false},
		{"required, none exists", door(t, Required, "localhost", empty), false},
		{"off, one exists", door(t, Off, "localhost", full), true},
		{"auto on the network", door(t, Auto, "0.0.0.0", full), false},
		{"required on the network", door(t, Required, "0.0.0.0", full), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			need, err := tt.door.TokenRequired(t.Context())
			if err != nil || need == tt.local {
				t.Errorf("Required = %v, %v", need, err)
			}
			p, err := tt.door.Authenticate(t.Context(), "")
			if tt.local && (err != nil || p != anyone()) {
				t.Errorf("Admit = %+v, %v, want the local user", p, err)
			}
			if !tt.local && (!fault.Is(err, fault.Unauthorized) || p != Principal{}) {
				t.Errorf("Admit = %+v, %v, want Unauthorized and nobody", p, err)
			}
		})
	}
}

// On the network a token is needed even when the last one was just revoked.
func TestTheLastTokenRevoked(t *testing.T) {
	s := &shelf{}
	tok, header := issue(t, s, "ann", false, 0)
	open, near := door(t, Auto, "0.0.0.0", s), door(t, Auto, "localhost", s)
	if err := s.RemoveToken(t.Context(), tok.ID); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Authenticator{open, near} {
		if _, err := d.Authenticate(t.Context(), header); !fault.Is(err, fault.Unauthorized) {
			t.Errorf("a revoked token: %v", err)
		}
	}
	if _, err := open.Authenticate(t.Context(), ""); !fault.Is(err, fault.Unauthorized) {
		t.Errorf("nobody, on the network: %v", err)
	}
	if p, err := near.Authenticate(t.Context(), ""); err != nil || p != anyone() {
		t.Errorf("nobody, on loopback: %+v, %v", p, err)
	}
}

func TestAdmit(t *testing.T) {
	s := &shelf{}
	annTok, ann := issue(t, s, "ann", false, 0)
	botTok, bot := issue(t, s, "bot", true, time.Hour)
	eyeTok, value, err := Issue(t.Context(), s, "eye", false, 0, Metrics)
	if err != nil {
		t.Fatal(err)
	}
	d := door(t, Auto, "localhost", s)
	secretPart := strings.TrimPrefix(ann, "Bearer ")
	tests := []struct {
		name, header string
		want         Principal
	}{
		{"a user", ann, Principal{ID: "user:ann", Name: "ann", Authenticated: true, Token: annTok.ID}},
		{"a service", bot, Principal{ID: "user:bot", Name: "bot", Service: true, Authenticated: true,
			Token: botTok.ID}},
		{"the role metrics", "Bearer " + value.Reveal(), Principal{ID: "user:eye", Name: "eye", Authenticated: true,
			Token: eyeTok.ID, Roles: NewRoles(Metrics)}},
		{"the scheme in another case", "bearer " + secretPart,
			Principal{ID: "user:ann", Name: "ann", Authenticated: true, Token: annTok.ID}},
		{"no scheme", secretPart, Principal{}},
		{"another scheme", "Basic " + secretPart, Principal{}},
		{"an empty token", "Bearer ", Principal{}},
		{"the scheme alone", "Bearer", Principal{}},
		{"a part of the token", ann[:len(ann)-1], Principal{}},
		{"more than the token", ann + "a", Principal{}},
		{"the token in capitals", "Bearer " + strings.ToUpper(secretPart), Principal{}},
		{"the stored hash", "Bearer " + s.tokens[0].Hash, Principal{}},
		{"the token's id", "Bearer " + s.tokens[0].ID, Principal{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := d.Authenticate(t.Context(), tt.header)
			if p != tt.want {
				t.Errorf("Admit = %+v, want %+v", p, tt.want)
			}
			if bad := tt.want == (Principal{}); bad != fault.Is(err, fault.Unauthorized) || !bad && err != nil {
				t.Errorf("error %v", err)
			}
			if err != nil && strings.Contains(err.Error(), secretPart) {
				t.Errorf("the message %q holds the token", err)
			}
		})
	}
}

// Even where no token is needed, a wrong one is not taken for the local user.
func TestAWrongTokenIsNotTheLocalUser(t *testing.T) {
	for _, mode := range []Mode{Auto, Off} {
		if p, err := door(t, mode, "localhost", &shelf{}).Authenticate(t.Context(), "Bearer slt_x"); !fault.Is(err,
			fault.Unauthorized) {
			t.Errorf("auth %s: %+v, %v", mode, p, err)
		}
	}
}

func TestAStoreThatFailsLetsNobodyIn(t *testing.T) {
	s := &shelf{}
	_, header := issue(t, s, "ann", false, 0)
	d := door(t, Auto, "localhost", s)
	s.broken = errors.New("no disk")
	for _, h := range []string{"", header, "Bearer slt_x"} {
		if p, err := d.Authenticate(t.Context(), h); err == nil || p != (Principal{}) {
			t.Errorf("Admit(%q) = %+v, %v", h, p, err)
		}
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		tok, header := issue(t, s, "ann", false, 90*24*time.Hour)
		_, ever := issue(t, s, "bob", false, 0)
		if tok.Expires == nil || !tok.Expires.Equal(tok.Created.Add(90*24*time.Hour)) {
			t.Fatalf("token %+v", tok)
		}
		d := door(t, Required, "localhost", s)
		time.Sleep(time.Until(*tok.Expires) - time.Nanosecond)
		if _, err := d.Authenticate(t.Context(), header); err != nil {
			t.Errorf("just before its end: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := d.Authenticate(t.Context(), header); !fault.Is(err, fault.Unauthorized) ||
			!strings.Contains(err.Error(), "expired") {
			t.Errorf("at its end: %v", err)
		}
		if _, err := d.Authenticate(t.Context(), ever); err != nil {
			t.Errorf("one without end: %v", err)
		}
	})
}

// An expired token still counts as one: a server must not fall open.
func TestAnExpiredTokenKeepsTheDoorShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		issue(t, s, "ann", false, time.Hour)
		time.Sleep(2 * time.Hour)
		if _, err := door(t, Auto, "localhost", s).Authenticate(t.Context(), ""); !fault.Is(err, fault.Unauthorized) {
			t.Errorf("nobody is let in: %v", err)
		}
	})
}

func TestIssue(t *testing.T) {
	s := &shelf{}
	tok, value, err := Issue(t.Context(), s, "ann", true, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := s.tokens[0]
	if got.User != "ann" || !got.Service || got.Expires != nil || got.ID != tok.ID || got.Hash == "" ||
		strings.Contains(got.Hash, value.Reveal()) {
		t.Errorf("stored %+v", got)
	}
	for _, user := range []string{"", "-x", ".", "a b", "a/b", "a\n", "ä", "a:b", strings.Repeat("a", 65)} {
		if _, _, err := Issue(t.Context(), s, user, false, 0); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("user %q: %v", user, err)
		}
	}
	for _, user := range []string{"a", "A.b_c@d+e-f", "0", strings.Repeat("a", 64)} {
		if _, _, err := Issue(t.Context(), s, user, false, 0); err != nil {
			t.Errorf("user %q: %v", user, err)
		}
	}
	if _, _, err := Issue(t.Context(), s, "ann", false, -time.Hour); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("a negative time: %v", err)
	}
	s.broken = errors.New("no disk")
	if _, value, err := Issue(t.Context(), s, "ann", false, 0); !errors.Is(err, s.broken) || value != "" {
		t.Errorf("a token that was not stored is handed out: %v", err)
	}
}

func TestPrincipals(t *testing.T) {
	if _, ok := FromContext(t.Context()); ok {
		t.Error("a principal out of nothing")
	}
	ann := User("ann", false)
	if p, ok := FromContext(NewContext(t.Context(), ann)); !ok || p != ann {
		t.Errorf("From = %+v, %v", p, ok)
	}
	if User("local", false).ID == Local.ID {
		t.Error("a user called local is the local user")
	}
}

// Ids are read as they are made; what is not one is nobody, and not the local user.
func TestKnown(t *testing.T) {
	for _, want := range []Principal{Local, User("ann", false), User("local", false), User("A.b_c@d+e-f", false)} {
		if p, ok := FromID(want.ID); !ok || p != want {
			t.Errorf("%s is %+v, %v", want.ID, p, ok)
		}
	}
	for _, id := range []string{"", "ann", "Local", "local ", "user:", "user:a b", "user:user:a", "team:ann",
		"oidc:https://x#1", "USER:ann", "user:a\x00", "user:a\n"} {
		if p, ok := FromID(id); ok || p != (Principal{}) {
			t.Errorf("%q is %+v", id, p)
		}
	}
	for text, want := range map[string]string{"local": "local", "user:local": "user:local", "ann": "user:ann",
		"user:ann": "user:ann", "": "", "a b": "", "team:ann": "", "user:": ""} {
		if id, err := ParseID(text); id != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", text, id, err)
		}
	}
}

// No user is called as the local user is, and a token of before of one that is so
// does not make them one.
func TestAUserCalledLocal(t *testing.T) {
	s := &shelf{}
	for _, name := range []string{"local", "Local", "LOCAL"} {
		if _, _, err := Issue(t.Context(), s, name, false, 0); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("%s: %v", name, err)
		}
	}
	value := secret.NewToken()
	if err := s.AddToken(t.Context(), Token{ID: "old", Owner: "user:local", User: "local",
		Hash: secret.Hash(value.Reveal())}); err != nil {
		t.Fatal(err)
	}
	d, err := NewAuthenticator(t.Context(), Auto, "localhost", s, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Authenticate(t.Context(), "Bearer "+value.Reveal())
	if err != nil || p.ID == Local.ID || !p.Authenticated {
		t.Errorf("%+v, %v", p, err)
	}
}
