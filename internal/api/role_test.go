package api

import (
	"net/http"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
)

// What the operator may do asks for a role: by the owner's socket, and by a token
// over the network. A name, a header or somebody else's session gives none.
func TestRoles(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	e.Hub.Network = func() hub.NetworkState { return hub.NetworkState{} }
	routes := []struct {
		method, path, body string
		role               auth.Role
		status             int
	}{
		{"GET", "/metrics", "", auth.Metrics, 200},
		{"GET", "/v1/network", "", auth.Operator, 200},
		{"PATCH", "/v1/sessions/home/network", `{"reset":true}`, auth.Operator, 404}, // they have none
		{"DELETE", "/v1/sessions", "", auth.Operator, 204},
		{"GET", "/v1/users", "", auth.Operator, 200},
		{"GET", "/v1/usage/all", "", auth.Operator, 200},
		{"GET", "/v1/backups", "", auth.Operator, 200},
		{"POST", "/v1/backups", "", auth.Operator, 201},
		{"GET", "/v1/images", "", auth.Operator, 404}, // the server has none
		{"POST", "/v1/images", `{"image":"python:3"}`, auth.Operator, 404},
		{"DELETE", "/v1/images/python:3", "", auth.Operator, 404},
		{"DELETE", "/v1/pulls/x", "", auth.Operator, 404},
		{"GET", "/v1/doctor", "", auth.Operator, 404},
		{"POST", "/v1/doctor", "", auth.Operator, 404},
	}
	try := func(who string, h http.Handler, roles auth.Roles, header ...string) {
		t.Helper()
		for _, r := range routes {
			a := do(h, r.method, r.path, r.body, header...)
			want := 403
			if roles.Has(r.role) {
				want = r.status
			}
			if a.StatusCode != want || want == 403 && a.json()["title"] != "FORBIDDEN" {
				t.Errorf("%s: %s %s: %d %.300s, want %d", who, r.method, r.path, a.StatusCode, a.body, want)
			}
		}
	}
	try("the local user on loopback", e.Handler(), auth.NewRoles(auth.Metrics))
	try("the owner", e.SocketHandler(), auth.NewRoles(auth.Operator))
	ann := e.token("ann")
	for name, h := range map[string]http.Handler{"by the network": e.Handler(), "by the socket": e.SocketHandler()} {
		try("ann "+name, h, 0, "Authorization", ann)
		for _, user := range []string{"operator", "admin", "root", "Local2"} {
			try(user+" "+name, h, 0, "Authorization", e.token(user))
		}
		for _, claim := range []string{"X-Sandlot-Role", "Roles", "X-Forwarded-User", "X-Remote-Role",
			"Mcp-Param-Role"} {
			try(claim+" "+name, h, 0, "Authorization", ann, claim, "operator")
		}
		for _, roles := range [][]auth.Role{{auth.Metrics}, {auth.Logs}, {auth.Operator},
			{auth.Metrics, auth.Operator}} {
			tok, v, err := auth.Issue(t.Context(), e.tokens, "ann", false, 0, roles...)
			if err != nil {
				t.Fatal(err)
			}
			try(tok.Roles.String()+" "+name, h, tok.Roles, "Authorization", "Bearer "+v.Reveal())
			if err := e.tokens.RemoveToken(t.Context(), tok.ID); err != nil {
				t.Fatal(err)
			}
			if a := do(h, "DELETE", "/v1/sessions", "", "Authorization", "Bearer "+v.Reveal()); a.StatusCode != 401 {
				t.Errorf("revoked, %s: %d", name, a.StatusCode)
			}
		}
	}
	for _, r := range routes {
		if a := do(e.Handler(), r.method, r.path, r.body); a.StatusCode != 401 {
			t.Errorf("nobody: %s %s: %d", r.method, r.path, a.StatusCode)
		}
		a := do(e.SocketHandler(), r.method, r.path, r.body, "Authorization", "Bearer slt_wrong")
		if a.StatusCode != 401 {
			t.Errorf("a wrong token, by the socket: %s %s: %d", r.method, r.path, a.StatusCode)
		}
	}
}

// An operator sees and changes what anyone's session may reach; others see their own.
func TestOperatorsSeeAllSessions(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	ann, bob := e.token("ann"), e.token("bob")
	_, v, err := auth.Issue(t.Context(), e.tokens, "eve", false, 0, auth.Operator)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := do(e.Handler(), "POST", "/v1/sessions", `{}`, "Authorization", ann).json()["session_id"].(string)
	path := "/v1/sessions/" + id + "/network"
	for who, header := range map[string]string{ann: "its owner", "Bearer " + v.Reveal(): "an operator"} {
		if a := do(e.Handler(), "GET", path, "", "Authorization", who); a.StatusCode != 200 ||
			a.json()["owner"] != "user:ann" {
			t.Errorf("%s: %d %s", header, a.StatusCode, a.body)
		}
	}
	isProblem(t, do(e.Handler(), "GET", path, "", "Authorization", bob), 404, "SESSION_NOT_FOUND")
	if a := do(e.Handler(), "PATCH", path, `{"mode":"none"}`, "Authorization",
		"Bearer "+v.Reveal()); a.StatusCode != 200 {
		t.Errorf("an operator changes it: %d %s", a.StatusCode, a.body)
	}
	// The rest of a session is its owner's alone.
	for _, c := range []struct{ method, path string }{{"DELETE", ""}, {"GET", "/files/f"}, {"PUT", "/files/f"},
		{"POST", "/exec"}} {
		isProblem(t, do(e.Handler(), c.method, "/v1/sessions/"+id+c.path, "x", "Authorization", "Bearer "+v.Reveal()),
			404, "SESSION_NOT_FOUND")
	}
}
