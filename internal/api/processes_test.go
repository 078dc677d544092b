package api

import (
	"strings"
	"testing"

	"sandlot/internal/auth"
)

// Requests about processes and ports that mean nothing, or are about another's session, are refused.
func TestProcessesAreChecked(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann := e.owner("ann")
	all, err := e.Hub.Sessions.List(t.Context(), auth.User("ann", false), "")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	for what, tt := range map[string]struct {
		got    answer
		status int
	}{
		"a cursor of words":    {ann.ask("GET", "/processes/p/output?cursor=x", ""), 400},
		"a cursor below zero":  {ann.ask("GET", "/processes/p/output?cursor=-1", ""), 400},
		"no process":           {ann.ask("GET", "/processes/p/output", ""), 404},
		"an odd process":       {ann.ask("GET", "/processes/..%2F%00/output", ""), 404},
		"an unknown signal":    {ann.ask("POST", "/processes/p/signal", `{"signal":"WINCH"}`), 400},
		"an unknown field":     {ann.ask("POST", "/processes/p/input", `{"text":"x"}`), 400},
		"too much input":       {ann.ask("POST", "/processes/p/input", `{"data":"`+strings.Repeat("x", 2<<20)+`"}`), 400},
		"ports, none of which": {ann.ask("GET", "/ports", ""), 200},
	} {
		if tt.got.StatusCode != tt.status {
			t.Errorf("%s: %d %s", what, tt.got.StatusCode, tt.got.body)
		}
	}
	bob := e.token("bob")
	for _, x := range [][2]string{{"GET", "/processes/p/output"}, {"POST", "/processes/p/input"},
		{"POST", "/processes/p/signal"}, {"GET", "/ports"}} {
		got := do(e.Handler(), x[0], "/v1/sessions/"+all[0].ID+x[1], "{}", "Authorization", bob)
		if got.StatusCode != 404 || got.json()["title"] != "SESSION_NOT_FOUND" {
			t.Errorf("%s %s: %d %s", x[0], x[1], got.StatusCode, got.body)
		}
	}
	c := dialLive(t, e.liveServer(), bob)
	c.says(`{"op":"open","channel":1,"kind":"process","args":{"session_id":%q,"process_id":"p"}}`, all[0].ID)
	c.expects("closed 1 SESSION_NOT_FOUND")
	c.says(`{"op":"open","channel":2,"kind":"process","args":{"session_id":"home","cursor":"x"}}`)
	c.expects("closed 2 INVALID_PARAMETERS args is not understood")
}
