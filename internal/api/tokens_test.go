package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/session/usage"
)

// tokenWith issues a token of a user, with a scope and roles, which ends.
func (e *edge) tokenWith(n auth.NewToken) (auth.Token, string) {
	e.t.Helper()
	made, v, err := auth.IssueToken(e.t.Context(), e.tokens, n)
	if err != nil {
		e.t.Fatal(err)
	}
	return made, "Bearer " + v.Reveal()
}

// rulesOf returns rules in effect.
func rulesOf(t *testing.T, texts ...string) *policy.Current {
	t.Helper()
	var list []policy.Rule
	for _, text := range texts {
		r, err := policy.ParseRule(text, "sandlot.yaml:7")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	c := &policy.Current{}
	c.Set(policy.Compile(list))
	return c
}

// A token makes others that allow at most what it allows, for at most as long, and for its own user.
func TestOwnTokens(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	as := func(token, method, path, body string) answer {
		t.Helper()
		return do(e.Handler(), method, path, body, "Authorization", token)
	}
	ann, bob := e.token("ann"), e.token("bob")
	a := as(ann, "POST", "/v1/tokens", `{"scope": ["file.*", "token.*"], "expires_in": "1h"}`)
	narrow, _ := a.json()["token"].(string)
	if a.StatusCode != 201 || narrow == "" || a.json()["scope"] != "file.* token.*" || a.json()["user"] != "ann" {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	narrow = "Bearer " + narrow
	id := a.json()["id"].(string)
	if a := as(narrow, "GET", "/v1/sessions", ""); a.StatusCode != 403 {
		t.Errorf("beyond the scope: %d", a.StatusCode)
	}
	list := as(narrow, "GET", "/v1/tokens", "")
	if list.StatusCode != 200 || strings.Count(list.body, `"id"`) != 2 || strings.Count(list.body, `"current":true`) != 1 ||
		strings.Contains(list.body, "slt_") || strings.Contains(list.body, "hash") {
		t.Errorf("the list: %d %s", list.StatusCode, list.body)
	}
	for body, status := range map[string]int{
		`{"scope": ["session.list"]}`:       403, // not in its own scope
		`{"scope": ["*"]}`:                  403,
		`{"expires_in": "2h"}`:              403, // longer than its own life
		`{"roles": ["operator"]}`:           403,
		`{"roles": ["metrics"]}`:            403,
		`{"roles": ["nothing"]}`:            400,
		`{"service": true}`:                 403,
		`{"acts_for": true}`:                403,
		`{"user": "bob"}`:                   404,
		`{"user": "local"}`:                 404,
		`{"scope": ["nothing.at.all"]}`:     400,
		`{"expires_in": "NaNd"}`:            400,
		`{"expires_in": "-1h"}`:             400,
		`{"expires_in": "1ns"}`:             400,
		`{"hash": "x"}`:                     400,
		`{"scope": ["file.read"]}`:          201,
		`{"expires_in": "10m"}`:             201,
		`{"user": "ann", "service": false}`: 201,
		``:                                  201,
	} {
		made := as(narrow, "POST", "/v1/tokens", body)
		if made.StatusCode != status {
			t.Errorf("%s: %d %s, want %d", body, made.StatusCode, made.body, status)
		}
		if made.StatusCode != 201 {
			continue
		}
		var of auth.Token
		json.Unmarshal([]byte(made.body), &of)
		if of.Expires == nil || time.Until(*of.Expires) > time.Hour || of.Scope.Allows("session.list") ||
			of.Scope == "" {
			t.Errorf("%s: it allows more: %s", body, made.body)
		}
	}
	isProblem(t, as(bob, "GET", "/v1/tokens?principal=ann", ""), 404, "NOT_FOUND")
	isProblem(t, as(bob, "DELETE", "/v1/tokens/"+id, ""), 404, "NOT_FOUND")
	isProblem(t, as(bob, "DELETE", "/v1/tokens/tok_unknown", ""), 404, "NOT_FOUND")
	if a := as(ann, "DELETE", "/v1/tokens/"+id, ""); a.StatusCode != 204 {
		t.Fatalf("revoked: %d %s", a.StatusCode, a.body)
	}
	for _, r := range [][2]string{{"GET", "/v1/tokens"}, {"POST", "/v1/tokens"}, {"DELETE", "/v1/tokens/x"},
		{"GET", "/v1/users"}, {"GET", "/v1/policy"}, {"POST", "/v1/policy/check"}} {
		if a := as(narrow, r[0], r[1], `{"operation": "file.read"}`); a.StatusCode != 401 {
			t.Errorf("%v with a revoked token: %d", r, a.StatusCode)
		}
	}
	for range maxOwnTokens {
		as(bob, "POST", "/v1/tokens", "")
	}
	if a := as(bob, "POST", "/v1/tokens", ""); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one token too many: %d %s", a.StatusCode, a.body)
	}
}

const maxOwnTokens = 100

// The last token of a server is an operator's to revoke: without any, a server on loopback needs none.
func TestLastToken(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	tok, ann := e.tokenWith(auth.NewToken{User: "ann"})
	as := func(method, path, body string) answer {
		return do(e.Handler(), method, path, body, "Authorization", ann)
	}
	child := as("POST", "/v1/tokens", `{}`)
	if child.json()["made_by"] != tok.ID {
		t.Errorf("the new token: %s", child.body)
	}
	isProblem(t, as("DELETE", "/v1/tokens/"+tok.ID, ""), 403, "FORBIDDEN") // its child ends with it
	if a := as("DELETE", "/v1/tokens/"+child.json()["id"].(string), ""); a.StatusCode != 204 {
		t.Errorf("another token: %d %s", a.StatusCode, a.body)
	}
	isProblem(t, as("DELETE", "/v1/tokens/"+tok.ID, ""), 403, "FORBIDDEN")
	if a := do(e.Handler(), "GET", "/v1/sessions", ""); a.StatusCode != 401 {
		t.Errorf("without a token: %d", a.StatusCode)
	}
	_, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	if a := as("DELETE", "/v1/tokens/"+tok.ID, ""); a.StatusCode != 204 {
		t.Errorf("beside a token of another: %d %s", a.StatusCode, a.body)
	}
	all, _ := e.tokens.Tokens(t.Context())
	if a := do(e.Handler(), "DELETE", "/v1/tokens/"+all[0].ID, "", "Authorization", eve); a.StatusCode != 204 ||
		len(all) != 1 {
		t.Errorf("an operator: %d %s", a.StatusCode, a.body)
	}
}

// What a user has made with a token ends with it, and what an operator has made for others does not. Expired tokens do
// not count among a user's, and go when one is made.
func TestTokensThatTokensMake(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	tok, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	_, ann := e.tokenWith(auth.NewToken{User: "ann"})
	as := func(token, method, path, body string) answer {
		t.Helper()
		a := do(e.Handler(), method, path, body, "Authorization", token)
		if a.StatusCode >= 300 {
			t.Errorf("%s %s: %d %s", method, path, a.StatusCode, a.body)
		}
		return a
	}
	child := "Bearer " + as(eve, "POST", "/v1/tokens", `{}`).json()["token"].(string)
	grandchild := "Bearer " + as(child, "POST", "/v1/tokens", `{}`).json()["token"].(string)
	zoe := "Bearer " + as(eve, "POST", "/v1/tokens", `{"user": "zoe"}`).json()["token"].(string)
	as(eve, "DELETE", "/v1/tokens/"+tok.ID, "")
	for token, status := range map[string]int{child: 401, grandchild: 401, zoe: 200, ann: 200} {
		if a := do(e.Handler(), "GET", "/v1/sessions", "", "Authorization", token); a.StatusCode != status {
			t.Errorf("after the revocation: %d, want %d", a.StatusCode, status)
		}
	}
	ended := time.Now().Add(-time.Hour)
	for i := range maxOwnTokens {
		_ = e.tokens.AddToken(t.Context(), auth.Token{ID: fmt.Sprint("tok_", i), Owner: "user:ann", Expires: &ended})
	}
	as(ann, "POST", "/v1/tokens", `{}`)
	if all, _ := e.tokens.Tokens(t.Context()); len(all) != 3 {
		t.Errorf("%d tokens are left", len(all))
	}
}

// A token cannot make one that rules about the token's roles do not bind.
func TestNoTokenEvadesRules(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		c.Rules = rulesOf(t, "deny role:logs code.execute", "ask service file.read", "allow role:metrics file.write")
	})
	_, ann := e.tokenWith(auth.NewToken{User: "ann", Roles: []auth.Role{auth.Logs, auth.Metrics}})
	_, ci := e.tokenWith(auth.NewToken{User: "ci", Service: true, Roles: []auth.Role{auth.Operator}})
	for _, c := range []struct {
		token, body string
		status      int
	}{{ann, `{}`, 403}, {ann, `{"roles": ["metrics"]}`, 403}, {ann, `{"roles": ["logs"]}`, 201},
		{ann, `{"scope": ["file.*"]}`, 201}, {ci, `{}`, 403}, {ci, `{"roles": ["operator"]}`, 201}, {ci, `{"user": "bob"}`, 201}} {
		a := do(e.Handler(), "POST", "/v1/tokens", c.body, "Authorization", c.token)
		if a.StatusCode != c.status {
			t.Errorf("%s: %d %s, want %d", c.body, a.StatusCode, a.body, c.status)
		}
		if c.token == ci && a.StatusCode == 201 && (a.json()["service"] == true) != strings.Contains(c.body, "operator") {
			t.Errorf("of a service, %s: %s", c.body, a.body)
		}
	}
}

