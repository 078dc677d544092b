package test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestQuotas: each quota of the settings is refused beyond, with what, how much and the limit, for one user and
// not for another; a user of a service counts for itself. A change of the settings holds for what comes next.
func TestQuotas(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required", "SANDLOT_ENABLE_LRU_EVICTION=false")
	ann, gitu := s.token("ann"), s.token("gitu", "--service", "--acts-for")
	s.applySettings(`quotas:
  users: {sessions: 1, secrets: 1, connections: 1, calls: 2}
  services: {sessions: 2}
  principals:
    bob: {sessions: 2}
    gitu/eve: {calls_per_minute: 3}
`)
	reached := func(text, resource string, limit int) {
		t.Helper()
		if !strings.Contains(text, "RESOURCE_LIMIT_EXCEEDED") || !strings.Contains(text, "quota") ||
			!strings.Contains(text, fmt.Sprintf("%q", resource)) || !strings.Contains(text, fmt.Sprintf(`"limit":%d`, limit)) {
			t.Errorf("the quota %s: %s", resource, text)
		}
	}
	bare := func(token, tool, arguments string) string {
		_, _, text := s.post("/mcp", fmt.Sprintf(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, arguments),
			credentials(token)...)
		return text
	}
	const another = `{"code":"1","session_id":"new"}`
	for token, sessions := range map[string]int{ann: 1, s.token("bob"): 2, actingAs(gitu, "ann"): 1,
		actingAs(gitu, "bob"): 1} {
		for range sessions {
			if text := bare(token, "execute_code", another); !strings.Contains(text, `"result"`) {
				t.Fatal(text)
			}
		}
		reached(bare(token, "execute_code", another), "sessions", sessions)
	}
	for i, robot := 0, s.token("robot", "--service"); i < 3; i++ { // a service from its first request on
		code, _, text := s.request("POST", "/v1/sessions", strings.NewReader("{}"), credentials(robot)...)
		if i < 2 && code >= 300 {
			t.Errorf("session %d of a service: %d %s", i, code, text)
		} else if i == 2 {
			reached(text, "sessions", 2)
		}
	}
	if code, _, text := s.request("PUT", "/v1/secrets/ONE", strings.NewReader("x"), credentials(ann)...); code != 200 {
		t.Errorf("the first secret: %d %s", code, text)
	}
	code, _, text := s.request("PUT", "/v1/secrets/TWO", strings.NewReader("x"), credentials(ann)...)
	if reached(text, "secrets", 1); code != 429 {
		t.Errorf("the second secret: %d", code)
	}
	if text := bare(ann, "get_sessions", `{}`); !strings.Contains(text, "Of your quota are in use: 1 of 1 sessions") {
		t.Errorf("get_sessions: %s", text)
	}
	s.put(ann, "odd.py")
	c := s.connect(newer, ann, nil)
	c.odd("one", "plain", nil)
	_, err := c.try(t.Context(), "connect_external_mcp", args{"name": "two", "command": "python3",
		"args": []string{"/workspace/odd.py", "plain", "two"}})
	wantFault(t, err, -32600, "RESOURCE_LIMIT_EXCEEDED", "quota is 1")
	s.callsWithinQuota(t, ann, reached, bare)
	for range 3 {
		bare(actingAs(gitu, "eve"), "get_sessions", `{}`)
	}
	reached(bare(actingAs(gitu, "eve"), "get_sessions", `{}`), "calls_per_minute", 3)
	s.applySettings("quotas:\n  users: {sessions: 2}\n")
	if text := bare(ann, "execute_code", another); !strings.Contains(text, `"result"`) {
		t.Errorf("after the change: %s", text)
	}
	reached(bare(ann, "execute_code", another), "sessions", 2)
	if text := bare(actingAs(gitu, "eve"), "get_sessions", `{}`); !strings.Contains(text, `"result"`) {
		t.Errorf("after the change: %s", text)
	}
	const wrong = "quotas:\n  users: {session: 2}\n"
	rewrite(t, s.State+"/sandlot.yaml", wrong)
	until(t, "the wrong quotas are refused", func() bool {
		return strings.Contains(s.log.String(), "those from before hold")
	})
	reached(bare(ann, "execute_code", another), "sessions", 2)
	s.applySettings("quotas:\n")
}

// callsWithinQuota makes three calls at once of a user who may make two.
func (s *server) callsWithinQuota(t *testing.T, token string, reached func(string, string, int),
	bare func(token, tool, arguments string) string) {
	t.Helper()
	bare(token, "execute_code", `{"code":"1","session_id":"home"}`)
	var all sync.WaitGroup
	answers := make(chan string, 3)
	for range 3 {
		all.Go(func() { answers <- bare(token, "execute_command", `{"command":"sleep 2","session_id":"home"}`) })
	}
	all.Wait()
	close(answers)
	refused := 0
	for text := range answers {
		if !strings.Contains(text, `"result"`) {
			refused++
			reached(text, "calls", 2)
		}
	}
	if refused != 1 {
		t.Errorf("%d of three calls at once are refused", refused)
	}
}
