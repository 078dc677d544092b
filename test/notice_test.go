package test

import (
	"strings"
	"testing"
)

// TestNoticeOfFaults: what was lost is told also by a call that fails, which is mostly for that: once.
func TestNoticeOfFaults(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	for what, fails := range map[string]func() *result{
		"a file that is gone": func() *result {
			return c.call("sandbox_read_file", args{"path": "/tmp/f", "session_id": "home"})
		},
		"a process that is gone": func() *result {
			return c.call("read_process", args{"process_id": c.homeID() + ".p1"})
		},
		"a folder that is not there": func() *result {
			return c.call("execute_command", args{"command": "true", "cwd": "/tmp/d", "session_id": "home",
				"idempotency_key": "k"})
		},
	} {
		c.shell("home", "touch /tmp/f && mkdir -p /tmp/d")
		c.call("stop_session", args{"session_id": "home"})
		r := fails()
		if !r.IsError || strings.Count(r.All, "This session's sandbox was started again (it was stopped)") != 1 {
			t.Errorf("%s: %q", what, r.All)
		}
		if r := c.code("home", "1"); r.Text != "1" || r.Fields["notice"] != nil {
			t.Errorf("%s: then %q", what, r.All)
		}
	}
}

// homeID returns the id of the home.
func (c *client) homeID() string {
	c.t.Helper()
	for _, one := range c.call("get_sessions", nil).Fields["sessions"].([]any) {
		if s := one.(map[string]any); s["home"] == true {
			return s["session_id"].(string)
		}
	}
	c.t.Fatal("there is no home")
	return ""
}
