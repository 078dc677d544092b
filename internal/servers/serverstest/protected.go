package serverstest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Protected is an MCP server with one tool, "balance", for users who have logged in,
// and a fake authorization server for them. That registers clients, with a secret. A
// code and a refresh token are valid once; a refresh token that comes a second time ends
// the log-in, as in RFC 9700, 4.14.2. Its authorization page consents by itself. Both
// servers end with the test.
type Protected struct {
	URL string // of the MCP server

	origin string

	mu       sync.Mutex
	lifetime int  // of access tokens, in seconds; 0: clients are not told
	echoes   bool // errors repeat all that was sent
	unknown  bool // no client is registered any more
	clients  map[string]string
	codes    map[string]code
	access   map[string]bool
	refresh  map[string]int // valid: 1; used: 2
	given    []string
	logins   int
	renewals int
	reused   int
}

// code is one that was given to a browser.
type code struct{ client, challenge, redirect string }

// NewProtected starts one. Its access tokens are valid for lifetime seconds, as clients
// are told; 0: clients are not told.
func NewProtected(t testing.TB, lifetime int) *Protected {
	b := &Protected{lifetime: lifetime, clients: map[string]string{}, codes: map[string]code{},
		access: map[string]bool{}, refresh: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", b.mcp)
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"resource": b.URL, "authorization_servers": []string{b.origin},
			"scopes_supported": []string{"balance"}})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"issuer": b.origin, "authorization_endpoint": b.origin + "/authorize",
			"token_endpoint": b.origin + "/token", "registration_endpoint": b.origin + "/register",
			"response_types_supported": []string{"code"}, "grant_types_supported": []string{"authorization_code",
				"refresh_token"}, "code_challenge_methods_supported": []string{"S256"},
			"token_endpoint_auth_methods_supported": []string{"client_secret_post"}})
	})
	mux.HandleFunc("POST /register", b.register)
	mux.HandleFunc("GET /authorize", b.authorize)
	mux.HandleFunc("POST /token", b.token)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	b.origin, b.URL = s.URL, s.URL+"/mcp"
	return b
}

func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// newSecret returns a new secret value. The lock is held.
func (b *Protected) newSecret(what string) string {
	v := what + "-" + rand.Text()
	b.given = append(b.given, v)
	return v
}

func (b *Protected) register(w http.ResponseWriter, r *http.Request) {
	var m struct {
		RedirectURIs []string `json:"redirect_uris"`
	}
	_ = json.NewDecoder(r.Body).Decode(&m)
	b.mu.Lock()
	defer b.mu.Unlock()
	id := fmt.Sprintf("client%d", len(b.clients))
	b.clients[id] = b.newSecret("client-secret")
	say(w, 201, map[string]any{"client_id": id, "client_secret": b.clients[id], "redirect_uris": m.RedirectURIs,
		"token_endpoint_auth_method": "client_secret_post"})
}

func (b *Protected) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	b.mu.Lock()
	defer b.mu.Unlock()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || b.clients[q.Get("client_id")] == "" || q.Get("code_challenge_method") != "S256" ||
		q.Get("resource") != b.URL {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	c := b.newSecret("code")
	b.codes[c] = code{q.Get("client_id"), q.Get("code_challenge"), q.Get("redirect_uri")}
	back.RawQuery = url.Values{"code": {c}, "state": {q.Get("state")}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (b *Protected) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	b.mu.Lock()
	defer b.mu.Unlock()
	refuse := func(why string) {
		m := map[string]any{"error": why}
		if b.echoes {
			m["error_description"] = r.Form.Encode()
		}
		say(w, 400, m)
	}
	client := r.Form.Get("client_id")
	if b.unknown || b.clients[client] == "" || b.clients[client] != r.Form.Get("client_secret") {
		refuse("invalid_client")
		return
	}
	switch r.Form.Get("grant_type") {
	case "authorization_code":
		c, ok := b.codes[r.Form.Get("code")]
		delete(b.codes, r.Form.Get("code"))
		sum := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
		challenge := base64.RawURLEncoding.EncodeToString(sum[:])
		if !ok || c.client != client || c.redirect != r.Form.Get("redirect_uri") || c.challenge != challenge {
			refuse("invalid_grant")
			return
		}
		b.logins++
	case "refresh_token":
		switch old := r.Form.Get("refresh_token"); b.refresh[old] {
		case 1:
			b.refresh[old] = 2
			b.renewals++
		case 2:
			b.reused++
			clear(b.refresh)
			clear(b.access)
			fallthrough
		default:
			refuse("invalid_grant")
			return
		}
	default:
		refuse("unsupported_grant_type")
		return
	}
	access, refresh := b.newSecret("access"), b.newSecret("refresh")
	clear(b.access) // one is valid at a time
	b.access[access], b.refresh[refresh] = true, 1
	m := map[string]any{"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "scope": "balance"}
	if b.lifetime > 0 {
		m["expires_in"] = b.lifetime
	}
	say(w, 200, m)
}

func (b *Protected) mcp(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	b.mu.Lock()
	valid := b.access[token]
	b.mu.Unlock()
	if !valid {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+b.origin+`/.well-known/oauth-protected-resource/mcp"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	answer(w, r, map[string]any{
		"initialize": initialized("bank", map[string]any{"tools": map[string]any{}}),
		"tools/list": map[string]any{"tools": []any{map[string]any{"name": "balance", "description": "what is left",
			"inputSchema": map[string]any{"type": "object"}}}},
		"tools/call": map[string]any{"content": []any{map[string]any{"type": "text", "text": "42 are left"}}},
	}, nil)
}

// Given returns all secret values: tokens, client secrets and codes.
func (b *Protected) Given() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.given)
}

// Counts returns how often users have logged in, tokens were renewed, and a refresh
// token came a second time.
func (b *Protected) Counts() (logins, renewals, reused int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logins, b.renewals, b.reused
}

// Expire ends all access tokens, whatever clients were told.
func (b *Protected) Expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.access)
}

// Revoke ends all log-ins.
func (b *Protected) Revoke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.access)
	clear(b.refresh)
}

// Forget removes all clients. From then on errors repeat what was sent.
func (b *Protected) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unknown, b.echoes = true, true
}
