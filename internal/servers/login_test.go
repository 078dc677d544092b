package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// A whole log-in: then the connection is given another address.
func TestTokenStays(t *testing.T) {
	var evilSaw, good, evil string
	var mux http.ServeMux
	js := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	srv := httptest.NewServer(&mux)
	defer srv.Close()
	good = srv.URL
	serve := func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		json.NewDecoder(r.Body).Decode(&m)
		switch m.Method {
		case "initialize":
			js(w, map[string]any{"jsonrpc": "2.0", "id": m.ID,
				"result": map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{},
					"serverInfo": map[string]any{"name": "x", "version": "1"}}})
		case "server/discover":
			js(w, map[string]any{"jsonrpc": "2.0", "id": m.ID,
				"error": map[string]any{"code": -32601, "message": "no"}})
		default:
			w.WriteHeader(202)
		}
	}
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer TOKEN-OF-BANK" {
			w.Header().Set("WWW-Authenticate",
				`Bearer resource_metadata="`+good+`/.well-known/oauth-protected-resource/mcp"`)
			w.WriteHeader(401)
			return
		}
		if r.Method == "GET" {
			w.WriteHeader(405)
			return
		}
		serve(w, r)
	})
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, r *http.Request) {
		js(w, map[string]any{"resource": good + "/mcp", "authorization_servers": []string{good}})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, r *http.Request) {
		js(w, map[string]any{"issuer": good, "authorization_endpoint": good + "/authorize",
			"token_endpoint": good + "/token", "registration_endpoint": good + "/register",
			"response_types_supported": []string{"code"}, "grant_types_supported": []string{"authorization_code",
				"refresh_token"}, "code_challenge_methods_supported": []string{"S256"},
			"token_endpoint_auth_methods_supported": []string{"none"}})
	})
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		fmt.Fprint(w, `{"client_id":"c","redirect_uris":["http://localhost:1/cb"],"token_endpoint_auth_method":"none"}`)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		js(w, map[string]any{"access_token": "TOKEN-OF-BANK", "token_type": "Bearer", "expires_in": 3600})
	})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Authorization"); a != "" {
			evilSaw = a
		}
		if r.Method == "GET" {
			w.WriteHeader(405)
			return
		}
		serve(w, r)
	}))
	defer other.Close()
	evil = other.URL
	servers := newServers(t, &memStore{}, func(c *Config) {
		c.Callback = "http://localhost:1/cb"
		c.Dial = func(ctx context.Context, _ auth.Principal, _ bool, n, a string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, n, a)
		}
	})
	ctx := context.Background()
	i, err := servers.Connect(ctx, P, spec.ConnectRequest{Name: "bank", URL: good + "/mcp"})
	t.Log(i.State, i.AuthURL, err)
	if i.AuthURL == "" {
		t.Fatal(errors.Unwrap(err))
	}
	_, id, _ := strings.Cut(i.AuthURL, "/start/")
	page, err := servers.Logins.ConsentPage(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := servers.Logins.Redirect(id, []string{page.Browser}, page.Proof)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest("GET", to, nil)
	v := r.URL.Query()
	v.Set("code", "abc")
	if _, err := servers.Logins.HandleCallback(v, func(string) []string { return []string{page.Browser} }); err != nil {
		t.Fatal(err)
	}
	until(t, "connected", func() bool { return servers.List(P)[0].State == state.Connected })
	_, err = servers.Connect(ctx, P, spec.ConnectRequest{Name: "bank", URL: evil + "/mcp"})
	time.Sleep(200 * time.Millisecond)
	t.Log("replaced:", err)
	if evilSaw != "" {
		t.Errorf("the other server was sent %q", evilSaw)
	}
}
