package test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// What happens is told: to each user what is theirs, to the operator all, and to
// nobody what a call was given.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_MCP_CONSENT=ask")
	ann, bob := s.token("ann"), s.token("bob")
	eve := s.token("eve", "--role", "operator")

	follow := s.as(exec.Command(s.program, "--state-dir", s.State, "events", "--follow", "--json"))
	follow.Env = s.env
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { follow.Process.Kill() })
	followed := make(chan string, 1000)
	go func() {
		defer close(followed)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			followed <- lines.Text()
		}
	}()

	a := s.connect(older, ann, nil)
	session := a.shell("new", "echo hunter2; curl -sS http://192.0.2.1/ || true").session()
	if _, err := a.try(t.Context(), "connect_external_mcp", args{"name": "docs", "command": "true"}); err == nil {
		t.Error("who cannot be asked connects a server")
	}
	a.call("stop_session", args{"session_id": session})
	s.connect(older, bob, nil).call("get_sessions", nil)

	read := func(token string, query ...string) (all []string) {
		t.Helper()
		path := "/v1/events?follow=false" + strings.Join(query, "")
		status, _, text := s.request("GET", path, nil, "Authorization", "Bearer "+token)
		if status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		for line := range strings.SplitSeq(text, "\n") {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			var e struct{ Kind, Principal, Operation, Outcome, Session_ID string }
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(data, "hunter2") {
				t.Errorf("what was printed is in %s", data)
			}
			where := map[bool]string{true: " there", false: ""}[e.Session_ID == session]
			all = append(all, e.Principal+" "+e.Kind+" "+e.Operation+" "+e.Outcome+where)
		}
		return all
	}
	want := []string{"user:ann session session.created ok there", "user:ann egress network.connect refused there",
		"user:ann call shell.execute ok there", "user:ann consent consent.ask FORBIDDEN",
		"user:ann call mcp.connect FORBIDDEN", "user:ann session session.stopped ok there",
		"user:ann session session.removed ok there", "user:ann call session.stop ok there"}
	has := func(who string, got []string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+w+"\n") {
				t.Errorf("%s does not see %q:\n%s", who, w, strings.Join(got, "\n"))
			}
		}
	}
	mine := read(ann)
	has("ann", mine, want...)
	for _, e := range append(mine, read(bob)...) {
		if !strings.HasPrefix(e, "user:ann ") && !strings.HasPrefix(e, "user:bob ") {
			t.Errorf("a user sees %q", e)
		}
	}
	if all := strings.Join(read(bob), "\n"); strings.Contains(all, "user:ann") ||
		!strings.Contains(all, "user:bob call session.list ok") {
		t.Errorf("bob sees\n%s", all)
	}
	has("the operator", read(eve), append(want, "user:bob call session.list ok")...)
	if all := read(eve, "&kind=consent"); len(all) != 1 {
		t.Errorf("of the kind consent: %q", all)
	}
	// `sandlot token` writes into the store around the server.
	until(t, "the events of the new tokens", func() bool {
		return strings.Count(strings.Join(read(eve), "\n"), " token token.created ok") == 3
	})
	list, _, _ := s.cli("token", "list")
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); f[2] == "bob" {
			s.cli("token", "revoke", f[0])
		}
	}
	until(t, "the event of the revoked token", func() bool {
		return slices.Contains(read(eve), "user:bob token token.revoked ok")
	})
	// The command shows the same, over the socket.
	text, errs, code := s.cli("events", "--kind", "consent,egress")
	if code != 0 || !strings.Contains(text, "192.0.2.1:80") || !strings.Contains(text, "consent.ask") ||
		strings.Contains(text, "shell.execute") {
		t.Errorf("%d %s %s", code, text, errs)
	}
	for deadline := time.After(30 * time.Second); ; {
		select {
		case line, ok := <-followed:
			if !ok {
				t.Fatal("the command ended")
			}
			if strings.Contains(line, `"principal":"user:bob"`) && strings.Contains(line, "session.list") {
				began := time.Now()
				s.stop() // which ends the command too
				for range followed {
				}
				if err := follow.Wait(); err == nil {
					t.Error("the command ends well though the server stops")
				}
				t.Log("the server stopped after", time.Since(began))
				s.launch() // for what every test does at its end
				return
			}
		case <-deadline:
			t.Fatal("the command does not follow")
		}
	}
}
