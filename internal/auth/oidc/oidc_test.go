package oidc

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

const audience = "https://sandlot.example.com/mcp"

// provider is an issuer on loopback.
type provider struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	keys     []jose.JSONWebKey
	handle   http.HandlerFunc // in the place of the documents; nil: none
	metadata map[string]any   // in the place of the true one
	fetched  atomic.Int64     // fetches of keys
}

// newProvider returns an issuer with one key.
func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	handle, metadata, keys := p.handle, p.metadata, p.keys
	p.mu.Unlock()
	switch {
	case handle != nil:
		handle(w, r)
	case r.URL.Path == "/.well-known/openid-configuration":
		if metadata == nil {
			metadata = map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
		}
		json.NewEncoder(w).Encode(metadata)
	case r.URL.Path == "/keys":
		p.fetched.Add(1)
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: keys})
	default:
		http.NotFound(w, r)
	}
}

func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// publish makes the issuer publish the public keys, and nothing else.
func (p *provider) publish(keys ...jose.JSONWebKey) {
	p.set(func() {
		p.keys = nil
		for _, k := range keys {
			p.keys = append(p.keys, k.Public())
		}
	})
}

func newKey(t testing.TB, id, algorithm string) jose.JSONWebKey {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm {
	case "ES256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "EdDSA":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: algorithm, Use: "sig"}
}

// claimsOf returns claims of a valid token, with changes; nil deletes one.
func claimsOf(issuer string, changes map[string]any) map[string]any {
	c := map[string]any{"iss": issuer, "sub": "4711", "aud": audience, "exp": time.Now().Add(time.Hour).Unix(),
		"preferred_username": "ann"}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// sign returns a JWT with those claims and further headers.
func sign(t testing.TB, k jose.JSONWebKey, claims any, headers map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	for name, v := range headers {
		options = options.WithHeader(jose.HeaderKey(name), v)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k}, options)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := claims.(string)
	if !ok {
		b, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
	}
	signed, err := s.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// newVerifier returns a verifier of issuers, and its log.
func newVerifier(t testing.TB, issuers ...string) (*Verifier, *bytes.Buffer) {
	t.Helper()
	var all []Issuer
	for _, url := range issuers {
		all = append(all, Issuer{URL: url, Audiences: []string{audience},
			Algorithms: []string{"RS256", "ES256", "EdDSA"},
			NameClaim:  "preferred_username"})
	}
	log := &bytes.Buffer{}
	v := New(all, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { v.Close() })
	return v, log
}

// refused fails the test unless the token is refused with a fault of that kind that has the text.
func refused(t *testing.T, v *Verifier, token string, kind fault.Kind, text string) {
	t.Helper()
	c, err := v.Verify(t.Context(), token)
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %+v, %v; want a refusal with %q", c, err, text)
	}
}

func TestVerify(t *testing.T) {
	p := newProvider(t)
	r, e, d := newKey(t, "r", "RS256"), newKey(t, "e", "ES256"), newKey(t, "d", "EdDSA")
	p.publish(r, e, d)
	v, _ := newVerifier(t, p.URL)
	for _, k := range []jose.JSONWebKey{r, e, d} {
		token := sign(t, k, claimsOf(p.URL, nil), nil)
		for range 2 { // checked, and remembered
			c, err := v.Verify(t.Context(), token)
			if err != nil || c.Issuer != p.URL || c.Subject != "4711" || c.Name != "ann" ||
				time.Until(c.Expires) < time.Hour {
				t.Errorf("%s: %+v, %v", k.Algorithm, c, err)
			}
		}
		if !v.IsForServer(token) {
			t.Errorf("%s: the token is not taken for one of this server", k.Algorithm)
		}
	}
	if n := p.fetched.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	list := sign(t, r, claimsOf(p.URL, map[string]any{"aud": []string{"x", audience}}), map[string]any{"typ": "at+jwt"})
	if c, err := v.Verify(t.Context(), list); err != nil {
		t.Errorf("%+v, %v", c, err)
	}
	for name, change := range map[string]map[string]any{
		"a minute too early": {"nbf": time.Now().Add(50 * time.Second).Unix()},
		"just expired":       {"exp": time.Now().Add(-50 * time.Second).Unix()},
		"with a fraction":    {"exp": float64(time.Now().Add(time.Hour).Unix()) + 0.5},
		"for ever":           {"exp": int64(1) << 55},
	} {
		if c, err := v.Verify(t.Context(), sign(t, r, claimsOf(p.URL, change), nil)); err != nil {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestRequiredClaims(t *testing.T) {
	p, k := newProvider(t), newKey(t, "k", "ES256")
	p.publish(k)
	v := New([]Issuer{{URL: p.URL, Audiences: []string{audience}, Algorithms: []string{"ES256"},
		Required: map[string]string{"groups": "agents", "email_verified": "true"}}}, slog.New(slog.DiscardHandler))
	defer v.Close()
	for groups, want := range map[any]bool{"agents": true, "agent": false, "agents2": false} {
		for _, value := range []any{groups, []any{"x", groups}, map[string]any{"agents": groups}} {
			_, isMap := value.(map[string]any)
			token := sign(t, k, claimsOf(p.URL, map[string]any{"groups": value, "email_verified": true}), nil)
			if _, err := v.Verify(t.Context(), token); (err == nil) != (want && !isMap) {
				t.Errorf("%v: %v", value, err)
			}
		}
	}
	refused(t, v, sign(t, k, claimsOf(p.URL, map[string]any{"groups": "agents"}), nil), fault.Unauthorized,
		"email_verified")
}

// What an attacker can make of tokens is refused.
func TestForgedTokens(t *testing.T) {
	p, other := newProvider(t), newProvider(t)
	r, mallory := newKey(t, "r", "RS256"), newKey(t, "r", "RS256")
	p.publish(r)
	other.publish(mallory)
	v, _ := newVerifier(t, p.URL)
	valid := claimsOf(p.URL, nil)
	good := sign(t, r, valid, nil)
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	der, err := x509.MarshalPKIXPublicKey(r.Public().Key)
	if err != nil {
		t.Fatal(err)
	}
	confused := func(key []byte) string {
		text := encode(`{"alg":"HS256","kid":"r","typ":"JWT"}`) + "." + parts[1]
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	jwk, err := json.Marshal(r.Public())
	if err != nil {
		t.Fatal(err)
	}
	malloryKey := mallory.Public()
	body, err := json.Marshal(valid)
	if err != nil {
		t.Fatal(err)
	}
	change := func(name string, value any) string {
		return sign(t, r, claimsOf(p.URL, map[string]any{name: value}), nil)
	}
	again := func(member string) string { return strings.Replace(string(body), "{", "{"+member+",", 1) }
	now := time.Now()
	for name, c := range map[string]struct{ token, why string }{
		"alg none":            {encode(`{"alg":"none","typ":"JWT"}`) + "." + parts[1] + ".", "not a JWT"},
		"alg None":            {encode(`{"alg":"None","kid":"r"}`) + "." + parts[1] + "." + parts[2], "not a JWT"},
		"no signature":        {parts[0] + "." + parts[1] + ".", "signature"},
		"HS256 with the DER":  {confused(der), "not a JWT"},
		"HS256 with the PEM":  {confused(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), "not a JWT"},
		"HS256 with the JWK":  {confused(jwk), "not a JWT"},
		"another key":         {sign(t, mallory, valid, nil), "signature"},
		"PS256":               {sign(t, withAlgorithm(r, "PS256"), valid, nil), "PS256"},
		"jwk header":          {sign(t, mallory, valid, map[string]any{"jwk": malloryKey}), "signature"},
		"jku header":          {sign(t, mallory, valid, map[string]any{"jku": other.URL + "/keys"}), "signature"},
		"x5u header":          {sign(t, mallory, valid, map[string]any{"x5u": other.URL + "/keys"}), "signature"},
		"crit header":         {sign(t, r, valid, map[string]any{"crit": []string{"mine"}, "mine": 1}), ""},
		"types in a list":     {sign(t, r, valid, map[string]any{"typ": []string{"jwt"}}), "not text"},
		"a number as type":    {sign(t, r, valid, map[string]any{"typ": 5}), "not text"},
		"a type that is true": {sign(t, r, valid, map[string]any{"typ": true}), "not text"},
		"other unused bits":   {otherBits(t, good), "not a JWT"},
		"a line break":        {good[:len(good)-4] + "\n" + good[len(good)-4:], "not a JWT"},
		"padding":             {good + "==", "not a JWT"},
		"another type":        {sign(t, r, valid, map[string]any{"typ": "logout+jwt"}), "not an access token"},
		"changed claims":      {parts[0] + "." + encode(again(`"role":"operator"`)) + "." + parts[2], "signature"},
		"another audience":    {change("aud", "https://other.example.com/mcp"), "audience"},
		"a part of it":        {change("aud", "https://sandlot.example.com"), "audience"},
		"no audience":         {change("aud", nil), "audience"},
		"audience is odd":     {change("aud", map[string]any{audience: true}), "claims"},
		"another issuer":      {sign(t, mallory, claimsOf(other.URL, nil), nil), "none of this server"},
		"the issuer's prefix": {sign(t, r, claimsOf(p.URL+"/", nil), nil), "none of this server"},
		"no issuer":           {change("iss", nil), "none of this server"},
		"two issuers":         {sign(t, r, again(fmt.Sprintf(`"iss":%q`, other.URL)), nil), "claims"},
		"two subjects":        {sign(t, r, again(`"sub":"1"`), nil), "claims"},
		"two ends":            {sign(t, r, again(`"exp":9999999999`), nil), "claims"},
		"issuers in a list":   {change("iss", []string{p.URL}), "claims"},
		"a claim in capitals": {sign(t, r, strings.Replace(string(body), `"exp"`, `"EXP"`, 1), nil), "no exp"},
		"no subject":          {change("sub", nil), "subject"},
		"an empty subject":    {change("sub", ""), "subject"},
		"a long subject":      {change("sub", strings.Repeat("x", 256)), "subject"},
		"a number as subject": {change("sub", 4711), "claims"},
		"not yet valid":       {change("nbf", now.Add(2*time.Minute).Unix()), "not valid yet"},
		"never valid":         {change("nbf", int64(1)<<61), "not valid yet"},
		"issued later":        {change("iat", now.Add(2*time.Minute).Unix()), "not valid yet"},
		"expired":             {change("exp", now.Add(-2*time.Minute).Unix()), "expired"},
		"no end":              {change("exp", nil), "no exp"},
		"an end of null":      {sign(t, r, strings.Replace(string(body), `"exp":`, `"exp":null,"x":`, 1), nil), ""},
		"an end like 1e300":   {sign(t, r, strings.Replace(string(body), `"exp":`, `"exp":1e300,"x":`, 1), nil), "claims"},
		"an end as a text":    {change("exp", "tomorrow"), "claims"},
		"bound to a key":      {change("cnf", map[string]any{"jkt": "x"}), "bound to a key"},
		"huge":                {change("x", strings.Repeat("x", maxToken)), "longer"},
		"no JSON":             {sign(t, r, "hello", nil), "claims"},
		"nothing":             {"..", "not a JWT"},
		"JSON form": {fmt.Sprintf(`{"payload":%q,"protected":%q,"signature":%q}`, parts[1], parts[0], parts[2]),
			"not a JWT"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, v, c.token, fault.Unauthorized, c.why) })
	}
	if n := other.fetched.Load(); n != 0 {
		t.Errorf("the keys of a header were fetched %d times", n)
	}
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Errorf("the good token, after all: %v", err)
	}
}

func withAlgorithm(k jose.JSONWebKey, algorithm string) jose.JSONWebKey {
	k.Algorithm = algorithm
	return k
}

// clock is a clock that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Who sends tokens with keys that do not exist causes one fetch in an interval; a new key of the issuer is
// found after it, and one that the issuer has withdrawn is valid no more.
func TestRotation(t *testing.T) {
	p := newProvider(t)
	first, second := newKey(t, "1", "ES256"), newKey(t, "2", "ES256")
	p.publish(first)
	v, _ := newVerifier(t, p.URL)
	c := &clock{now: time.Now()}
	v.now = c.Now
	old := sign(t, first, claimsOf(p.URL, nil), nil)
	if _, err := v.Verify(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			token := sign(t, newKey(t, fmt.Sprint("invented", i), "ES256"), claimsOf(p.URL, nil), nil)
			refused(t, v, token, fault.Unauthorized, "does not have")
		})
	}
	all.Wait()
	if n := p.fetched.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	p.publish(first, second)
	rotated := sign(t, second, claimsOf(p.URL, nil), nil)
	refused(t, v, rotated, fault.Unauthorized, "does not have")
	c.add(fetchInterval)
	for _, token := range []string{rotated, old} {
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("%v", err)
		}
	}
	if n := p.fetched.Load(); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}
	p.publish(second)
	v.issuers[p.URL].keys.refresh(t.Context())
	refused(t, v, old, fault.Unauthorized, "does not have")
	if _, err := v.Verify(t.Context(), rotated); err != nil {
		t.Errorf("%v", err)
	}
}

