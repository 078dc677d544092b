package test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTrafficQuota: what a principal's sessions move on a day is bounded for all of them together, whatever becomes of
// the sessions and of the server, until the operator allows more; and programs and their user learn of it.
func TestTrafficQuota(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	s.applySettings("quotas:\n  users: {traffic_mb_per_day: 1}\n")
	c := s.connect(older, "", nil)
	get := w.script("curl -sS -m 5 http://web.test:PORT/hello; true")
	if r := c.shell("home", get); !strings.Contains(r.All, "hello from web.test") {
		t.Fatalf("at first: %q", r.All)
	}
	const reason = "your sessions have used all 1 MB of network that your quota allows for a day"
	const note = "Network access refused: web.test:PORT: "
	big := w.script("curl -sS http://web.test:PORT/big | wc -c")
	if r := c.shell("new", big); !strings.Contains(r.All, reason) || strings.Contains(r.Text, strconv.Itoa(big256)) {
		t.Errorf("the download: %q", r.All)
	}
	refused := func(when, session string) {
		t.Helper()
		r := c.shell(session, get)
		if strings.Contains(r.All, "hello from") || !strings.Contains(r.All, w.script(note)+reason) ||
			!strings.Contains(r.All, "00:00 UTC") {
			t.Errorf("%s: %q", when, r.All)
		}
	}
	refused("after the download", "home")
	refused("in a new session", "new")
	if text := c.call("get_sessions", nil).Text; !strings.Contains(text, "of 1 MB of network today") {
		t.Errorf("get_sessions: %s", text)
	}
	if out, errs, code := s.cli("quota"); code != 0 || !regexp.MustCompile(`(?m)^traffic_mb_per_day +[12] +1$`).
		MatchString(out) || !regexp.MustCompile(`(?m)^secrets +0 +-$`).MatchString(out) {
		t.Errorf("quota: %d %s %s", code, out, errs)
	}
	time.Sleep(2500 * time.Millisecond) // it is stored every two seconds
	s.kill()
	s.launch()
	c = s.connect(older, "", nil)
	refused("after a crash of the server", "new")
	s.applySettings("quotas:\n  users: {traffic_mb_per_day: 1000}\n")
	if r := c.shell("home", get); !strings.Contains(r.All, "hello from web.test") {
		t.Errorf("with more: %q", r.All)
	}
}

// TestDiskQuota: the files of all of a principal's sessions are bounded, those of stopped ones too. What programs write
// is measured; what is uploaded counts at once. Files can be read, listed and removed, and then there is room again.
func TestDiskQuota(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.applySettings("quotas:\n  users: {disk_mb: 20}\n")
	c := s.connect(older, "", nil)
	upload := func(name string, megabytes int) (int, string) {
		t.Helper()
		code, _, text := s.request("PUT", "/v1/sessions/home/files/workspace/"+name,
			strings.NewReader(strings.Repeat("x", megabytes<<20)))
		return code, text
	}
	create := func() (int, string) {
		t.Helper()
		code, _, text := s.request("POST", "/v1/sessions", strings.NewReader("{}"))
		return code, text
	}
	full := func(when string, code int, text string) {
		t.Helper()
		if code != 429 || !strings.Contains(text, "RESOURCE_LIMIT_EXCEEDED") || !strings.Contains(text, `"disk_mb"`) ||
			!strings.Contains(text, `"limit":20`) || !strings.Contains(text, "stop_session") {
			t.Errorf("%s: %d %s", when, code, text)
		}
	}
	const write = "dd if=/dev/zero bs=1M status=none count="
	other := c.shell("new", write+"8 of=/workspace/big").session()
	if code, text := upload("a", 7); code >= 300 {
		t.Fatalf("the first upload: %d %s", code, text)
	}
	until(t, "what programs have written is measured", func() bool {
		text := c.call("get_sessions", nil).Text
		return strings.Contains(text, " 15 of 20 MB of disk") || strings.Contains(text, " 16 of 20 MB of disk")
	})
	code, text := upload("b", 6)
	full("an upload that does not fit", code, text)
	c.shell("home", write+"7 of=/workspace/b")
	until(t, "the quota is reached", func() bool { code, _ := create(); return code == 429 })
	code, text = create()
	full("another session", code, text)
	_, err := c.try(t.Context(), "sandbox_write_file", args{"path": "c", "content": "x"})
	wantFault(t, err, -32600, "RESOURCE_LIMIT_EXCEEDED", "quota is 20 MB")
	for tool, a := range map[string]args{"sandbox_read_file": {"path": "b", "limit": 10}, "sandbox_list_files": {},
		"execute_command": {"command": "ls /workspace"}} {
		if _, err := c.try(t.Context(), tool, a); err != nil {
			t.Errorf("%s: %v", tool, err)
		}
	}
	time.Sleep(2500 * time.Millisecond) // it is stored every two seconds
	s.kill()
	s.launch()
	code, text = create()
	full("after a crash of the server", code, text)
	c = s.connect(older, "", nil)
	c.shell("home", "rm /workspace/a")
	until(t, "what was removed makes room", func() bool { code, _ := create(); return code < 300 })
	c.shell("home", write+"7 of=/workspace/a")
	until(t, "the quota is reached again", func() bool { code, _ := create(); return code == 429 })
	c.call("stop_session", args{"session_id": other})
	if code, text := create(); code >= 300 {
		t.Errorf("after the end of a session: %d %s", code, text)
	}
}

