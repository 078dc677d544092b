package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// refused calls a tool that must be refused because its session is paused.
func (c *client) refused(tool string, a args, words ...string) {
	c.t.Helper()
	_, err := c.try(c.t.Context(), tool, a)
	for _, word := range append([]string{"Session paused: ", "No call wakes it"}, words...) {
		if err == nil || !strings.Contains(err.Error(), word) {
			c.t.Errorf("%s %v: %v, without %q", tool, a, err, word)
		}
	}
}

// state is the answer about a session's life.
func (s *server) state(method, path, body string, header ...string) (status int, fields map[string]any) {
	s.t.Helper()
	status, _, text := s.request(method, path, strings.NewReader(body), append(header, "Content-Type",
		"application/json")...)
	if err := json.Unmarshal([]byte(text), &fields); err != nil && text != "" {
		s.t.Fatalf("%s %s: %d %q", method, path, status, text)
	}
	return status, fields
}

// TestPause: a paused session stands still with all that it has, whatever asks for it and whatever happens to the server,
// until it is resumed.
func TestPause(t *testing.T) {
	t.Parallel()
	testPause(t, start(t, "SANDLOT_SNAPSHOTS=true"))
}

// TestPauseUnprivileged is the same with the server of a user who is not root.
func TestPauseUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestPause is that already: this is an unprivileged user")
	}
	t.Parallel()
	testPause(t, startUnprivileged(t))
}

