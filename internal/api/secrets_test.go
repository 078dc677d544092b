package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/vault"
)

// sealed is a vault.Store in memory.
type sealed struct {
	mu  sync.Mutex
	all map[[2]string]vault.Record
}

func (m *sealed) PutSecret(_ context.Context, r vault.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[[2]string{r.Owner, r.Name}] = r
	return nil
}

func (m *sealed) Secret(_ context.Context, owner, name string) (vault.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.all[[2]string{owner, name}]; ok {
		return r, nil
	}
	return vault.Record{}, vault.ErrNotFound
}

func (m *sealed) Secrets(_ context.Context, owner string) ([]vault.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.SortedFunc(maps.Values(m.all), func(a, b vault.Record) int { return cmp.Compare(a.Name, b.Name) })
	return slices.DeleteFunc(all, func(r vault.Record) bool { return r.Owner != owner }), nil
}

func (m *sealed) RemoveSecret(_ context.Context, owner, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[[2]string{owner, name}]; !ok {
		return vault.ErrNotFound
	}
	delete(m.all, [2]string{owner, name})
	return nil
}

// unkept is a servers.Store that keeps nothing.
type unkept struct{}

func (unkept) PutConnection(context.Context, servers.Record) error { return nil }
func (unkept) Connections(context.Context, string) ([]servers.Record, error) {
	return nil, nil
}
func (unkept) Connected(context.Context) ([][2]string, error)         { return nil, nil }
func (unkept) RemoveConnection(context.Context, string, string) error { return nil }

// withSecrets gives an edge secrets and connections.
func (e *edge) withSecrets() *edge {
	e.Hub.Vault = &vault.Vault{Store: &sealed{all: map[[2]string]vault.Record{}},
		KeyFile: filepath.Join(e.t.TempDir(), "secrets.key"), CreateKey: true}
	e.Hub.Servers = servers.New(servers.Config{Store: unkept{}, Version: "1", Secrets: e.Hub.Vault,
		Dial: serverstest.Dial})
	e.t.Cleanup(e.Hub.Servers.Close)
	return e
}