// While an issuer does not answer, tokens with the keys that are known stay valid.
func TestIssuerThatIsDown(t *testing.T) {
	p, k := newProvider(t), newKey(t, "k", "ES256")
	p.publish(k)
	v, log := newVerifier(t, p.URL)
	c := &clock{now: time.Now()}
	v.now = c.Now
	broken := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }
	p.set(func() { p.handle = broken })
	token := sign(t, k, claimsOf(p.URL, nil), nil)
	refused(t, v, token, fault.Connection, "cannot be fetched")
	p.set(func() { p.handle = nil })
	refused(t, v, token, fault.Connection, "cannot be fetched") // until the interval is over
	c.add(fetchInterval)
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	p.set(func() { p.handle = broken })
	v.issuers[p.URL].keys.refresh(t.Context())
	c.add(fetchInterval)
	if _, err := v.Verify(t.Context(), sign(t, k, claimsOf(p.URL, map[string]any{"jti": "x"}), nil)); err != nil {
		t.Errorf("a known key: %v", err)
	}
	refused(t, v, sign(t, newKey(t, "new", "ES256"), claimsOf(p.URL, nil), nil), fault.Connection, "cannot be fetched")
	if !strings.Contains(log.String(), "status 502") || strings.Contains(log.String(), token) {
		t.Errorf("the log says %s", log)
	}
}

