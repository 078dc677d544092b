package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestServerKilled kills the server in the middle of calls of two users and
// starts it again.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	s := start(t, asShipped...)
	tokens := map[string]string{"ann": s.token("ann"), "bob": s.token("bob")}
	sessions, processes := map[string]string{}, map[string]any{}
	// Clients that are there before and after.
	held := map[string]*client{"stdio": s.stdio(), "stateless": s.connect(newer, tokens["ann"], nil)}
	for user, token := range tokens {
		c := s.connect(older, token, nil)
		held[user] = c
		r := c.code("home", "import os\nx = '"+user+"'\npid = os.getpid()\nopen('/workspace/f', 'w').write(x)")
		sessions[user] = r.session()
		processes[user] = c.call("execute_command",
			args{"command": "for i in $(seq 1 100000); do echo tick $i; sleep 0.2; done", "background": true,
				"session_id": r.session()}).Fields["process_id"]
	}
	// Calls that are running when it happens.
	var running sync.WaitGroup
	for user, token := range tokens {
		c := s.connect(older, token, nil)
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if _, err := c.try(ctx, "execute_command", args{"command": "sleep 20",
				"session_id": sessions[user]}); err == nil {
				t.Error("a call survived the server")
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	before := boxes(t, s)
	s.kill()
	transport.CloseIdleConnections()
	began := time.Now()
	s.launch()
	for who, c := range held {
		if r := c.call("get_sessions", args{}); !strings.Contains(r.All, sessions[who]) {
			t.Errorf("%s: %s", who, r.All)
		}
	}
	for user, token := range tokens {
		c := s.connect(newer, token, nil)
		r := c.want(sessions[user], "x, pid == os.getpid()", fmt.Sprintf("('%s', True)", user))
		t.Logf("%s's session answered %v after the new server was started", user, time.Since(began))
		if r.session() != sessions[user] || r.Fields["session_created"] != false {
			t.Errorf("%v", r.Fields)
		}
		p := c.call("read_process", args{"process_id": processes[user], "wait": 10})
		if out, _ := p.Fields["output"].(string); p.Fields["running"] != true || !strings.HasPrefix(out, "tick 1\n") {
			t.Errorf("the background process: %v", p.Fields)
		}
		if r := c.shell(sessions[user], "cat /workspace/f"); r.Text != user {
			t.Errorf("%q", r.All)
		}
	}
	running.Wait()
	// The pool's were unowned, and are made anew when the calls that waited have
	// been served; the users' are the same.
	kept := func() (n int) {
		for id := range boxes(t, s) {
			if before[id] {
				n++
			}
		}
		return n
	}
	until(t, "the pool's sandboxes go", func() bool { return kept() <= 2 })
	if n := kept(); n != 2 {
		t.Errorf("%d of the %d sandboxes were kept, want the users' 2", n, len(before))
	}
}

// boxes lists the sandboxes of the server by their folders.
func boxes(t *testing.T, s *server) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, f := range s.folders() {
		found[filepath.Base(f)] = true
	}
	return found
}

// sandboxPID is the process of the sandbox in which a session lives.
func sandboxPID(t *testing.T, s *server, session string) int {
	t.Helper()
	box := s.sandboxOf(session)
	if box == "" {
		t.Fatal("the session has no sandbox")
	}
	if s.docker != nil {
		return s.docker.PID(t, "sandlot-"+box)
	}
	pid := 0
	text, err := os.ReadFile(filepath.Join(s.State, "sandboxes", box, "pid"))
	if _, scanErr := fmt.Sscan(string(text), &pid); err != nil || scanErr != nil || pid <= 1 {
		t.Fatalf("the sandbox has no process: %q, %v", text, err)
	}
	return pid
}

