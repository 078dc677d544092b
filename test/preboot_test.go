package test

import (
	"strings"
	"testing"
)

// TestPrebooted: a sandbox that was started from a preboot image is used before anything
// else was asked of it: its files are its own session's, and a crash of the server
// takes nothing from it.
func TestPrebooted(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	s.awaitImage()
	c := s.connect(older, "", nil)
	sessions, processes := map[string]string{}, map[string]any{}
	for _, name := range []string{"home", "new"} {
		id := c.call("sandbox_write_file", args{"path": "/workspace/f", "content": name, "session_id": name}).session()
		if r := c.shell(id, "cat /workspace/f; echo shell > /workspace/g; df /workspace | wc -l"); r.Text != name+"2" {
			t.Errorf("%s: %q", name, r.All)
		}
		if r := c.call("sandbox_read_file", args{"path": "/workspace/g", "session_id": id}); !strings.HasPrefix(r.Text,
			"shell\n") {
			t.Errorf("%s: %q", name, r.All)
		}
		c.want(id, "x = '"+name+"'; x", "'"+name+"'")
		c.want(id, "x", "'"+name+"'") // straight to Python
		sessions[name] = id
		processes[name] = c.call("execute_command",
			args{"command": "for i in $(seq 1 100000); do echo tick $i; sleep 0.2; done", "background": true,
				"session_id": id}).Fields["process_id"]
	}
	if _, _, text := s.request("GET", "/metrics", nil); !strings.Contains(text,
		"sandlot_sandboxes_started_total{from=\"snapshot\"} 2\n") {
		t.Error("the two were not started from the preboot image")
	}
	for range 2 {
		before := boxes(t, s)
		s.kill()
		transport.CloseIdleConnections()
		s.launch()
		c = s.connect(newer, "", nil)
		for name, id := range sessions {
			c.want(id, "x", "'"+name+"'")
			if p := c.call("read_process",
				args{"process_id": processes[name], "wait": 10}); p.Fields["running"] != true {
				t.Errorf("%s: the background process: %q", name, p.All)
			}
			if r := c.shell(id, "cat /workspace/f /workspace/g"); r.Text != name+"shell" {
				t.Errorf("%s: %q", name, r.All)
			}
		}
		if after := boxes(t, s); len(after) != len(before) {
			t.Errorf("%d sandboxes were there, now %d", len(before), len(after))
		}
	}
	c.call("stop_session", args{"session_id": sessions["home"]})
	if r := c.call("sandbox_read_file", args{"path": "/workspace/f", "session_id": "home"}); !strings.HasPrefix(
		r.All, "home\n") || !strings.Contains(r.All, "started again") {
		t.Errorf("the home again: %q", r.All)
	}
}
