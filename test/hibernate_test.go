package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleepy are the settings of a server whose sessions sleep after a second.
var sleepy = []string{"SANDLOT_HIBERNATE_JOBS=0", "MSB_SESSION_TIMEOUT=1", "MSB_CLEANUP_INTERVAL=1", "SANDLOT_SNAPSHOTS=true",
	"SANDLOT_MCP_IDLE_TIMEOUT=2s"}

// TestHibernate: a session that nobody uses sleeps, and any use wakes it with all that it had.
func TestHibernate(t *testing.T) {
	t.Parallel()
	testHibernate(t, start(t, sleepy...))
}

// TestHibernateUnprivileged is the same with the server of a user who is not root.
func TestHibernateUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestHibernate is that already: this is an unprivileged user")
	}
	t.Parallel()
	testHibernate(t, startUnprivileged(t, sleepy...))
}

func testHibernate(t *testing.T, s *server) {
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1; open('/tmp/f', 'w').write('mine'); f = open('/tmp/f')").session()
	c.shell(id, "echo kept > /workspace/f")
	link := s.expose(c, args{"port": 8080, "session_id": id})
	again := func() {
		transport.CloseIdleConnections()
		s.launch()
		c = s.connect(older, "", nil)
	}
	file := "/v1/sessions/" + id + "/files/workspace/f"
	for what, use := range map[string]func() *result{ // nil: it has no notice
		"code":           func() *result { return c.code(id, "x") },
		"a command":      func() *result { return c.shell(id, "echo out") },
		"reading a file": func() *result { return c.call("sandbox_read_file", args{"path": "f", "session_id": id}) },
		"writing a file": func() *result {
			return c.call("sandbox_write_file", args{"path": "g", "content": "x", "session_id": id})
		},
		"a file over HTTP": func() *result {
			if code, _, text := s.request("GET", file, nil); code != http.StatusOK || text != "kept\n" {
				t.Errorf("a file over HTTP: %d %q", code, text)
			}
			return nil
		},
		"a port": func() *result {
			if code, _, _ := link.get("/", tokenHeader, link.token); code != http.StatusBadGateway {
				t.Errorf("a port: %d", code)
			}
			return nil
		},
		"sandlot exec": func() *result {
			if out, errs, code := s.cli("exec", "--session", id, "cat", "/tmp/f"); code != 0 || out != "mine" {
				t.Errorf("the command line: %d %q %q", code, out, errs)
			}
			return nil
		},
		"the next server":   func() *result { s.stop(); again(); return nil },
		"one after a crash": func() *result { s.kill(); again(); return nil },
	} {
		until(t, what+": it sleeps", func() bool { return sessionStatus(c, id) == "hibernated" })
		s.looksAsleep(t, id)
		told := use()
		r := c.code(id, "x, f.read(), f.seek(0)")
		if told == nil {
			told = r // what cannot show it leaves it to the next call
		} else if r.Fields["notice"] != nil {
			t.Errorf("after %s it is told twice: %q", what, r.All)
		}
		notice, _ := told.Fields["notice"].(string)
		if !strings.Contains(r.All, "(1, 'mine', 0)") || !strings.HasPrefix(notice, "This session was asleep for ") {
			t.Errorf("after %s: %q, and it is told %q", what, r.All, notice)
		}
		if i := strings.Index(told.All, notice); i == 0 || told == r && r.Text != "(1, 'mine', 0)" {
			t.Errorf("after %s the notice stands before the output: %q", what, told.All)
		}
	}
	s.thirdPartyWakes(t, c)
	out, errs, code := s.cli("events", "--since", "1h", "--json")
	if code != 0 || !strings.Contains(out, `"session.hibernated"`) || !strings.Contains(out, `"session.woken"`) {
		t.Errorf("the events: %d %q %q", code, out, errs)
	}
	until(t, "it sleeps again", func() bool { return sessionStatus(c, id) == "hibernated" })
	c.call("stop_session", args{"session_id": id}) // the end of the test looks for its image
}

// thirdPartyWakes: a home stays awake while a third-party server runs in it, and wakes when one of its tools is called.
func (s *server) thirdPartyWakes(t *testing.T, c *client) {
	t.Helper()
	home := c.code("home", "y = 7").session()
	s.put("", "odd.py")
	if out, errs, code := s.cli("mcp", "add", "odd", "--", "python3", "/workspace/odd.py", "plain", "odd"); code != 0 {
		t.Fatal(out, errs)
	}
	say := func() {
		for name := range c.toolNames() {
			if strings.HasSuffix(name, "_say") {
				if r := c.call(name, args{"text": "hello"}); !strings.Contains(r.All, "hello") {
					t.Errorf("the third-party tool: %q", r.All)
				}
				return
			}
		}
		t.Error("the third-party server has no tool")
	}
	say()
	until(t, "the home sleeps when that has stopped", func() bool { return sessionStatus(c, home) == "hibernated" })
	say()
	if r := c.want("home", "y", "7"); !strings.Contains(r.All, "third-party MCP servers in it start again") {
		t.Errorf("the home was told %q", r.All)
	}
}

