package test

import (
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "modernc.org/sqlite"
)

// Events are there after a restart and after a crash, with their chain whole; a removed one shows; and users
// see their own alone, of the past too.
func TestEventsAreStored(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "events.jsonl")
	s := start(t, "SANDLOT_EVENTS_FILE="+file)
	ann, bob := s.token("ann"), s.token("bob")
	c := s.connect(older, ann, nil)
	for range 20 {
		c.call("get_sessions", nil)
	}
	s.connect(older, bob, nil).call("get_sessions", nil)
	events := func(args ...string) string {
		t.Helper()
		out, errs, code := s.cli(append([]string{"events"}, args...)...)
		if code != 0 {
			t.Fatalf("%v: %d %s%s", args, code, out, errs)
		}
		return out
	}
	before := events("--json")
	count := func(text, what string) int { return strings.Count(text, what) }
	if n := count(before, `"operation":"session.list"`); n != 21 || count(before, `"token_id":"tok_`) < 21 ||
		count(before, `"address":"127.0.0.1"`) < 21 || count(before, `"answer_bytes":`) < 21 {
		t.Fatalf("%d calls in\n%s", n, before)
	}

	s.stop()
	s.launch()
	if after := events("--json"); !strings.HasPrefix(after, before) ||
		count(after, `"operation":"server.stopped","outcome":"ok"`) != 1 {
		t.Errorf("after a restart there is\n%s\nbefore it\n%s", after, before)
	}
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	all := events("--json")
	if !strings.HasPrefix(all, before) || count(all, `"outcome":"after_crash"`) != 1 {
		t.Errorf("after a crash there is\n%s", all)
	}
	if out := events("verify"); !strings.Contains(out, "main: ") || !strings.Contains(out, "head ") {
		t.Errorf("verify says %s", out)
	}
	shown := filepath.Join(t.TempDir(), "shown.jsonl")
	if err := os.WriteFile(shown, []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, shown} {
		if out := events("verify", path); !strings.Contains(out, "events are whole") {
			t.Errorf("verify %s says %s", path, out)
		}
	}
	if out := events("--limit", "3"); strings.Count(out, "\n") != 3 {
		t.Errorf("the newest 3 are\n%s", out)
	}
	if out := events("--principal", "bob", "--since", "1h", "--kind", "call"); count(out, "session.list") != 1 ||
		strings.Contains(out, "user:ann") {
		t.Errorf("bob did\n%s", out)
	}
	if out, code := s.cliAs(bob, "", "events", "--json"); code != 0 || strings.Contains(out, "user:ann") ||
		count(out, "session.list") != 1 {
		t.Errorf("bob sees %d\n%s", code, out)
	}
	if out, code := s.cliAs(bob, "", "events", "--principal", "ann"); code == 0 || !strings.Contains(out, "operator") {
		t.Errorf("bob asks for ann's: %d\n%s", code, out)
	}

	db, err := sql.Open("sqlite", filepath.Join(s.State, "sandlot.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`DELETE FROM events WHERE id = 7`); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := s.cli("events", "verify"); code == 0 || !strings.Contains(errs, "broken at event 8") {
		t.Errorf("without event 7 verify says %d %s%s", code, out, errs)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", st, err)
	}
}

// A collector gets the calls of a real server, with the parent that the client names in _meta or in a header, and
// none of what it was given; the log and the settings do not show the headers for the collector.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]string{} // the bodies by path
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] += string(b)
		if r.Header.Get("X-Key") != "hunter2-of-the-collector" {
			t.Errorf("headers: %v", r.Header)
		}
	}))
	defer collector.Close()
	s := start(t, "SANDLOT_ON_STOP=end", "SANDLOT_TELEMETRY_OTLP_ENDPOINT="+collector.URL, "SANDLOT_LOG_LEVEL=DEBUG",
		"SANDLOT_TELEMETRY_OTLP_HEADERS=X-Key=hunter2-of-the-collector")
	s.post("/v1/tools/execute_command", `{"command":"echo hunter2"}`, "Traceparent",
		"00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01")
	s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sessions","arguments":{},`+
		`"_meta":{"traceparent":"00-a1a2a3a4a5a6a7a8a9aaabacadaeafb0-b1b2b3b4b5b6b7b8-01"}}}`)
	c := s.connect(older, "", nil)
	c.call("get_sessions", nil)
	out, _, _ := s.cli("config")
	until(t, "the telemetry", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(got["/v1/traces"], "tools/call get_sessions") &&
			strings.Contains(got["/v1/traces"], "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10") &&
			strings.Contains(got["/v1/traces"], "\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8") &&
			strings.Contains(got["/v1/logs"], "shell.execute") && strings.Contains(got["/v1/logs"], "mcp.session.id")
	})
	s.stop()
	mu.Lock()
	for path, body := range got {
		if strings.Contains(body, "hunter2") {
			t.Errorf("%s got a value", path)
		}
	}
	if !strings.Contains(got["/v1/metrics"], "sandlot_tool_call_seconds") {
		t.Errorf("there are no metrics")
	}
	mu.Unlock()
	if !strings.Contains(out, "X-Key=…") || strings.Contains(out, "hunter2") {
		t.Errorf("the settings are\n%s", out)
	}
	s.launch() // for what every test does at its end
	s.holds("hunter2")
}

