// Package oidctest has an OIDC provider on loopback for tests: discovery, keys, the authorization code flow with PKCE,
// refresh tokens that change with each use, and log-out. It is strict about what it gets, and lies where a test wants it.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider is a provider. Its fields may be changed by Set.
type Provider struct {
	URL string

	ClientID, ClientSecret string   // of its one client; without a secret the client is public
	Redirects              []string // the exact addresses of the client
	Back                   []string // the exact addresses after a log-out
	Life                   time.Duration
	Refresh                bool                        // it gives refresh tokens
	Ended                  map[string]bool             // users for whom it does not vouch any more
	Change                 func(map[string]any)        // changes the claims of ID tokens
	Metadata               map[string]any              // changes the metadata; a nil value removes one
	Instead                map[string]http.HandlerFunc // by path: what answers in its place
	Key                    jose.JSONWebKey

	t  testing.TB
	mu sync.Mutex

	codes    map[string]grant
	refresh  map[string]grant
	requests []Request
	n        int
}

// Request is a request that the provider got.
type Request struct {
	Path    string
	Form    url.Values // of the query and the body
	Referer string
}

// grant is what a code or a refresh token is for.
type grant struct{ user, nonce, challenge, redirect string }

// New starts a provider with the client "console".
func New(t testing.TB) *Provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{t: t, ClientID: "console", Life: time.Hour, Ended: map[string]bool{}, Metadata: map[string]any{},
		Instead: map[string]http.HandlerFunc{}, codes: map[string]grant{}, refresh: map[string]grant{},
		Key: jose.JSONWebKey{Key: key, KeyID: "k", Algorithm: "ES256", Use: "sig"}}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

// Set changes fields.
func (p *Provider) Set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// Requests returns the requests that it got for a path.
func (p *Provider) Requests(path string) (all []Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if r.Path == path {
			all = append(all, r)
		}
	}
	return all
}

// ServeHTTP implements http.Handler.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm() // what is wrong with it is missing then
	p.mu.Lock()
	p.requests = append(p.requests, Request{r.URL.Path, maps.Clone(r.Form), r.Header.Get("Referer")})
	instead := p.Instead[r.URL.Path]
	p.mu.Unlock()
	if instead != nil {
		instead(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		p.metadata(w)
	case "/keys":
		p.answer(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.Key.Public()}})
	case "/authorize":
		p.authorize(w, r)
	case "/token":
		p.token(w, r)
	case "/logout":
		p.logOut(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (p *Provider) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails when the client is gone
}

func (p *Provider) metadata(w http.ResponseWriter) {
	m := map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/authorize",
		"token_endpoint": p.URL + "/token", "end_session_endpoint": p.URL + "/logout",
		"authorization_response_iss_parameter_supported": true, "code_challenge_methods_supported": []string{"S256"}}
	for k, v := range p.Metadata {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	p.answer(w, http.StatusOK, m)
}

// authorize shows a form for the user's name, or takes it.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	f := r.Form
	to, err := url.Parse(f.Get("redirect_uri"))
	switch {
	case f.Get("client_id") != p.ClientID || err != nil || !slices.Contains(p.Redirects, f.Get("redirect_uri")):
		http.Error(w, "unknown client or redirect_uri "+f.Get("redirect_uri"), http.StatusBadRequest)
	case f.Get("response_type") != "code" || f.Get("code_challenge_method") != "S256" || f.Get("code_challenge") == "" ||
		f.Get("state") == "" || f.Get("nonce") == "":
		http.Error(w, "response_type, state, nonce and PKCE are needed", http.StatusBadRequest)
	case f.Get("user") == "" && f.Get("cancel") == "":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>Provider</title><form method="post" action="%s"><label>User <input name="user">`+
			`</label><button>Log in</button> <button name="cancel" value="1">Cancel</button></form>`,
			html.EscapeString(r.URL.RequestURI()))
	default:
		q := url.Values{"state": {f.Get("state")}, "iss": {p.URL}}
		if f.Get("cancel") != "" {
			q.Set("error", "access_denied")
		} else {
			q.Set("code", p.code(grant{f.Get("user"), f.Get("nonce"), f.Get("code_challenge"), f.Get("redirect_uri")}))
		}
		to.RawQuery = q.Encode()
		http.Redirect(w, r, to.String(), http.StatusSeeOther)
	}
}

func (p *Provider) code(g grant) string {
	p.n++
	code := fmt.Sprintf("code-%d-%s", p.n, rand.Text())
	p.codes[code] = g
	return code
}

// token exchanges a code or a refresh token.
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string) { p.answer(w, status, map[string]string{"error": code}) }
	id, secret, basic := r.BasicAuth()
	if basic { // RFC 6749, 2.3.1
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	if id != p.ClientID || secret != p.ClientSecret {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	var g grant
	switch r.PostForm.Get("grant_type") {
	case "authorization_code":
		var ok bool
		g, ok = p.codes[r.PostForm.Get("code")]
		delete(p.codes, r.PostForm.Get("code"))
		hash := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		if !ok || g.redirect != r.PostForm.Get("redirect_uri") ||
			g.challenge != base64.RawURLEncoding.EncodeToString(hash[:]) {
			refuse(http.StatusBadRequest, "invalid_grant")
			return
		}
	case "refresh_token":
		var ok bool
		g, ok = p.refresh[r.PostForm.Get("refresh_token")]
		delete(p.refresh, r.PostForm.Get("refresh_token"))
		if g.nonce = ""; !ok || p.Ended[g.user] {
			refuse(http.StatusBadRequest, "invalid_grant")
			return
		}
	default:
		refuse(http.StatusBadRequest, "unsupported_grant_type")
		return
	}
	a := map[string]any{"token_type": "Bearer", "access_token": "opaque-" + rand.Text(), "id_token": p.idToken(g),
		"expires_in": int(p.Life.Seconds())}
	if p.Refresh {
		text := "refresh-" + rand.Text()
		p.refresh[text], a["refresh_token"] = g, text
	}
	p.answer(w, http.StatusOK, a)
}

func (p *Provider) idToken(g grant) string {
	claims := map[string]any{"iss": p.URL, "sub": g.user, "aud": p.ClientID, "iat": time.Now().Unix(),
		"exp": time.Now().Add(p.Life).Unix(), "preferred_username": g.user}
	if g.nonce != "" {
		claims["nonce"] = g.nonce
	}
	if p.Change != nil {
		p.Change(claims)
	}
	return p.sign(claims)
}

// Sign returns a JWT with claims.
func (p *Provider) Sign(claims map[string]any) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sign(claims)
}

func (p *Provider) sign(claims map[string]any) string {
	text, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: p.Key}, nil)
	if err != nil {
		panic(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		panic(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return compact
}

// logOut sends the browser back.
func (p *Provider) logOut(w http.ResponseWriter, r *http.Request) {
	back := r.Form.Get("post_logout_redirect_uri")
	if r.Form.Get("client_id") != p.ClientID || !slices.Contains(p.Back, back) {
		http.Error(w, "unknown post_logout_redirect_uri "+back, http.StatusBadRequest)
		return
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// Visit logs a user in at an authorization address, as a browser does that follows no redirect, and returns the query with
// which the browser is sent back, or why not. An empty user cancels.
func (p *Provider) Visit(address, user string) (url.Values, error) {
	form := url.Values{"user": {user}}
	if user == "" {
		form = url.Values{"cancel": {"1"}}
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.PostForm(address, form)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", resp.Status, err)
	}
	return to.Query(), nil
}