func testPause(t *testing.T, s *server) {
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1").session()
	c.shell(id, "echo kept > /workspace/f")
	c.call("execute_command", args{"command": "python3 -m http.server 8080", "background": true, "session_id": id})
	c.call("execute_command", args{"command": "while sleep 0.05; do date >> /workspace/ticks; done", "background": true,
		"session_id": id})
	link := s.expose(c, args{"port": 8080, "session_id": id, "wait": 30})
	if code, _, _ := link.get("/f", tokenHeader, link.token); code != http.StatusOK {
		t.Fatalf("the port: %d", code)
	}
	if out, errs, code := s.cli("sessions", "pause", id); code != 0 || out != id+" is paused\n" {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	ticks := s.ticks()
	path := "/v1/sessions/" + id
	stands := func(when string) {
		t.Helper()
		c.refused("execute_code", args{"code": "x", "session_id": id}, "its user paused it at 20", "resume_session")
		c.refused("snapshot_session", args{"session_id": id})
		c.refused("fork_session", args{"session_id": id})
		if code, _, text := s.request("GET", path+"/files/workspace/f", nil); code != http.StatusConflict ||
			!strings.Contains(text, "SESSION_PAUSED") {
			t.Errorf("%s, a file: %d %s", when, code, text)
		}
		if code, _, text := link.get("/f", tokenHeader, link.token); code != http.StatusConflict ||
			!strings.Contains(text, "paused") {
			t.Errorf("%s, a port: %d %s", when, code, text)
		}
		if out, errs, code := s.cli("exec", "--session", id, "true"); code == 0 || !strings.Contains(errs, "resume") {
			t.Errorf("%s, the command line: %d %q %q", when, code, out, errs)
		}
		if got := sessionStatus(c, id); got != "paused" {
			t.Errorf("%s it is %v", when, got)
		}
		if f := s.ps(false); s.sandboxOf(id) != "" || !slices.ContainsFunc(f.Asleep,
			func(a sleepingSession) bool { return a.Session == id && a.Paused }) {
			t.Errorf("%s, sandlot ps: %+v", when, f)
		}
		if now := s.ticks(); now != ticks {
			t.Errorf("%s its job does not stand still: %d, before %d", when, now, ticks)
		}
	}
	stands("at first")
	for what, end := range map[string]func(){"after kill -9": s.kill, "after a stop": s.stop} {
		end()
		transport.CloseIdleConnections()
		s.launch()
		c = s.connect(older, "", nil)
		stands(what)
	}
	if status, f := s.state("POST", path+"/resume", ""); status != http.StatusOK || f["session_id"] != id {
		t.Fatalf("%d %v", status, f)
	}
	until(t, "its job goes on", func() bool { return s.ticks() > ticks })
	c.want(id, "x", "1")
	until(t, "its server answers", func() bool {
		code, _, _ := link.get("/f", tokenHeader, link.token)
		return code == http.StatusOK
	})
	if r := c.call("stop_session", args{"session_id": id, "pause": true}); r.Fields["paused"] != true {
		t.Errorf("%v", r.Fields)
	}
	c.refused("execute_code", args{"code": "x", "session_id": id})
	if r := c.call("resume_session", args{"session_id": id}); r.Fields["session_id"] != id {
		t.Errorf("%v", r.Fields)
	}
	c.want(id, "x", "1")
	s.homePaused(t, c)
	out, errs, code := s.cli("events", "--since", "1h", "--json")
	for _, o := range []string{`"session.paused"`, `"session.resumed"`, `"session.pause"`, `"session.resume"`} {
		if code != 0 || !strings.Contains(out, o) {
			t.Errorf("no event %s: %d %q", o, code, errs)
		}
	}
	c.call("stop_session", args{"session_id": id, "pause": true})
	c.call("stop_session", args{"session_id": id}) // the end of the test looks for its image
}

// ticks counts what the job of the one session that has one has written.
func (s *server) ticks() (n int) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.State, "workspaces", "*", "ticks"))
	if err != nil || len(files) != 1 {
		s.t.Fatalf("%q, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// homePaused: a home that is paused serves no third-party server, and its tools say why.
func (s *server) homePaused(t *testing.T, c *client) {
	t.Helper()
	c.code("home", "y = 7")
	s.put("", "odd.py")
	if out, errs, code := s.cli("mcp", "add", "odd", "--", "python3", "/workspace/odd.py", "plain", "odd"); code != 0 {
		t.Fatal(out, errs)
	}
	say := ""
	for name := range c.toolNames() {
		if strings.HasSuffix(name, "_say") {
			say = name
		}
	}
	c.call(say, args{"text": "hello"})
	if _, errs, code := s.cli("sessions", "pause", "home"); code != 0 {
		t.Fatal(errs)
	}
	if r, err := c.try(t.Context(), say, args{"text": "hello"}); err == nil && !r.IsError ||
		!strings.Contains(fmt.Sprint(r, err), "paused") {
		t.Errorf("the third-party tool: %+v, %v", r, err)
	}
	c.refused("execute_code", args{"code": "y"})
	if _, errs, code := s.cli("sessions", "resume", "home"); code != 0 {
		t.Fatal(errs)
	}
	c.want("home", "y", "7")
	if r := c.call(say, args{"text": "hello"}); !strings.Contains(r.All, "hello") {
		t.Errorf("the third-party tool: %q", r.All)
	}
}

// TestPauseOfOthers: two users never see, pause, resume or end each other's sessions. What an operator has paused, an
// operator alone resumes. Rules decide about both.
func TestPauseOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t)
	tokens := map[string]string{"ann": s.token("ann"), "bob": s.token("bob"),
		"operator": s.token("root", "--role", "operator")}
	bearer := func(who string) []string { return []string{"Authorization", "Bearer " + tokens[who]} }
	ann := s.connect(older, tokens["ann"], nil)
	id := ann.code("new", "x = 1").session()
	path := "/v1/sessions/" + id
	must := func(who, method, path, body string, want int) map[string]any {
		t.Helper()
		status, f := s.state(method, path, body, bearer(who)...)
		if status != want {
			t.Errorf("%s by %s: %d %v, want %d", method+" "+path, who, status, f, want)
		}
		return f
	}
	must("ann", "PATCH", path, `{"name":"mine","labels":{"team":"web"}}`, 200)
	for range 2 {
		for _, p := range []string{path, "/v1/sessions/mine"} {
			must("bob", "POST", p+"/pause", "", 404)
			must("bob", "POST", p+"/resume", "", 404)
			must("bob", "PATCH", p, `{"ends_in":"1s"}`, 404)
			must("bob", "DELETE", p, "", 404)
			must("bob", "GET", p, "", 404)
		}
		must("ann", "POST", path+"/pause", "", 200)
	}
	must("operator", "POST", path+"/pause", "", 200)
	must("ann", "POST", path+"/resume", "", 409)
	must("ann", "DELETE", path, "", 409)
	ann.refused("execute_code", args{"code": "x", "session_id": id}, "an operator of this server paused it")
	_, err := ann.try(t.Context(), "resume_session", args{"session_id": id})
	_, errStop := ann.try(t.Context(), "stop_session", args{"session_id": id})
	for _, err := range []error{err, errStop} {
		if err == nil || !strings.Contains(err.Error(), "Only an operator") {
			t.Errorf("%v", err)
		}
	}
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	ann = s.connect(older, tokens["ann"], nil)
	must("ann", "POST", path+"/resume", "", 409)
	must("operator", "POST", path+"/resume", "", 200)
	ann.want(id, "x", "1")
	s.applySettings("policy:\n  rules: [\"deny ann session.pause\", \"deny bob session.resume\"]\n")
	until(t, "the rules hold", func() bool {
		status, _ := s.state("POST", path+"/pause", "", bearer("ann")...)
		if status == http.StatusOK { // not yet
			must("ann", "POST", path+"/resume", "", 200)
		}
		return status == http.StatusForbidden
	})
	if _, err := ann.try(t.Context(), "stop_session", args{"session_id": id, "pause": true}); err == nil ||
		!strings.Contains(err.Error(), "session.pause") {
		t.Errorf("the tool, which a rule denies: %v", err)
	}
	ann.want(id, "x", "1")
}