func TestSecrets(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	ann, bob := e.token("ann"), e.token("bob")
	as := func(token, method, path, body string) answer {
		t.Helper()
		a := do(e.Handler(), method, path, body, "Authorization", token)
		if strings.Contains(a.body, "hunter") {
			t.Errorf("%s %s answers with a value: %s", method, path, a.body)
		}
		return a
	}
	list := func(token string) string {
		t.Helper()
		var names struct{ Secrets []struct{ Name string } }
		a := as(token, "GET", "/v1/secrets", "")
		if err := json.Unmarshal([]byte(a.body), &names); err != nil || a.StatusCode != 200 || names.Secrets == nil {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		return fmt.Sprint(names.Secrets)
	}
	if list(ann) != "[]" {
		t.Error("a new user has secrets")
	}
	if a := as(ann, "PUT", "/v1/secrets/GH", "hunter2"); a.StatusCode != 200 || a.json()["name"] != "GH" ||
		a.json()["readable"] != true || a.json()["created"] == nil || fmt.Sprint(a.json()["used_by"]) != "[]" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	as(bob, "PUT", "/v1/secrets/GH", "hunter3\n\"{}")
	as(bob, "PUT", "/v1/secrets/OTHER", "hunter4")
	if list(ann) != "[{GH}]" || list(bob) != "[{GH} {OTHER}]" {
		t.Errorf("ann has %s, bob %s", list(ann), list(bob))
	}
	for user, want := range map[string]string{"user:ann": "hunter2", "user:bob": "hunter3\n\"{}"} {
		if v, err := e.Hub.Vault.Reveal(t.Context(), user, "GH"); err != nil || v.Reveal() != want {
			t.Errorf("%s stored %q, %v", user, v.Reveal(), err)
		}
	}
	isProblem(t, as(ann, "GET", "/v1/secrets/", ""), 404, "NOT_FOUND") // nothing reads one
	a := as(ann, "GET", "/v1/secrets/GH", "")
	if a.StatusCode != 405 || a.Header.Get("Allow") != "PUT, DELETE" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	isProblem(t, as(ann, "PUT", "/v1/secrets/A-B", "hunter2"), 400, "INVALID_PARAMETERS")
	isProblem(t, as(ann, "PUT", "/v1/secrets/A", ""), 400, "INVALID_PARAMETERS")
	isProblem(t, as(ann, "PUT", "/v1/secrets/A", "hunter\x00"), 400, "INVALID_PARAMETERS")
	isProblem(t, as(ann, "PUT", "/v1/secrets/A", strings.Repeat("h", vault.MaxValueBytes+1)), 400, "INVALID_PARAMETERS")
	if a := as(ann, "PUT", "/v1/secrets/A", strings.Repeat("h", vault.MaxValueBytes)); a.StatusCode != 200 {
		t.Errorf("of the largest size: %s", a.body)
	}
	isProblem(t, as(ann, "DELETE", "/v1/secrets/OTHER", ""), 404, "NOT_FOUND") // bob's
	if a := as(ann, "DELETE", "/v1/secrets/GH", ""); a.StatusCode != 200 || a.json()["name"] != "GH" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	isProblem(t, as(ann, "DELETE", "/v1/secrets/GH", ""), 404, "NOT_FOUND")
	if list(ann) != "[{A}]" || list(bob) != "[{GH} {OTHER}]" {
		t.Errorf("ann has %s, bob %s", list(ann), list(bob))
	}
}

// They are as closed as the rest: no token, another site's page, another host.
func TestSecretsAreGuarded(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	ann := e.token("ann")
	for _, q := range [][2]string{{"GET", "/v1/secrets"}, {"PUT", "/v1/secrets/GH"}, {"DELETE", "/v1/secrets/GH"}} {
		isProblem(t, do(e.Handler(), q[0], q[1], "hunter2"), 401, "UNAUTHORIZED")
		isProblem(t, do(e.Handler(), q[0], q[1], "hunter2", "Authorization", ann, "Origin", "https://evil.example"),
			403, "FORBIDDEN")
		isProblem(t, do(e.Handler(), q[0], q[1], "hunter2", "Authorization", ann, "Host", "evil.example"), 403,
			"FORBIDDEN")
		if q[0] != "GET" {
			isProblem(t, do(e.Handler(), q[0], q[1], "hunter2", "Authorization", ann, "Sec-Fetch-Site", "cross-site"),
				403, "FORBIDDEN")
		}
	}
	if all, err := e.Hub.Vault.List(t.Context(), "user:ann"); err != nil || len(all) > 0 {
		t.Errorf("stored %v, %v", all, err)
	}
}

// Who stores, lists or removes one is told which connections refer to it.
func TestSecretsInUse(t *testing.T) {
	e := newEdge(t, auth.Off, OriginCheck{Loopback: true}).withSecrets()
	there := serverstest.Empty(t, nil)
	if _, err := e.Hub.Vault.Set(t.Context(), auth.Local.ID, "GH", secret.Value("hunter2"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Hub.Servers.Connect(t.Context(), auth.Local,
		spec.ConnectRequest{Name: "docs", URL: there,
			Headers: map[string]string{"Authorization": "Bearer ${secret:GH}"}}); err != nil {
		t.Fatal(err)
	}
	for _, q := range [][2]string{{"PUT", "/v1/secrets/GH"}, {"GET", "/v1/secrets"}, {"GET", "/v1/connections/docs"},
		{"DELETE", "/v1/secrets/GH"}} {
		a := do(e.Handler(), q[0], q[1], "hunter3")
		want := `"used_by":["docs"]`
		if q[1] == "/v1/connections/docs" {
			want = `"secrets":["GH"]`
		}
		if a.StatusCode != 200 || !strings.Contains(a.body, want) || strings.Contains(a.body, "hunter") ||
			strings.Contains(a.body, "Bearer") {
			t.Errorf("%s %s: %d %s", q[0], q[1], a.StatusCode, a.body)
		}
	}
}