// Nothing that the server writes has a secret: the state folder with the database and its write-ahead log, the log,
// events, the exported file, metrics, and what a collector gets. Secrets are stored ones, tokens, arguments, output,
// contents of files, and names of tools and arguments that a client invents. (The log of the level DEBUG has
// the paths of requests.)
func TestNothingWrittenHasSecrets(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent.Write(b)
	}))
	defer collector.Close()
	file := filepath.Join(t.TempDir(), "events.jsonl")
	// What a sandbox has in its memory is in the image of one that sleeps (docs/security.md), so none does here.
	s := start(t, "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_EVENTS_FILE="+file, "SANDLOT_ON_STOP=end",
		"SANDLOT_TELEMETRY_OTLP_ENDPOINT="+collector.URL)
	const value = "hunter2canary" // all other secrets contain it
	ann, eve := s.token("ann"), s.token("eve", "--role", "operator")
	s.put(ann, "odd.py")
	if out, code := s.cliAs(ann, value, "secret", "set", "KEY"); code != 0 {
		t.Fatal(out)
	}
	if out, code := s.cliAs(ann, "", "mcp", "add", "odd", "--env", "ODD_KEY=${secret:KEY}", "--", "python3",
		"/workspace/odd.py", "plain", "odd"); code != 0 {
		t.Fatal(out)
	}
	bearer := []string{"Authorization", "Bearer " + ann}
	for _, version := range []string{older, newer} {
		c := s.connect(version, ann, nil)
		for range 10 {
			c.call("execute_command", args{"command": "X=" + value + "; echo $X; echo $X >&2; exit 3"})
			c.call("execute_code", args{"code": "raise Exception('" + value + "')"})
			c.call("sandbox_write_file", args{"path": "/workspace/f", "content": value})
			c.call("sandbox_read_file", args{"path": "/workspace/f"})
		}
		for name := range c.toolNames() {
			if strings.HasSuffix(name, "_env") && !strings.Contains(c.call(name, nil).Text, value) {
				t.Error("the third-party server does not have its secret: this test proves nothing")
			}
		}
		_, _ = c.try(t.Context(), value, args{})
		_, _ = c.try(t.Context(), "get_sessions", args{value: value})
	}
	s.post("/v1/tools/execute_command", `{"command": "`+value, bearer...)
	s.request("GET", "/v1/secrets", nil, bearer...)
	s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+value)

	_, _, metrics := s.request("GET", "/metrics", nil, "Authorization", "Bearer "+s.token("prom", "--role", "metrics"))
	events, _, _ := s.cli("events", "--json", "--since", "1h")
	_, _, shown := s.request("GET", "/v1/events?follow=false", nil, "Authorization", "Bearer "+eve)
	until(t, "the telemetry", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(sent.String(), "sandbox_read_file")
	})
	s.holds(value)
	s.stop() // which sends the rest
	exported, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	for name, text := range map[string]string{"metrics": metrics, "events": events, "the stream": shown,
		"the file": string(exported), "telemetry": sent.String()} {
		if !strings.Contains(text, "execute_command") && !strings.Contains(text, "shell.execute") {
			t.Errorf("%s: nothing of the calls is there: %.200s", name, text)
		}
		for _, secret := range []string{value, ann, eve} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: has %s", name, secret)
			}
		}
	}
	mu.Unlock()
	s.launch()
	for _, secret := range []string{value, ann, eve} {
		s.holds(secret)
	}
}