// TestEndOfLife: a session ends, or is paused, when its time has come: asleep, and while the server is down, too. It is
// not woken for that, and its results have said so before.
func TestEndOfLife(t *testing.T) {
	t.Parallel()
	s := start(t, sleepy...)
	c := s.connect(older, "", nil)
	begin := func(code, in, on string) (id string) {
		t.Helper()
		id = c.code("new", code).session()
		if status, f := s.state("PATCH", "/v1/sessions/"+id, fmt.Sprintf(`{"ends_in":%q,"on_end":%q}`, in, on)); status != 200 ||
			f["on_end"] != on || f["ends_at"] == nil {
			t.Fatalf("%d %v", status, f)
		}
		return id
	}
	woken := func() int {
		out, _, _ := s.cli("events", "--since", "1h", "--json")
		return strings.Count(out, `"session.woken"`)
	}
	stops, pauses := begin("x = 1", "45s", "stop"), begin("x = 2", "45s", "pause")
	if r := c.code(stops, "x"); !strings.Contains(r.All, "This session ends in ") ||
		!strings.Contains(r.All, "it is gone, with its variables") {
		t.Errorf("it is told %q", r.All)
	}
	for _, id := range []string{stops, pauses} {
		until(t, "it sleeps", func() bool { return sessionStatus(c, id) == "hibernated" })
	}
	before := woken()
	until(t, "one is gone", func() bool { return sessionStatus(c, stops) == nil })
	until(t, "one is paused", func() bool { return sessionStatus(c, pauses) == "paused" })
	_, err := c.try(t.Context(), "execute_code", args{"code": "x", "session_id": stops})
	if err == nil || !strings.Contains(err.Error(), "it reached its end (ends_at)") {
		t.Errorf("%v", err)
	}
	c.refused("execute_code", args{"code": "x", "session_id": pauses}, "it reached its end")
	if now := woken(); now != before {
		t.Errorf("%d sessions were woken to end them", now-before)
	}
	c.call("resume_session", args{"session_id": pauses})
	c.want(pauses, "x", "2")

	stops, down := begin("x = 3", "10s", "stop"), begin("x = 4", "10s", "pause")
	before = woken()
	s.stop()
	time.Sleep(11 * time.Second) // until both ends are over
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	c.refused("execute_code", args{"code": "x", "session_id": down}, "it reached its end") // a first call is not faster
	until(t, "one is gone", func() bool { return sessionStatus(c, stops) == nil })
	if now := woken(); sessionStatus(c, down) != "paused" || now != before {
		t.Errorf("it is %v, and %d sessions were woken", sessionStatus(c, down), now-before)
	}
	if _, errs, code := s.cli("sessions", "resume", down); code != 0 {
		t.Error(errs)
	}
	c.want(down, "x", "4")
}

// TestNamesAndParents: a name stands for the id of a session wherever one is named, labels filter lists, and copies tell
// what they are copies of.
func TestNamesAndParents(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	c := s.connect(older, "", nil)
	run := func(args ...string) string {
		t.Helper()
		out, errs, code := s.cli(args...)
		if code != 0 {
			t.Fatalf("%q: %d %q %q", args, code, out, errs)
		}
		return strings.TrimSpace(out)
	}
	id := run("sessions", "new", "--name", "build", "--label", "team=web", "--label", "ci=", "--ends-in", "2h")
	run("exec", "--session", "build", "sh", "-c", "echo kept > /workspace/f")
	if out := run("cp", "build:f", "-"); out != "kept" {
		t.Errorf("cp: %q", out)
	}
	c.want("build", "x = 1; x", "1")
	if r := c.code("build", "x"); r.session() != id {
		t.Errorf("%v", r.Fields)
	}
	other := c.call("execute_code", args{"code": "1", "session_id": "new", "name": "other", "labels": args{"team": "ops"},
		"ends_in": "1h"}).session()
	for filter, want := range map[string]string{"team=web": id, "team=ops": other, "ci": id} {
		if out := run("sessions", "--label", filter); !strings.HasPrefix(out, want) || strings.Contains(out, "\n") {
			t.Errorf("%s: %q", filter, out)
		}
	}
	if status, _ := s.state("PATCH", "/v1/sessions/other", `{"name":"build"}`); status != 400 {
		t.Errorf("two of one name: %d", status)
	}
	run("sessions", "set", "other", "--name", "renamed", "--label", "team-")
	if out := run("sessions", "--json"); !strings.Contains(out, `"renamed"`) || strings.Contains(out, `"ops"`) {
		t.Errorf("%s", out)
	}
	run("snapshot", "create", "build", "good")
	made := run("snapshot", "restore", "good", "--session", "new")
	forked := run("sessions", "fork", "build")
	parents := map[string]any{}
	for _, e := range c.call("get_sessions", nil).Fields["sessions"].([]any) {
		m := e.(map[string]any)
		parents[m["session_id"].(string)] = m["parent"]
	}
	if fmt.Sprint(parents[made]) != fmt.Sprint(args{"session_id": id, "snapshot": "good"}) ||
		fmt.Sprint(parents[forked]) != fmt.Sprint(args{"session_id": id}) || parents[id] != nil {
		t.Errorf("%v", parents)
	}
	list := run("sessions") + c.call("get_sessions", nil).All
	if strings.Count(list, "made of the snapshot good") != 2 || strings.Count(list, "copy of "+id) != 2 {
		t.Errorf("%s", list)
	}
	run("snapshot", "remove", "good")
	run("sessions", "stop", "build")
	if status, _ := s.state("GET", "/v1/sessions/build", ""); status != 404 {
		t.Errorf("a name outlives its session: %d", status)
	}
}