// TestSandboxKilled kills a sandbox under a call: the call says so, and the next
// one works, says what was lost, and finds the files.
func TestSandboxKilled(t *testing.T) {
	t.Parallel()
	s := start(t, asShipped...)
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1\nopen('/workspace/marker', 'w').write('kept')").session()
	other := c.code("new", "y = 2").session()
	pid := sandboxPID(t, s, id)
	failed := make(chan error, 1)
	go func() {
		_, err := c.try(context.Background(), "execute_command", args{"command": "sleep 30", "session_id": id})
		failed <- err
	}()
	time.Sleep(500 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		data := wantFault(t, err, -32603, "COMMAND_EXECUTION_ERROR", "Files in /workspace are kept")
		if c, _ := data["context"].(map[string]any); c["session_id"] != id {
			t.Errorf("%v", data)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the call hangs")
	}
	r := c.code(id, "open('/workspace/marker').read() + str('x' in globals())")
	if r.session() != id || r.Fields["session_created"] != false || !strings.Contains(r.All, "keptFalse") ||
		!strings.Contains(r.All, "variables, processes") {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	if r := c.code(id, "1"); strings.Contains(r.All, "started again") {
		t.Errorf("it is said twice: %q", r.All)
	}
	c.want(other, "y", "2")
}

// standing opens what only waits for events, in each revision, and returns it by its kind.
func (s *server) standing(c *client) map[string]io.ReadCloser {
	s.t.Helper()
	const listen = `{"jsonrpc":"2.0","id":8,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}`
	all := map[string]io.ReadCloser{}
	for what, r := range map[string]struct {
		method, path, body string
		header             []string
	}{
		"a session's stream": {"GET", "/mcp", "", []string{"Mcp-Session-Id", c.ID(), "Mcp-Protocol-Version", older}},
		"a subscription":     {"POST", "/mcp", listen, []string{"Mcp-Protocol-Version", newer, "Mcp-Method", "subscriptions/listen"}},
		"the events":         {"GET", "/v1/events", "", nil},
	} {
		req, err := http.NewRequestWithContext(s.t.Context(), r.method, s.URL+r.path, strings.NewReader(r.body))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for i := 0; i < len(r.header); i += 2 {
			req.Header.Set(r.header[i], r.header[i+1])
		}
		resp, err := (&http.Client{Transport: s.web()}).Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			s.t.Fatalf("%s: %s", what, resp.Status)
		}
		all[what] = resp.Body
	}
	return all
}

// TestGracefulStop stops the server while a call runs: it may end, and a
// persistent session is there again with its variables. What only waits for events ends before.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("home", "x = 'still here'").session()
	ended := make(chan string, 1)
	go func() {
		r, err := c.try(context.Background(), "execute_command",
			args{"command": "sleep 6; echo done", "session_id": id})
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- r.Text
	}()
	streams := s.standing(c)
	time.Sleep(500 * time.Millisecond)
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	for what, stream := range streams {
		_, _ = io.Copy(io.Discard, stream) // until its end
		select {
		case got := <-ended:
			t.Errorf("%s has waited for the running call", what)
			ended <- got
		default:
		}
	}
	<-stopped
	if got := <-ended; got != "done" {
		t.Errorf("the running call: %q", got)
	}
	transport.CloseIdleConnections()
	s.launch()
	s.connect(older, "", nil).want("home", "x", "'still here'")
}

// TestSecondServer: a state folder has one server.
func TestSecondServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	out, errs, code := s.cli("serve", "--port", fmt.Sprint(freePort(t)))
	if code == 0 || !strings.Contains(errs, "another server uses the state folder") {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// TestIdle: an idle session that does not sleep stops, its files stay, its id lives on.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := start(t, "MSB_SESSION_TIMEOUT=2", "MSB_CLEANUP_INTERVAL=1", "SANDLOT_HIBERNATE_ENABLED=false")
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1\nopen('/workspace/f', 'w').write('kept')").session()
	empty := c.code("new", "1").session()
	busy := c.call("execute_command", args{"command": "sleep 1000", "background": true, "session_id": "new"}).session()
	status := func(id string) any {
		l := c.call("get_sessions", nil)
		for _, e := range l.Fields["sessions"].([]any) {
			if m := e.(map[string]any); m["session_id"] == id {
				return m["status"]
			}
		}
		return nil
	}
	for range 300 {
		if status(id) == "stopped" && status(empty) == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if a, b, d := status(id), status(empty), status(busy); a != "stopped" || b != nil || d != "running" {
		t.Errorf("with files %v, empty %v, busy %v", a, b, d)
	}
	r := c.code(id, "print('x' in globals(), open('/workspace/f').read())")
	if !strings.Contains(r.All, "False kept") || r.Fields["session_created"] != false ||
		!strings.Contains(r.All, "idle") {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	_, err := c.try(t.Context(), "execute_code", args{"code": "1", "session_id": empty})
	wantFault(t, err, -32602, "SESSION_NOT_FOUND")
}

// TestLimits: sessions have a limit, idle ones make room, busy ones do not.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := start(t, "MSB_MAX_SESSIONS=2", "SANDLOT_HIBERNATE_ENABLED=false")
	c := s.connect(older, "", nil)
	first := c.call("execute_command", args{"command": "sleep 1000", "background": true, "session_id": "new"}).session()
	second := c.code("new", "open('/workspace/f', 'w').write('x')").session()
	third := c.code("new", "1").session()
	if r := c.code(second, "1"); r.Fields["session_created"] != false { // third makes room
		t.Errorf("%v", r.Fields)
	}
	_, err := c.try(t.Context(), "execute_code", args{"code": "1", "session_id": third})
	wantFault(t, err, -32602, "SESSION_NOT_FOUND")
	c.call("execute_command", args{"command": "sleep 1000", "background": true, "session_id": second})
	_, err = c.try(t.Context(), "execute_code", args{"code": "1", "session_id": "new"})
	data := wantFault(t, err, -32600, "RESOURCE_LIMIT_EXCEEDED", "Resource limit exceeded: ")
	if x, _ := data["context"].(map[string]any); x["resource_type"] != "sessions" || x["limit"] != 2.0 {
		t.Errorf("%v", data)
	}
	c.want(first, "1+1", "2") // at the limit what exists works
}

// TestDiskFull fills the workspace to its limit.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_DISK_MB=64")
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	r := c.shell(id, "head -c 300000000 /dev/zero > /tmp/fill; ls -l /tmp/fill | awk '{print $5 < 100000000}'; rm -f "+
		"/tmp/fill; echo alive")
	if !strings.Contains(r.Text, "1\nalive") {
		t.Errorf("%q", r.All)
	}
	// The workspace is the host's: who writes too much there loses the sandbox.
	_, err := c.try(t.Context(), "execute_command",
		args{"command": "n=0; while :; do n=$((n+1)); head -c 30000000 /dev/zero > /workspace/fill$n; sleep 0.1; done",
			"session_id": id, "timeout": 60})
	if err == nil {
		t.Fatal("it may write without end")
	}
	wantFault(t, err, -32603, "COMMAND_EXECUTION_ERROR", "disk limit")
	if s.docker == nil { // whose files without a name count, too
		_, err = c.try(t.Context(), "execute_code",
			args{"code": "import os, time\nfor i in range(100):\n    f = open(f'/workspace/u{i}', 'wb'); " +
				"os.unlink(f.name); f.write(b'x' * (20 << 20)); globals()[f'f{i}'] = f; time.sleep(0.2)",
				"session_id": id, "timeout": 60})
		if err == nil {
			t.Fatal("unlinked files may take all of the disk")
		}
		wantFault(t, err, -32603, "CODE_EXECUTION_ERROR", "disk limit")
	}
	if r := c.shell(id, "rm -f /workspace/fill*; echo room"); !strings.Contains(r.All, "room") {
		t.Errorf("%q", r.All)
	}
}