// TestIdleClock: by default a background process that waits lets its session fall asleep; one that listens, or uses the
// processor, does not.
func TestIdleClock(t *testing.T) {
	t.Parallel()
	s := start(t, sleepy...)
	c := s.connect(older, "", nil)
	sessions := map[string]string{}
	for what, command := range map[string]string{"waits": "sleep 1000", "works": "while sleep 0.05; do :; done",
		"listens": "python3 -m http.server 8080"} {
		sessions[what] = c.call("execute_command", args{"command": command, "background": true,
			"session_id": "new"}).session()
	}
	thread := c.code("new", "import socket; l = socket.create_server(('', 8081))").session()
	until(t, "the one that waits sleeps", func() bool { return sessionStatus(c, sessions["waits"]) == "hibernated" })
	for range 10 { // as many times as it is looked for idle sessions
		time.Sleep(500 * time.Millisecond)
		for _, id := range []string{sessions["works"], sessions["listens"], thread} {
			if got := sessionStatus(c, id); got == "hibernated" || got == "stopped" {
				t.Fatalf("%v, %s: %v", sessions, id, got)
			}
		}
	}
	if r := c.shell(sessions["waits"], "pgrep -c sleep"); r.Text != "1" {
		t.Errorf("the process that waits: %q", r.All)
	}
	c.code(thread, "l.close()")
	c.shell(sessions["works"], "pkill -f 'sleep 0.05' ; pkill -f 'while sleep' ; true")
	for _, id := range []string{sessions["works"], thread} {
		until(t, "it sleeps when that is over", func() bool { return sessionStatus(c, id) == "hibernated" })
	}
}

// A job that only waits keeps its session awake until it ends, or its time is over.
func TestWaitingJob(t *testing.T) {
	t.Parallel()
	s := start(t, append([]string{"SANDLOT_HIBERNATE_JOBS=15s"}, sleepy[1:]...)...)
	c := s.connect(older, "", nil)
	begin := func(a args) (session string) {
		a["background"], a["session_id"] = true, "new"
		r := c.call("execute_command", a)
		if said := strings.Contains(r.Text, "It keeps the session awake for 15s."); said != (a["timeout"] == nil) {
			t.Errorf("%v: %q", a, r.Text)
		}
		return r.session()
	}
	ends, limited, long := begin(args{"command": "sleep 8; echo done > f"}), begin(args{"command": "sleep 1000", "timeout": 8}),
		begin(args{"command": "sleep 1000"})
	for range 5 {
		time.Sleep(500 * time.Millisecond)
		for _, id := range []string{ends, limited, long} {
			if got := sessionStatus(c, id); got != "running" {
				t.Errorf("%s: %v", id, got)
			}
		}
	}
	for what, id := range map[string]string{"the job has ended": ends, "its time limit is over": limited,
		"the session's time is over": long} {
		until(t, what, func() bool { return sessionStatus(c, id) == "hibernated" })
	}
	if r := c.shell(ends, "cat f"); r.Text != "done" {
		t.Errorf("%q", r.All)
	}
}

// looksAsleep: all lists say that the session sleeps, and wake it not.
func (s *server) looksAsleep(t *testing.T, id string) {
	t.Helper()
	out, errs, code := s.cli("sessions", "--json")
	var list []struct {
		ID     string `json:"session_id"`
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil {
		t.Fatalf("sandlot sessions: %d %q %q", code, out, errs)
	}
	for _, l := range list {
		if l.ID == id && l.Status != "hibernated" {
			t.Errorf("sandlot sessions: %+v", l)
		}
	}
	f := s.ps(false)
	if !slices.ContainsFunc(f.Asleep, func(a sleepingSession) bool {
		return a.Session == id && time.Since(a.Since) < time.Hour
	}) || s.sandboxOf(id) != "" {
		t.Errorf("sandlot ps: %+v", f)
	}
}

// sandboxOf returns the id of a session's sandbox that runs; empty: there is none.
func (s *server) sandboxOf(session string) string {
	for _, b := range s.ps(false).Sandboxes {
		if b.Session == session {
			return b.ID
		}
	}
	return ""
}

func sessionStatus(c *client, id string) any {
	for _, e := range c.call("get_sessions", nil).Fields["sessions"].([]any) {
		if m := e.(map[string]any); m["session_id"] == id {
			return m["status"]
		}
	}
	return nil
}

// TestOnStop: what runs after the server was stopped, what the next one still has, and what users are told. Without the
// setting sessions sleep, and end where they cannot.
func TestOnStop(t *testing.T) {
	cannot := ""
	if daemonOf(t) != nil {
		cannot = "it could not be put to sleep: the runtime docker cannot do that"
	}
	for mode, says := range map[string]string{"keep": "", "hibernate": cannot, "end": "its server was stopped"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testOnStop(t, mode, says)
		})
	}
}