// An issuer that lies, floods, redirects or hangs is asked no more than for a while, and its tokens are refused.
func TestHostileIssuers(t *testing.T) {
	k := newKey(t, "k", "ES256")
	elsewhere := newProvider(t)
	elsewhere.publish(k)
	document := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	flood := func(w http.ResponseWriter, r *http.Request) {
		for chunk := bytes.Repeat([]byte(" "), 1<<16); r.Context().Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusFound)
	}
	symmetric := `{"keys":[{"kty":"oct","kid":"k","alg":"ES256","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}]}`
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weak := jose.JSONWebKey{Key: short, KeyID: "k", Algorithm: "RS256", Use: "sig"}
	weakSet, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{weak.Public()}})
	privateSet, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k}})
	for name, c := range map[string]struct {
		metadata map[string]any
		handle   http.HandlerFunc
		kind     fault.Kind
	}{
		"metadata of another": {metadata: map[string]any{"issuer": elsewhere.URL, "jwks_uri": elsewhere.URL + "/keys"}},
		"no issuer":           {metadata: map[string]any{"jwks_uri": elsewhere.URL + "/keys"}},
		"no keys":             {metadata: map[string]any{}},
		"keys in a file":      {metadata: map[string]any{"jwks_uri": "file:///etc/passwd"}},
		"keys without TLS":    {metadata: map[string]any{"jwks_uri": "http://192.0.2.1/keys"}},
		"a redirect":          {handle: redirect},
		"a flood":             {handle: flood},
		"no JSON":             {handle: document("<html>")},
		"symmetric keys":      {handle: document(symmetric)},
		"private keys":        {handle: document(string(privateSet))},
		"a short key":         {handle: document(string(weakSet)), kind: fault.Unauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			if c.metadata["issuer"] == nil && name != "no issuer" && c.metadata != nil {
				c.metadata["issuer"] = p.URL
			}
			p.set(func() {
				p.metadata = c.metadata
				p.handle = func(w http.ResponseWriter, r *http.Request) {
					keys := r.URL.Path == "/keys"
					if c.handle != nil && (keys || name == "a redirect" || name == "a flood") {
						c.handle(w, r)
						return
					}
					p.mu.Lock()
					m := p.metadata
					p.mu.Unlock()
					if m == nil {
						m = map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
					}
					json.NewEncoder(w).Encode(m)
				}
			})
			v, _ := newVerifier(t, p.URL)
			kind, key := fault.Connection, k
			if c.kind != 0 {
				kind, key = c.kind, weak
			}
			refused(t, v, sign(t, key, claimsOf(p.URL, nil), nil), kind, "")
		})
	}
	if n := elsewhere.fetched.Load(); n != 0 {
		t.Errorf("the keys of another were fetched %d times", n)
	}
}

