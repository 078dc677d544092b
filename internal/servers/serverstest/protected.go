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

// Protected is an MCP server with one tool, "balance", which requires a log-in, with its own fake
// authorization server. The authorization server registers clients, each with a secret. A code and a
// refresh token are valid once; the second use of a refresh token ends the log-in, as in RFC 9700, 4.14.2.
// The authorization page consents without a user. Both servers end with the test.
type Protected struct {
	URL string // of the MCP server

	origin string

	mu       sync.Mutex
	lifetime int  // of access tokens, in seconds; 0: responses do not contain it
	echoes   bool // errors repeat the whole request
	unknown  bool // all registrations of clients were removed
	clients  map[string]string
	codes    map[string]code
	access   map[string]bool
	refresh  map[string]int // valid: 1; used: 2
	given    []string
	logins   int
	renewals int
	reused   int
}

// code is an authorization code that was issued.
type code struct{ client, challenge, redirect string }

// NewProtected starts the servers. Responses say that access tokens are valid for lifetime seconds; 0: they
// do not say how long.
func NewProtected(t testing.TB, lifetime int) *Protected {
	p := &Protected{lifetime: lifetime, clients: map[string]string{}, codes: map[string]code{},
		access: map[string]bool{}, refresh: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", p.mcp)
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"resource": p.URL, "authorization_servers": []string{p.origin},
			"scopes_supported": []string{"balance"}})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"issuer": p.origin, "authorization_endpoint": p.origin + "/authorize",
			"token_endpoint": p.origin + "/token", "registration_endpoint": p.origin + "/register",
			"response_types_supported": []string{"code"}, "grant_types_supported": []string{"authorization_code",
				"refresh_token"}, "code_challenge_methods_supported": []string{"S256"},
			"token_endpoint_auth_methods_supported": []string{"client_secret_post"}})
	})
	mux.HandleFunc("POST /register", p.register)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.origin, p.URL = s.URL, s.URL+"/mcp"
	return p
}

func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// newSecret returns a new secret value. The caller holds the lock.
func (p *Protected) newSecret(what string) string {
	v := what + "-" + rand.Text()
	p.given = append(p.given, v)
	return v
}

func (p *Protected) register(w http.ResponseWriter, r *http.Request) {
	var m struct {
		RedirectURIs []string `json:"redirect_uris"`
	}
	_ = json.NewDecoder(r.Body).Decode(&m)
	p.mu.Lock()
	defer p.mu.Unlock()
	id := fmt.Sprintf("client%d", len(p.clients))
	p.clients[id] = p.newSecret("client-secret")
	say(w, 201, map[string]any{"client_id": id, "client_secret": p.clients[id], "redirect_uris": m.RedirectURIs,
		"token_endpoint_auth_method": "client_secret_post"})
}

func (p *Protected) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	p.mu.Lock()
	defer p.mu.Unlock()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || p.clients[q.Get("client_id")] == "" || q.Get("code_challenge_method") != "S256" ||
		q.Get("resource") != p.URL {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	c := p.newSecret("code")
	p.codes[c] = code{q.Get("client_id"), q.Get("code_challenge"), q.Get("redirect_uri")}
	back.RawQuery = url.Values{"code": {c}, "state": {q.Get("state")}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (p *Protected) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	p.mu.Lock()
	defer p.mu.Unlock()
	refuse := func(why string) {
		m := map[string]any{"error": why}
		if p.echoes {
			m["error_description"] = r.Form.Encode()
		}
		say(w, 400, m)
	}
	client := r.Form.Get("client_id")
	if p.unknown || p.clients[client] == "" || p.clients[client] != r.Form.Get("client_secret") {
		refuse("invalid_client")
		return
	}
	switch r.Form.Get("grant_type") {
	case "authorization_code":
		c, ok := p.codes[r.Form.Get("code")]
		delete(p.codes, r.Form.Get("code"))
		sum := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
		challenge := base64.RawURLEncoding.EncodeToString(sum[:])
		if !ok || c.client != client || c.redirect != r.Form.Get("redirect_uri") || c.challenge != challenge {
			refuse("invalid_grant")
			return
		}
		p.logins++
	case "refresh_token":
		switch old := r.Form.Get("refresh_token"); p.refresh[old] {
		case 1:
			p.refresh[old] = 2
			p.renewals++
		case 2:
			p.reused++
			clear(p.refresh)
			clear(p.access)
			fallthrough
		default:
			refuse("invalid_grant")
			return
		}
	default:
		refuse("unsupported_grant_type")
		return
	}
	access, refresh := p.newSecret("access"), p.newSecret("refresh")
	clear(p.access) // one is valid at a time
	p.access[access], p.refresh[refresh] = true, 1
	m := map[string]any{"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "scope": "balance"}
	if p.lifetime > 0 {
		m["expires_in"] = p.lifetime
	}
	say(w, 200, m)
}

func (p *Protected) mcp(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	p.mu.Lock()
	valid := p.access[token]
	p.mu.Unlock()
	if !valid {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+p.origin+`/.well-known/oauth-protected-resource/mcp"`)
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

// Given returns all secret values that were issued: tokens, client secrets and codes.
func (p *Protected) Given() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.given)
}

// Counts returns how often users have logged in, how often tokens were renewed, and how often a refresh
// token was used a second time.
func (p *Protected) Counts() (logins, renewals, reused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logins, p.renewals, p.reused
}

// Expire ends all access tokens, also before their lifetime is over.
func (p *Protected) Expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.access)
}

// Revoke ends all log-ins.
func (p *Protected) Revoke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.access)
	clear(p.refresh)
}

// Forget removes all registrations of clients. From then on errors repeat the request.
func (p *Protected) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unknown, p.echoes = true, true
}