func testOnStop(t *testing.T, mode, says string) {
	settings := []string{"SANDLOT_POOL_SIZE=1", "SANDLOT_ON_STOP=" + mode}
	if mode == "hibernate" {
		settings[1] = "SANDLOT_ON_STOP=" // the default
	}
	s := start(t, settings...)
	c := s.connect(older, "", nil)
	var ids []string
	for i := range 3 {
		ids = append(ids, c.code("new", fmt.Sprintf("x = %d", i)).session())
		c.shell(ids[i], "echo kept > f")
	}
	// What sleeps only because the server does may have a background process.
	process := c.call("execute_command", args{"command": "sleep 1000", "background": true,
		"session_id": ids[0]}).Fields["process_id"]
	out, errs, code := s.cli("stop")
	s.cmd.Wait()
	sleeps, lost := mode == "hibernate" && says == "", says != ""
	if code != 0 || strings.Contains(out, "live on") != (mode == "keep") ||
		strings.Contains(out, "sessions sleep") != sleeps {
		t.Errorf("sandlot stop: %d %q %q", code, out, errs)
	}
	if f := s.ps(false); len(f.Sandboxes) > 0 != (mode == "keep") || len(f.Asleep) > 0 != sleeps {
		t.Errorf("these run, and sleep, after the server: %+v", f)
	}
	if left := s.running(); len(left) > 0 && mode != "keep" {
		t.Errorf("this runs: %q", left)
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	for i, id := range ids {
		r := c.code(id, "(globals().get('x'), open('/workspace/f').read())")
		want := fmt.Sprintf("(%d, 'kept\\n')", i)
		if lost {
			want = "(None, 'kept\\n')"
		}
		notice, _ := r.Fields["notice"].(string)
		if sleeps {
			says = "was asleep for "
		}
		if !strings.Contains(r.All, want) || (notice == "") != (says == "") || !strings.Contains(notice, says) {
			t.Errorf("session %d: %q", i, r.All)
		}
	}
	if !lost {
		r := c.call("read_process", args{"process_id": process})
		if r.Fields["running"] != true {
			t.Errorf("the background process: %q", r.All)
		}
	}
}

// TestNarrowedAsleep: a session that slept with more in its memory than the operator allows by now wakes with it, and keeps
// its limit; one with less has the limit of now.
func TestNarrowedAsleep(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	s.settings("flavors: {small: {cpus: 1, memory_mb: 512}}\n")
	s.begin([]string{"SANDLOT_POOL_SIZE=0"})
	c := s.connect(older, "", nil)
	large := c.code("new", "x = b'x' * (300 << 20)").session()
	little := c.code("new", "x = 1").session()
	s.stop()
	again := func(more string) {
		s.settings("flavors: {small: {cpus: 1, memory_mb: 256}}\n" + more)
		transport.CloseIdleConnections()
		s.launch()
		c = s.connect(older, "", nil)
	}
	again("max_total_memory_mb: 400\n") // what it keeps does not fit, and it sleeps on
	if told := c.fault("execute_code", args{"code": "1", "session_id": large}); !strings.Contains(told,
		"needs 512 MB to wake; nothing of it is lost") {
		t.Errorf("with more than fits: %q", told)
	}
	s.stop()
	again("")
	r := c.code(large, "len(x) >> 20")
	if notice, _ := r.Fields["notice"].(string); r.Text != "300" || !strings.Contains(notice, "keeps its limit of 512 MB") {
		t.Errorf("with much in its memory: %s", r.All)
	}
	r = c.code(little, "x")
	if notice, _ := r.Fields["notice"].(string); r.Text != "1" || !strings.Contains(notice, "was asleep") ||
		strings.Contains(notice, "keeps") {
		t.Errorf("with little in its memory: %s", r.All)
	}
	if r := c.code(little, "y = b'y' * (400 << 20)"); !strings.Contains(r.All, "memory limit of 256 MB") {
		t.Errorf("beyond its limit of now: %s", r.All)
	}
}

// TestFullDiskStop: a server that is stopped while the disk is full leaves its sandboxes to the next one, which has all
// that was in them.
func TestFullDiskStop(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	t.Parallel()
	s := start(t, "SANDLOT_POOL_SIZE=0")
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 41").session()
	small := filepath.Join(s.State, "frozen")
	if err := errors.Join(os.MkdirAll(small, 0o700), unix.Mount("small", small, "tmpfs", 0, "size=16m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(small, unix.MNT_DETACH) }) // it may not be there any more
	out, errs, code := s.cli("stop")
	s.cmd.Wait()
	if code != 0 || !strings.Contains(out, "for the next server") {
		t.Errorf("sandlot stop: %d %q %q", code, out, errs)
	}
	if err := unix.Unmount(small, 0); err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	if r := c.code(id, "x"); r.Text != "41" || r.Fields["notice"] != nil {
		t.Errorf("with the next server: %s", r.All)
	}
}
