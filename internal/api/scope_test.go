package api

import (
	"net/http"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// issue creates a token, and returns its header.
func (e *edge) issue(n auth.NewToken) string {
	e.t.Helper()
	_, v, err := auth.IssueToken(e.t.Context(), e.tokens, n)
	if err != nil {
		e.t.Fatal(err)
	}
	return "Bearer " + v.Reveal()
}

// Each route refuses a token without the scope, and says which scope it needs as RFC 6750 has it; a token
// with the scope passes.
func TestRoutesNeedTheirScope(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	e.Hub.Decide = func(q policy.Question) policy.Decision {
		if d := policy.Decide(q); d.Err() != nil {
			return d
		}
		return policy.Decision{Reason: fault.New(fault.Forbidden, forbids)} // what is allowed is not done here
	}
	tried := 0
	for _, r := range e.routes() {
		operation := r.operation
		if operation == "" {
			operation = policy.SessionList // of the tool in the path
		}
		if r.audience == everyone || operation == policy.ClientConnect || operation == policy.PromptList {
			continue // in every scope; the list of prompts is empty without prompt.get
		}
		tried++
		outside := auth.Scope("completion.*")
		roles := []auth.Role{auth.Operator}
		method, path := concrete(r.pattern)
		for name, h := range map[string]http.Handler{"network": e.Handler(), "socket": e.SocketHandler()} {
			call := func(scope auth.Scope) answer {
				token := e.issue(auth.NewToken{User: "ann", Roles: roles, Scope: scope})
				return do(h, method, path, "{}", "Upgrade", "sandlot-none", "Authorization", token)
			}
			got := call(outside)
			want := `error="insufficient_scope", scope="` + string(operation) + `"`
			if challenge := got.Header.Get("WWW-Authenticate"); got.StatusCode != 403 ||
				!strings.HasPrefix(challenge, "Bearer ") || !strings.Contains(challenge, want) ||
				method != "HEAD" && !strings.Contains(got.body, string(operation)) {
				t.Errorf("%s over the %s: %d %q %.300s", r.pattern, name, got.StatusCode, challenge, got.body)
			}
			if got := call(auth.Scope(operation)); !strings.Contains(got.body, forbids) {
				t.Errorf("%s over the %s with its scope: %d %.300s", r.pattern, name, got.StatusCode, got.body)
			}
		}
	}
	if tried < 25 {
		t.Errorf("only %d routes were tried", tried)
	}
}

// The header Sandlot-User is obeyed, or the request is refused, on every route; it is never ignored.
func TestUserHeader(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sessions"}}`
	caller := func(h http.Handler, header ...string) (status int, id string) {
		a := do(h, "GET", "/v1/sessions", "", header...)
		id, _ = a.json()["caller"].(string)
		bare := do(h, "POST", "/mcp", list, header...)
		if (a.StatusCode == 200) != strings.Contains(bare.body, `"`+id+`"`) || id == "" && bare.StatusCode < 400 {
			t.Errorf("%q: %d %q, but a bare call: %d %s", header, a.StatusCode, a.body, bare.StatusCode, bare.body)
		}
		return a.StatusCode, id
	}
	for name, h := range map[string]http.Handler{"network": e.Handler(), "socket": e.SocketHandler()} {
		if status, id := caller(h, "Sandlot-User", "ann"); status != 403 {
			t.Errorf("without a token, over the %s: %d %s", name, status, id)
		}
	}
	gitu := e.issue(auth.NewToken{User: "gitu", Service: true, ActsFor: true})
	rival := e.issue(auth.NewToken{User: "rival", Service: true, ActsFor: true})
	plain := e.issue(auth.NewToken{User: "ann", Service: true, Roles: []auth.Role{auth.Operator}})
	for name, h := range map[string]http.Handler{"network": e.Handler(), "socket": e.SocketHandler()} {
		for _, c := range []struct {
			token  string
			users  []string
			status int
			id     string
		}{
			{gitu, nil, 200, "user:gitu"}, {gitu, []string{"ann"}, 200, "user:gitu/ann"},
			{rival, []string{"ann"}, 200, "user:rival/ann"}, {gitu, []string{"gitu"}, 200, "user:gitu/gitu"},
			{plain, []string{"ann"}, 403, ""}, {plain, nil, 200, "user:ann"}, {plain, []string{""}, 403, ""},
			{gitu, []string{""}, 400, ""}, {gitu, []string{"ann", "ann"}, 400, ""}, {gitu, []string{"a/b"}, 400, ""},
			{"Bearer slt_wrong", []string{"ann"}, 401, ""},
		} {
			header := []string{"Authorization", c.token}
			for _, user := range c.users {
				header = append(header, "Sandlot-User", user)
			}
			if status, id := caller(h, header...); status != c.status || id != c.id {
				t.Errorf("%v over the %s: %d %q, want %d %q", c.users, name, status, id, c.status, c.id)
			}
		}
	}
}