// What would happen to another is what happens with the other's tokens.
func TestPolicyCheckOfTokens(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		c.Rules = rulesOf(t, "deny service shell.execute", "deny role:logs file.read", "deny user code.execute")
	})
	_, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	e.tokenWith(auth.NewToken{User: "ci", Service: true})
	e.tokenWith(auth.NewToken{User: "bob"})
	logs, _ := e.tokenWith(auth.NewToken{User: "bob", Roles: []auth.Role{auth.Logs}, Scope: "file.*"})
	for _, c := range []struct{ body, effect string }{
		{`{"principal": "ci", "operation": "shell.execute"}`, "deny"},
		{`{"principal": "ci", "operation": "code.execute"}`, "allow"},
		{`{"principal": "ci", "operation": "file.read", "roles": ["logs"]}`, "deny"},
		{`{"principal": "bob", "operation": "file.read", "token_id": "` + logs.ID + `"}`, "deny"},
		{`{"principal": "bob", "operation": "session.list", "token_id": "` + logs.ID + `"}`, "deny"}, // by its scope
		{`{"principal": "nobody", "operation": "shell.execute"}`, "allow"},
		{`{"principal": "bob", "operation": "file.read"}`, ""}, // it depends on the token
		{`{"principal": "ci", "operation": "file.read", "token_id": "` + logs.ID + `"}`, ""},
	} {
		a := do(e.Handler(), "POST", "/v1/policy/check", c.body, "Authorization", eve)
		if effect, _ := a.json()["effect"].(string); effect != c.effect || (effect == "") != (a.StatusCode == 400) {
			t.Errorf("%s: %d %s, want %q", c.body, a.StatusCode, a.body, c.effect)
		}
	}
	for who, n := range map[string]int{"ci": 1, "bob": 2} {
		a := do(e.Handler(), "GET", "/v1/policy?principal="+who, "", "Authorization", eve)
		if strings.Count(a.body, `"effect"`) != n {
			t.Errorf("the rules of %s: %s", who, a.body)
		}
	}
}

