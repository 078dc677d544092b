package api

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/clientconfig"
)

func TestInstallGuidance(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	var list struct {
		Clients []struct {
			Client, Title, Path string
			File                map[string]string
		}
	}
	a := do(e.Handler(), "GET", "/install", "")
	if err := json.Unmarshal([]byte(a.body), &list); a.StatusCode != 200 || err != nil ||
		len(list.Clients) != len(clientconfig.IDs()) {
		t.Fatalf("%d %v %s", a.StatusCode, err, a.body)
	}
	for _, c := range list.Clients {
		a := do(e.Handler(), "GET", c.Path, "")
		m := a.json()
		file, _ := m["file"].(map[string]any)
		if a.StatusCode != 200 || m["client"] != c.Client || m["title"] != c.Title || m["name"] != "sandlot" ||
			len(file) != 3 || len(m["instructions"].([]any)) < 2 {
			t.Errorf("%s: %d %s", c.Client, a.StatusCode, a.body)
		}
		if !strings.Contains(a.body, "http://localhost:8000") || strings.Contains(a.body, placeholder) {
			t.Errorf("%s: %s", c.Client, a.body)
		}
	}
	m := do(e.Handler(), "GET", "/install/vscode?name=box&url=https://sandlot.example.com/mcp", "").json()
	config, _ := json.Marshal(m["config"])
	if string(config) != `{"servers":{"box":{"type":"http","url":"https://sandlot.example.com/mcp"}}}` {
		t.Errorf("%s", config)
	}
}

// Where a token is needed, the answer has a place for one, and none.
func TestInstallGuidanceWithToken(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	token := e.token("alice")
	isProblem(t, do(e.Handler(), "GET", "/install", ""), 401, "UNAUTHORIZED")
	isProblem(t, do(e.Handler(), "GET", "/install/cursor", ""), 401, "UNAUTHORIZED")
	for _, id := range clientconfig.IDs() {
		a := do(e.Handler(), "GET", "/install/"+id, "", "Authorization", token)
		if a.StatusCode != 200 || !strings.Contains(a.body, placeholder) ||
			strings.Contains(a.body, strings.TrimPrefix(token, "Bearer ")) {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.body)
		}
	}
	m := do(e.Handler(), "GET", "/install/claude-code", "", "Authorization", token).json()
	const command = `claude mcp add --scope user --transport http sandlot http://localhost:8000/mcp ` +
		`--header "Authorization: Bearer YOUR_TOKEN"`
	if m["command"] != command {
		t.Errorf("%v", m["command"])
	}
}

func TestInstallGuidanceRefuses(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	a := do(e.Handler(), "GET", "/install/curser", "")
	isProblem(t, a, 404, "NOT_FOUND")
	if context, _ := a.json()["context"].(map[string]any); len(context["clients"].([]any)) != len(clientconfig.IDs()) ||
		!strings.Contains(a.body, `did you mean \"cursor\"?`) {
		t.Error(a.body)
	}
	isProblem(t, do(e.Handler(), "GET", "/install/cursor?url=nowhere", ""), 400, "INVALID_PARAMETERS")
	isProblem(t, do(e.Handler(), "GET", "/install/cursor?name=a%20b", ""), 400, "INVALID_PARAMETERS")
	isProblem(t, do(e.Handler(), "GET", "/install", "", "Host", "evil.example"), 403, "FORBIDDEN")
	if a := do(e.Handler(), "POST", "/install/cursor", "{}"); a.StatusCode != 405 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// What clients are told is public_url: a proxy gives the request another name, or
// there is none, over the socket. What the request says itself goes before it.
func TestInstallGuidanceBehindAProxy(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	e.PublicURL = "https://sandlot.example.com/box"
	for _, c := range clientconfig.All() {
		id, stdio := c.ID, c.StdioOnly()
		a := do(e.Handler(), "GET", "/install/"+id, "", "Host", "localhost")
		if a.StatusCode != 200 || strings.Contains(a.body, "http://localhost") ||
			!stdio && !strings.Contains(a.body, "https://sandlot.example.com/box/mcp") {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.body)
		}
	}
	a := do(e.Handler(), "GET", "/install/cursor?url=http://10.1.2.3:8000/mcp", "")
	if !strings.Contains(a.body, "http://10.1.2.3:8000/mcp") || strings.Contains(a.body, "example.com") {
		t.Errorf("%s", a.body)
	}
	over := httptest.NewRequest("GET", "/install/cursor", nil)
	over = over.WithContext(context.WithValue(over.Context(), http.LocalAddrContextKey,
		net.Addr(&net.UnixAddr{Net: "unix", Name: "s"})))
	w := httptest.NewRecorder()
	e.SocketHandler().ServeHTTP(w, over)
	if w.Code != 200 || !strings.Contains(w.Body.String(), "https://sandlot.example.com/box/mcp") {
		t.Errorf("over the socket: %d %s", w.Code, w.Body)
	}
}

// Over the socket it is not known by which address clients come.
func TestInstallGuidanceOverTheSocket(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: e.SocketHandler()}}
	s.Start()
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	}}}
	for query, want := range map[string]int{"": 400, "?url=http://localhost:8000/mcp": 200} {
		res, err := c.Get("http://sandlot/install/cursor" + query)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %d, want %d", query, res.StatusCode, want)
		}
	}
}
