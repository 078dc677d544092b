package test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// eraHeaders are the headers of a call of execute_command without a session, in the newer protocol.
var eraHeaders = []string{"Mcp-Protocol-Version", newer, "Mcp-Method", "tools/call", "Mcp-Name", "execute_command"}

// TestCallsOfOthers: two users make calls with the same id and the same token for progress. Each hears of their own call
// alone, and no cancellation of one ends a call of the other one.
func TestCallsOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required")
	accept := []string{"Accept", "application/json, text/event-stream"}
	token, session := map[string]string{}, map[string]string{}
	for _, user := range []string{"ann", "eve"} {
		token[user] = s.token(user)
		with := append(credentials(token[user]), accept...)
		_, header, text := s.post("/mcp", hello, with...)
		if session[user] = header.Get("Mcp-Session-Id"); session[user] == "" {
			t.Fatal(text)
		}
		s.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			append(with, "Mcp-Session-Id", session[user])...)
	}
	meta := map[string]string{older: `"progressToken":"same"`, newer: `"progressToken":"same",` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t",` +
		`"version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`}
	// post sends a message as a user, of whoever's session.
	post := func(era, user, whose, body string) (int, string) {
		header := append(credentials(token[user]), accept...)
		if era == older {
			header = append(header, "Mcp-Session-Id", session[whose], "Mcp-Protocol-Version", older)
		} else {
			header = append(header, eraHeaders...)
		}
		status, _, text := s.post("/mcp", body, header...)
		return status, text
	}
	call := func(era, user, command string) string {
		_, text := post(era, user, user, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{`+
			`"name":"execute_command","arguments":{"command":%q,"session_id":"home"},"_meta":{%s}}}`, command, meta[era]))
		return text
	}
	runs := func(user, file string) {
		t.Helper()
		until(t, user+"'s command runs", func() bool {
			status, _, _ := s.request("GET", "/v1/sessions/home/files/workspace/"+file, nil, credentials(token[user])...)
			return status == http.StatusOK
		})
	}
	for _, era := range []string{older, newer} {
		var calls sync.WaitGroup
		answers := map[string]*string{"ann": new(string), "eve": new(string)}
		for user, answer := range answers {
			calls.Go(func() {
				*answer = call(era, user, fmt.Sprintf("touch runs-%s; for i in 1 2 3 4 5 6 7 8; do echo word-of-%s-$i; sleep 0.5; "+
					"done", era, user))
			})
		}
		runs("ann", "runs-"+era)
		cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"_meta":{` + meta[era] + `}}}`
		if status, text := post(older, "eve", "ann", cancel); status != http.StatusNotFound {
			t.Errorf("%s: a cancellation in a session of somebody else is answered with %d %s", era, status, text)
		}
		runs("eve", "runs-"+era)
		post(era, "eve", "eve", cancel) // her own one ends, or not: that is hers
		calls.Wait()
		if a := *answers["ann"]; !strings.Contains(a, "word-of-ann-8") || !strings.Contains(a, "notifications/progress") ||
			strings.Contains(a, "word-of-eve") {
			t.Errorf("%s: ann is answered with %s", era, a)
		}
		if a := *answers["eve"]; strings.Contains(a, "word-of-ann") {
			t.Errorf("%s: eve is answered with %s", era, a)
		}
	}
	// Ann's own cancellation does end her call.
	var calls sync.WaitGroup
	calls.Go(func() { call(older, "ann", "touch waits; sleep 4321") })
	runs("ann", "waits")
	post(older, "ann", "ann", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	calls.Wait()
}

// TestKeysOfOthers: an idempotency key that somebody else has used, for the same request or for another one, is as one that
// nobody has used.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required")
	ann, eve, mal := s.token("ann"), s.token("eve"), s.token("mal")
	s.request("PUT", "/v1/sessions/home/files/workspace/mine", strings.NewReader("ann's own"), credentials(ann)...)
	const same, another = `echo x >>runs; echo run $(wc -l <runs); cat mine`, `echo x >>runs; echo other run $(wc -l <runs)`
	for way, ask := range map[string]func(token, command string) (int, string){
		"header": func(token, command string) (int, string) {
			status, _, text := s.post("/v1/tools/execute_command", fmt.Sprintf(`{"command":%q}`, command),
				append(credentials(token), "Idempotency-Key", "k")...)
			return status, text
		},
		"argument": func(token, command string) (int, string) {
			status, _, text := s.post("/v1/tools/execute_command", fmt.Sprintf(`{"command":%q,"idempotency_key":"k"}`,
				command), credentials(token)...)
			return status, text
		},
	} {
		for _, token := range []string{ann, eve, mal} {
			s.request("DELETE", "/v1/sessions/home/files/workspace/runs", nil, credentials(token)...)
		}
		for range 2 { // the second one is not run again
			if _, text := ask(ann, same); !strings.Contains(text, "run 1") || !strings.Contains(text, "ann's own") {
				t.Fatalf("%s: ann: %s", way, text)
			}
		}
		if _, text := ask(eve, same); !strings.Contains(text, "run 1") || strings.Contains(text, "ann's own") {
			t.Errorf("%s: the same request with somebody else's key: %s", way, text)
		}
		if status, text := ask(mal, another); status != http.StatusOK || !strings.Contains(text, "other run 1") {
			t.Errorf("%s: another request with somebody else's key: %d %s", way, status, text)
		}
		if status, text := ask(ann, another); status < 400 {
			t.Errorf("%s: another request with ann's own key: %d %s", way, status, text)
		}
	}
}