// A service makes tokens of the service alone, and the user of one makes none.
func TestTokensOfServices(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	_, ci := e.tokenWith(auth.NewToken{User: "ci", Service: true, ActsFor: true})
	a := do(e.Handler(), "POST", "/v1/tokens", `{}`, "Authorization", ci)
	if a.StatusCode != 201 || a.json()["service"] != true || a.json()["acts_for"] != nil {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	for _, user := range []string{"", `"ci"`, `"user:ci"`, `"user:ci/zoe"`} {
		body := `{}`
		if user != "" {
			body = `{"user": ` + user + `}`
		}
		a := do(e.Handler(), "POST", "/v1/tokens", body, "Authorization", ci, auth.UserHeader, "zoe")
		if a.StatusCode != 400 && a.StatusCode != 404 {
			t.Errorf("a service's user, %s: %d %s", body, a.StatusCode, a.body)
		}
	}
	list := do(e.Handler(), "GET", "/v1/tokens", "", "Authorization", ci, auth.UserHeader, "zoe")
	if list.StatusCode != 200 || strings.Contains(list.body, "tok_") {
		t.Errorf("the tokens of a service's user: %d %s", list.StatusCode, list.body)
	}
}

// An operator makes and revokes tokens of all users, within the scope of the operator's own.
func TestUsers(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	_, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	_, few := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}, Scope: "token.* user.*"})
	ann := e.token("ann")
	if a := do(e.Handler(), "GET", "/v1/users", "", "Authorization", ann); a.StatusCode != 403 {
		t.Errorf("a user: %d %s", a.StatusCode, a.body)
	}
	do(e.Handler(), "POST", "/v1/sessions", `{}`, "Authorization", ann)
	var users hub.UserList
	a := do(e.Handler(), "GET", "/v1/users", "", "Authorization", eve)
	if err := json.Unmarshal([]byte(a.body), &users); err != nil || len(users.Users) != 2 ||
		users.Users[0].Principal != "user:ann" || users.Users[0].Sessions != 1 || len(users.Users[1].Tokens) != 2 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	a = do(e.Handler(), "POST", "/v1/tokens", `{"user": "zoe", "roles": ["logs"]}`, "Authorization", eve)
	if a.StatusCode != 201 || a.json()["user"] != "zoe" {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	zoe := "Bearer " + a.json()["token"].(string)
	if a := do(e.Handler(), "GET", "/v1/principal", "", "Authorization", zoe); a.json()["principal"] != "user:zoe" {
		t.Errorf("zoe is %s", a.body)
	}
	if a := do(e.Handler(), "POST", "/v1/tokens", `{"user": "zoe", "scope": ["code.execute"]}`, "Authorization",
		few); a.StatusCode != 403 {
		t.Errorf("an operator makes what is not in its scope: %d %s", a.StatusCode, a.body)
	}
	if a := do(e.Handler(), "POST", "/v1/tokens", `{"user": "zoe"}`, "Authorization", few); a.json()["scope"] !=
		"token.* user.*" {
		t.Errorf("an operator with a scope makes %s", a.body)
	}
	if a := do(e.Handler(), "DELETE", "/v1/tokens/"+a.json()["id"].(string), "", "Authorization", eve); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := do(e.Handler(), "GET", "/v1/principal", "", "Authorization", zoe); a.StatusCode != 401 {
		t.Errorf("a revoked token: %d", a.StatusCode)
	}
}

