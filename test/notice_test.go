package test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestNoticeOfFaults: what was lost is told also by a call that fails, which is mostly for that: once.
func TestNoticeOfFaults(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	c.code("home", "1")
	for what, call := range map[string]struct {
		tool string
		args args
	}{
		"a file that is gone":    {"sandbox_read_file", args{"path": "none", "session_id": "home"}},
		"a process that is gone": {"read_process", args{"process_id": c.homeID() + ".p1"}},
		"a folder that is not there": {"execute_command", args{"command": "true", "cwd": "/tmp/d", "session_id": "home",
			"idempotency_key": "k"}},
	} {
		c.shell("home", "mkdir -p /tmp/d")
		c.call("stop_session", args{"session_id": "home"})
		told := c.fault(call.tool, call.args)
		if strings.Count(told, "This session's sandbox was started again (it was stopped)") != 1 {
			t.Errorf("%s: %q", what, told)
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

// fault returns the text of a call's fault; empty: it went well.
func (c *client) fault(tool string, a args) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := c.try(ctx, tool, a)
	if err == nil {
		if !r.IsError {
			return ""
		}
		return r.All
	}
	return err.Error()
}