// TestReadQuota: users read their own quotas, and operators those of all, over HTTP and by the command line.
func TestReadQuota(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required")
	s.applySettings("quotas:\n  users: {disk_mb: 20, secrets: 3, cpus: 2.5}\n  services: {sessions: 7}\n")
	ann, gitu := s.token("ann"), s.token("gitu", "--service")
	s.request("PUT", "/v1/secrets/ONE", strings.NewReader("x"), credentials(ann)...)
	s.request("POST", "/v1/sessions", strings.NewReader("{}"), credentials(ann)...)
	has := func(who, text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %s is not in %s", who, part, text)
			}
		}
	}
	const own = "/v1/quota"
	_, _, text := s.request("GET", own, nil, credentials(ann)...)
	has("ann", text, `"principal":"user:ann"`, `{"name":"secrets","used":1,"limit":3}`,
		`{"name":"cpus","used":1,"limit":2.5}`, `{"name":"sessions","used":1}`, `{"name":"disk_mb","used":0,"limit":20}`)
	_, _, text = s.request("GET", own, nil, credentials(gitu)...)
	has("gitu", text, `{"name":"sessions","used":0,"limit":7}`, `{"name":"disk_mb"}`)
	for _, path := range []string{own + "?principal=ann", own + "?principal=nobody"} {
		if code, _, text := s.request("GET", path, nil, credentials(gitu)...); code != 404 {
			t.Errorf("%s of another: %d %s", path, code, text)
		}
	}
	if code, _, text := s.request("GET", own, nil); code != 401 {
		t.Errorf("without a token: %d %s", code, text)
	}
	out, errs, code := s.cli("quota", "--user", "ann", "--json")
	if has("the operator", out, `"user:ann"`, `"secrets"`); code != 0 {
		t.Errorf("the operator: %d %s", code, errs)
	}
	if out, errs, code := s.cli("quota", "--user", "a/b/c"); code == 0 {
		t.Errorf("a wrong name: %s %s", out, errs)
	}
}

// TestUsage: what a session has used is there by day, over a clean stop of the server too, once and not twice, for its
// user, and for operators.
func TestUsage(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob := s.token("ann"), s.token("bob")
	agent := s.connect(older, ann, nil)
	session := agent.call("execute_code", args{"code": "x = 0\nfor i in range(20_000_000): x += i\nprint(x)"}).session()
	type row struct {
		Day, Principal string
		Session        string  `json:"session_id"`
		CPU            float64 `json:"cpu_seconds"`
		Memory         int64   `json:"memory_bytes"`
		Calls          int64
	}
	read := func(token, path string) (rows []row) {
		t.Helper()
		status, _, text := s.request("GET", path, nil, "Authorization", "Bearer "+token)
		var all struct{ Days []row }
		if err := json.Unmarshal([]byte(text), &all); err != nil || status != 200 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
		return all.Days
	}
	of := func() (r row) {
		t.Helper()
		for _, r := range read(ann, "/v1/usage") {
			if r.Session == session {
				return r
			}
		}
		t.Fatal("the session has no usage")
		return r
	}
	before := of()
	if before.CPU < 0.1 || before.Memory < 1<<20 || before.Calls < 1 || before.Day != time.Now().UTC().Format(time.DateOnly) {
		t.Errorf("it has used %+v", before)
	}
	if rows := read(bob, "/v1/usage"); slices.ContainsFunc(rows, func(r row) bool { return r.Principal != "user:bob" }) {
		t.Errorf("bob sees %+v", rows)
	}
	for _, path := range []string{"/v1/usage?principal=ann", "/v1/usage/all"} {
		if status, _, text := s.request("GET", path, nil, "Authorization", "Bearer "+bob); status != 404 && status != 403 {
			t.Errorf("%s by another user: %d %s", path, status, text)
		}
	}
	s.restart()
	after := of()
	if after.CPU < before.CPU || after.CPU > 2*before.CPU+5 || after.Calls < before.Calls {
		t.Errorf("after a restart of the server: %+v, before: %+v", after, before)
	}
	out, errs, code := s.cli("usage", "--all")
	if code != 0 || !regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d +user:ann +[1-9]?[0-9.]+ s +\d+ MB`).MatchString(out) {
		t.Errorf("sandlot usage --all: %d %s %s", code, out, errs)
	}
	if out, code := s.cliAs(ann, "", "usage", "--sessions"); code != 0 || !strings.Contains(out, session) {
		t.Errorf("sandlot usage --sessions: %d %s", code, out)
	}
}