// TestFilesAPI moves files over HTTP.
func TestFilesAPI(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	data := strings.Repeat("\x00\xff binary\n", 1<<20)
	code, _, text := s.request("PUT", "/v1/sessions/"+id+"/files/workspace/big", strings.NewReader(data))
	if code/100 != 2 {
		t.Fatalf("HTTP %d %s", code, text)
	}
	if code, _, got := s.request("GET", "/v1/sessions/"+id+"/files/workspace/big", nil); code != 200 || got != data {
		t.Errorf("HTTP %d, %d bytes", code, len(got))
	}
	if code, h, got := s.request("GET", "/v1/sessions/"+id+"/files/workspace/big", nil, "Range",
		"bytes=9-17"); code != 206 || got != data[9:18] {
		t.Errorf("HTTP %d %v, %q", code, h, got)
	}
	c.shell(id, `printf x > $'caf\xe9.txt'`)
	if code, _, got := s.request("GET", "/v1/sessions/"+id+"/files/workspace/caf%E9.txt", nil); code != 200 || got != "x" {
		t.Errorf("a name that is not UTF-8: HTTP %d %q", code, got)
	}
	if code, _, got := s.request("GET", "/v1/sessions/"+id+"/files/workspace/none%E9.txt", nil); code != 404 {
		t.Errorf("a missing one: HTTP %d %q", code, got)
	}
	c.shell(id, "rm caf*")
	for _, p := range []string{"/v1/sessions/" + id + "/files/etc/passwd", "/v1/sessions/" + id +
		"/files/workspace/..%2f..%2fetc/passwd", "/v1/sessions/none/files/workspace/big"} {
		if code, _, got := s.request("GET", p, nil); code < 400 || !strings.Contains(got, "error_code") {
			t.Errorf("%s: HTTP %d %q", p, code, got)
		}
	}
	// A transfer that breaks changes nothing.
	r, w := io.Pipe()
	go func() { w.Write([]byte("half")); w.CloseWithError(fmt.Errorf("broken")) }()
	req, _ := http.NewRequest("PUT", s.URL+"/v1/sessions/"+id+"/files/workspace/big", r)
	req.ContentLength = 1000
	if _, err := transport.RoundTrip(req); err == nil {
		t.Error("a broken transfer was taken")
	}
	want, got := fmt.Sprintf("%d\nbig", len(data)), ""
	for range 100 { // until the agent has noticed
		if got = c.shell(id, "wc -c < /workspace/big; ls -A -I .local /workspace").Text; got == want {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got != want {
		t.Errorf("%q", got)
	}
	if code, _, got := s.request("DELETE", "/v1/sessions/"+id+"/files/workspace/big", nil); code != 204 || got != "" {
		t.Errorf("DELETE: HTTP %d %q", code, got)
	}
	if code, _, _ := s.request("GET", "/v1/sessions/"+id+"/files/workspace/big", nil); code != 404 {
		t.Errorf("after DELETE: HTTP %d", code)
	}
}