// What would happen is what happens, and says to users nothing about others.
func TestPolicyCheck(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		c.Rules = rulesOf(t, "deny bob network.reach *", "deny ann shell.execute curl *", "ask ann file.read /etc/*",
			"deny * network.reach evil.example:*")
		allowed, err := egress.ParseRule("good.example")
		if err != nil {
			t.Fatal(err)
		}
		c.Network = func() hub.NetworkState {
			return hub.NetworkState{Policy: egress.Policy{Mode: egress.Allowlist, Allow: []egress.Rule{allowed}}}
		}
	})
	ann := e.token("ann")
	_, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	check := func(token, body string) answer {
		t.Helper()
		return do(e.Handler(), "POST", "/v1/policy/check", body, "Authorization", token)
	}
	for _, c := range []struct{ operation, detail, effect, rule string }{
		{"shell.execute", "curl x", "deny", "deny shell.execute curl *"},
		{"shell.execute", "ls", "allow", ""},
		{"file.read", "/etc/passwd", "ask", "ask file.read /etc/*"},
		{"session.stop_all", "", "deny", ""},
		{"network.reach", "evil.example:443", "deny", "deny network.reach evil.example:*"},
		{"network.reach", "good.example:443", "allow", ""},
		{"network.reach", "other.example:443", "deny", ""},
		{"network.reach", "localhost:443", "deny", ""},
	} {
		text, _ := json.Marshal(map[string]string{"operation": c.operation, "detail": c.detail})
		a := check(ann, string(text))
		if a.StatusCode != 200 || a.json()["effect"] != c.effect || a.json()["rule"] != c.rule || a.json()["place"] != nil ||
			strings.Contains(a.body, "ann") {
			t.Errorf("%v: %d %s", c, a.StatusCode, a.body)
		}
	}
	if a := check(ann, `{"operation": "network.reach", "detail": "other.example:443"}`); a.json()["cause"] != "not_listed" {
		t.Errorf("the cause: %s", a.body)
	}
	for body, status := range map[string]int{`{"operation": "no.such"}`: 400, `{}`: 400,
		`{"operation": "network.reach", "detail": "nowhere"}`:                                           400,
		`{"operation": "file.read", "principal": "bob"}`:                                                404,
		`{"operation": "file.read", "roles": ["operator"]}`:                                             400,
		`{"operation": "network.reach", "detail": "a.b:1", "session_id": "62l7d54sk2mbrglvt7ii5ftyzc"}`: 404} {
		if a := check(ann, body); a.StatusCode != status {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
	if a := check(eve, `{"operation": "network.reach", "detail": "good.example:443", "principal": "bob"}`); a.json()["effect"] !=
		"deny" || a.json()["place"] != "sandlot.yaml:7" || a.json()["rule"] != "deny bob network.reach *" {
		t.Errorf("for an operator: %s", a.body)
	}
	rules := do(e.Handler(), "GET", "/v1/policy", "", "Authorization", ann)
	if strings.Contains(rules.body, "bob") || strings.Contains(rules.body, "yaml") || strings.Count(rules.body, `"effect"`) != 3 {
		t.Errorf("ann's rules: %s", rules.body)
	}
	isProblem(t, do(e.Handler(), "GET", "/v1/policy?principal=bob", "", "Authorization", ann), 404, "NOT_FOUND")
	rules = do(e.Handler(), "GET", "/v1/policy?principal=bob", "", "Authorization", eve)
	if !strings.Contains(rules.body, "deny bob network.reach *") || strings.Count(rules.body, `"effect"`) != 2 {
		t.Errorf("bob's rules, for an operator: %s", rules.body)
	}
	// What is decided is decided by the same rules when it is done.
	if a := do(e.Handler(), "POST", "/v1/policy/check", `{"operation": "session.list"}`, "Authorization",
		ann); a.json()["effect"] != "allow" {
		t.Errorf("%s", a.body)
	}
	e.Hub.Rules.Set(policy.Compile(nil))
	if a := check(ann, `{"operation": "shell.execute", "detail": "curl x"}`); a.json()["effect"] != "allow" {
		t.Errorf("after a change of the rules: %s", a.body)
	}
}

// unstored is a usage.HistoryStore that stores nothing: what is read is what waits.
type unstored struct{}

func (unstored) AddUsage(context.Context, map[usage.Key]usage.Used, map[string]time.Duration) error {
	return nil
}
func (unstored) Usage(context.Context, string, int64) (map[usage.Key]usage.Used, error) {
	return map[usage.Key]usage.Used{}, nil
}
func (unstored) RemoveUsage(context.Context, int64) error                     { return nil }
func (unstored) CountedCPU(context.Context) (map[string]time.Duration, error) { return nil, nil }

// Everybody reads their own usage, and operators everybody's.
func TestUsage(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann, bob := e.token("ann"), e.token("bob")
	const invented = "62l7d54sk2mbrglvt7ii5ftyzc"
	do(e.Handler(), "DELETE", "/v1/sessions/"+invented, "", "Authorization", ann)
	id, _ := do(e.Handler(), "POST", "/v1/sessions", `{}`, "Authorization", ann).json()["session_id"].(string)
	do(e.Handler(), "DELETE", "/v1/sessions/"+id, "", "Authorization", bob)
	for who, n := range map[string]int{ann: 1, bob: 0} {
		rows := do(e.Handler(), "GET", "/v1/usage", "", "Authorization", who).body
		if strings.Contains(rows, invented) || strings.Count(rows, id) != n || !strings.Contains(rows, `"calls":`) {
			t.Errorf("calls are counted for the sessions %s", rows)
		}
	}
	tok, eve := e.tokenWith(auth.NewToken{User: "eve", Roles: []auth.Role{auth.Operator}})
	for _, c := range []struct {
		who, path string
		status    int
	}{{ann, "/v1/usage", 200}, {ann, "/v1/usage?days=90", 200}, {ann, "/v1/usage?principal=user:ann", 200},
		{bob, "/v1/usage?principal=ann", 404}, {bob, "/v1/usage/all", 403}, {eve, "/v1/usage?principal=ann", 200},
		{eve, "/v1/usage?principal=%20", 404}, {eve, "/v1/usage/all?days=1", 200}, {ann, "/v1/usage?days=91", 400},
		{ann, "/v1/usage?days=0", 400}, {ann, "/v1/usage?days=x", 400}, {"", "/v1/usage", 401}} {
		var header []string
		if c.who != "" {
			header = []string{"Authorization", c.who}
		}
		if a := do(e.Handler(), "GET", c.path, "", header...); a.StatusCode != c.status {
			t.Errorf("%s: %d %s, want %d", c.path, a.StatusCode, a.body, c.status)
		}
	}
	if err := e.tokens.RemoveToken(t.Context(), tok.ID); err != nil {
		t.Fatal(err)
	}
	if a := do(e.Handler(), "GET", "/v1/usage/all", "", "Authorization", eve); a.StatusCode != 401 {
		t.Errorf("a revoked token: %d", a.StatusCode)
	}
}

// An event of a request that policy refused says why: the rule's place, the scope, or the role. One of a request for
// what belongs to somebody else says nothing.
func TestRefusalsInEvents(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		c.Rules = rulesOf(t, "deny ann quota.read", "ask ann session.stop")
	})
	ann := e.token("ann")
	_, narrow := e.tokenWith(auth.NewToken{User: "ann", Scope: "session.list event.read"})
	id, _ := do(e.Handler(), "POST", "/v1/sessions", `{}`, "Authorization", ann).json()["session_id"].(string)
	for _, c := range []struct{ token, method, path, refused string }{
		{ann, "GET", "/v1/quota", `{"cause":"denied_by_rule","rule":"sandlot.yaml:7"}`},
		{ann, "DELETE", "/v1/sessions/" + id, `{"cause":"not_agreed","rule":"sandlot.yaml:7"}`},
		{ann, "GET", "/v1/network", `{"cause":"needs_role"}`},
		{narrow, "POST", "/v1/sessions", `{"cause":"out_of_scope"}`},
		{ann, "GET", "/v1/tokens?principal=bob", ``},
	} {
		if a := do(e.Handler(), c.method, c.path, "", "Authorization", c.token); a.StatusCode < 400 {
			t.Fatalf("%s: %d", c.path, a.StatusCode)
		}
		events := do(e.Handler(), "GET", "/v1/events?follow=false", "", "Authorization", ann).body
		last := events[strings.LastIndex(events, "data: "):]
		_, refused, has := strings.Cut(last, `"refused":`)
		if has != (c.refused != "") || !strings.HasPrefix(refused, c.refused) {
			t.Errorf("%s: %s, want %s", c.path, last, c.refused)
		}
	}
}