// A request does not wait for an issuer that hangs longer than its client does, and Close ends the fetch.
func TestIssuerThatHangs(t *testing.T) {
	p, k := newProvider(t), newKey(t, "k", "ES256")
	asked, end := make(chan struct{}, 1), make(chan struct{})
	defer close(end)
	p.set(func() {
		p.handle = func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-end:
			}
		}
	})
	v, _ := newVerifier(t, p.URL)
	token := sign(t, k, claimsOf(p.URL, nil), nil)
	waiting := make(chan error, 1)
	go func() { _, err := v.Verify(t.Context(), token); waiting <- err }()
	<-asked
	select {
	case err := <-waiting:
		t.Fatalf("the request did not wait: %v", err)
	default:
	}
	v.Close()
	if err := <-waiting; !fault.Is(err, fault.Connection) {
		t.Errorf("%v", err)
	}
}

// The number of remembered tokens is bounded, and a token that has expired is not remembered.
func TestDecisionsAreBounded(t *testing.T) {
	p, k := newProvider(t), newKey(t, "k", "EdDSA")
	p.publish(k)
	v, _ := newVerifier(t, p.URL)
	c := &clock{now: time.Now()}
	v.now = c.Now
	token := sign(t, k, claimsOf(p.URL, nil), nil)
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	for i := range maxDecisions + 10 {
		if _, err := v.Verify(t.Context(), sign(t, k, claimsOf(p.URL, map[string]any{"jti": i}), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(v.decisions); n != maxDecisions {
		t.Errorf("%d tokens are remembered", n)
	}
	c.add(2 * time.Hour)
	refused(t, v, token, fault.Unauthorized, "expired")
	later := claimsOf(p.URL, map[string]any{"exp": c.Now().Add(time.Hour).Unix()})
	if _, err := v.Verify(t.Context(), sign(t, k, later, nil)); err != nil || len(v.decisions) != 1 {
		t.Errorf("%d tokens are remembered, %v", len(v.decisions), err)
	}
}

func TestCheckURL(t *testing.T) {
	for url, want := range map[string]bool{"https://login.example.com": true,
		"https://login.example.com/realms/x/": true,
		"http://localhost:9998/":              true, "http://127.0.0.1:9998": true, "http://login.example.com": false,
		"":                  false,
		"login.example.com": false, "https://": false, "https://u:p@x": false, "https://x?y": false,
		"https://x#y":        false,
		"file:///etc/passwd": false, "http://localhost.example.com": false} {
		if err := CheckURL(url); (err == nil) != want {
			t.Errorf("%s: %v", url, err)
		}
	}
}

var _ auth.Issuers = (*Verifier)(nil)

func BenchmarkVerify(b *testing.B) {
	k := newKey(b, "k", "RS256")
	public := k.Public()
	srv := httptest.NewServer(nil)
	defer srv.Close()
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}})
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"})
	})
	v, _ := newVerifier(b, srv.URL)
	token := sign(b, k, claimsOf(srv.URL, nil), nil)
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.Verify(b.Context(), token); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("checked", func(b *testing.B) {
		for b.Loop() {
			v.forget()
			if _, err := v.Verify(b.Context(), token); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Users of two issuers with the same subject are two users, and no issuer can sign for another one, whatever the ids
// of its keys are.
func TestTwoIssuers(t *testing.T) {
	a, b := newProvider(t), newProvider(t)
	ofA, ofB := newKey(t, "k", "ES256"), newKey(t, "k", "ES256")
	a.publish(ofA)
	b.publish(ofB)
	v, _ := newVerifier(t, a.URL, b.URL)
	fromA, err := v.Verify(t.Context(), sign(t, ofA, claimsOf(a.URL, nil), nil))
	if err != nil {
		t.Fatal(err)
	}
	fromB, err := v.Verify(t.Context(), sign(t, ofB, claimsOf(b.URL, nil), nil))
	if err != nil || fromA.Issuer == fromB.Issuer || fromA.Subject != fromB.Subject {
		t.Errorf("%+v, %+v, %v", fromA, fromB, err)
	}
	refused(t, v, sign(t, ofA, claimsOf(b.URL, nil), nil), fault.Unauthorized, "signature")
	refused(t, v, sign(t, ofB, claimsOf(a.URL, nil), nil), fault.Unauthorized, "signature")
	a.set(func() { // A publishes the keys of B, and its own metadata names B
		a.keys = b.keys
		a.metadata = map[string]any{"issuer": b.URL, "jwks_uri": b.URL + "/keys"}
	})
	if _, err := v.Fetch(t.Context(), a.URL); err == nil || !strings.Contains(err.Error(), "metadata of the issuer") {
		t.Errorf("%v", err)
	}
	refused(t, v, sign(t, ofB, claimsOf(a.URL, nil), nil), fault.Unauthorized, "signature")
	if n, err := v.Fetch(t.Context(), b.URL); n != 1 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

// otherBits returns a token with another last character, whose signature lenient decoders take for the same.
func otherBits(t *testing.T, token string) string {
	t.Helper()
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	parts := strings.Split(token, ".")
	want, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range alphabet {
		other := token[:len(token)-1] + string(c)
		signature, err := base64.RawURLEncoding.DecodeString(strings.Split(other, ".")[2])
		if err == nil && bytes.Equal(signature, want) && other != token {
			return other
		}
	}
	t.Fatal("the signature has no unused bits")
	return ""
}
