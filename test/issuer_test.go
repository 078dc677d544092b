package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// testAudience is for whom the tokens of a test's issuers are.
const testAudience = "https://sandlot.example.com/mcp"

// testIssuer is an issuer that signs what the test wants.
type testIssuer struct {
	t   *testing.T
	URL string
	key jose.JSONWebKey
}

func startIssuer(t *testing.T) *testIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &testIssuer{t: t, key: jose.JSONWebKey{Key: key, KeyID: "k", Algorithm: "ES256", Use: "sig"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{i.key.Public()}})
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	}))
	t.Cleanup(srv.Close)
	i.URL = srv.URL
	return i
}

// token is a token that ends after that time.
func (i *testIssuer) token(subject, name string, life time.Duration) string {
	i.t.Helper()
	const skew = time.Minute // for which the server takes an expired token
	claims, err := json.Marshal(map[string]any{"iss": i.URL, "sub": subject, "aud": testAudience,
		"preferred_username": name, "exp": time.Now().Add(life - skew).Unix()})
	if err != nil {
		i.t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

// accepting is the settings of a server that accepts the issuers' tokens.
func accepting(issuers ...*testIssuer) string {
	text := "oidc:\n"
	for _, i := range issuers {
		text += fmt.Sprintf("  - issuer: %s\n    audience: %s\n", i.URL, testAudience)
	}
	return text
}

// TestAnExpiredJWTHoldsNothing opens all that a token can hold with a JWT: it ends within five seconds of the token.
func TestAnExpiredJWTHoldsNothing(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	s := prepare(t)
	s.settings(accepting(i))
	s.begin(nil)
	long := i.token("1", "", time.Hour)
	if code, _, text := s.request("POST", "/v1/tools/execute_command",
		strings.NewReader(`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true,"session_id":"home"}`),
		"Authorization", "Bearer "+long); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	time.Sleep(time.Second) // until it listens
	const life = 15 * time.Second
	began := time.Now()
	short := s.lasting(t, i.token("1", "", life))
	others := s.lasting(t, long)
	ends(t, short, time.Until(began.Add(life+5*time.Second)))
	if early := time.Since(began); early < life-2*time.Second {
		t.Errorf("it ended after %v", early)
	}
	for _, h := range others { // the same user's other token
		h.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := io.Copy(io.Discard, h.from); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s of the other token ended: %v", h.what, err)
		}
	}
}

// TestUsersOfIssuers: the same subject of two issuers, and a stored token's user, are three users, whatever their
// names are, also after a restart.
func TestUsersOfIssuers(t *testing.T) {
	t.Parallel()
	a, b := startIssuer(t), startIssuer(t)
	s := prepare(t)
	s.settings(accepting(a, b))
	s.begin(nil)
	users := map[string]string{"a": a.token("ann", "user:ann", time.Hour), "b": b.token("ann", "local", time.Hour),
		"stored": s.token("ann"), "local's name": a.token("local", "local", time.Hour)}
	sessions := map[string]string{}
	for user, token := range users {
		sessions[user] = s.connect(newer, token, nil).want("", "print(6*7)", "42").session()
	}
	see := func() {
		t.Helper()
		for user, token := range users {
			_, _, list := s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+token)
			for owner, id := range sessions {
				if strings.Contains(list, id) != (owner == user) {
					t.Errorf("%s sees of %s: %s", user, owner, list)
				}
				code, _, text := s.request("GET", "/v1/sessions/"+id, nil, "Authorization", "Bearer "+token)
				if (code == 200) != (owner == user) {
					t.Errorf("%s and the session of %s: %d %s", user, owner, code, text)
				}
			}
			if code, _, text := s.request("GET", "/metrics", nil, "Authorization", "Bearer "+token); code != 403 {
				t.Errorf("%s reads the metrics: %d %s", user, code, text)
			}
		}
	}
	see()
	s.restart()
	see()
}
