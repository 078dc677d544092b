package test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestStdioSleeps: a client that starts its own server finds its session as it was when it starts the next one, and
// nothing runs meanwhile.
func TestStdioSleeps(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SANDLOT_NETWORK_REGISTRIES=none",
		"SANDLOT_POOL_SIZE=0"}
	c := s.stdio()
	c.code("", "x = 41")
	c.call("execute_command", args{"command": "sleep 1000", "background": true})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if left := s.running(); len(left) > 0 {
		t.Errorf("this still runs: %q", left)
	}
	c = s.stdio()
	if r := c.code("", "x + 1"); !strings.Contains(r.All, "42") || !strings.Contains(r.All, "was asleep") {
		t.Errorf("the next server says %q", r.All)
	}
	if r := c.call("execute_command", args{"command": "pgrep -x sleep | wc -l"}); r.Text != "1" {
		t.Errorf("there are %q background processes", r.All)
	}
	// A client that uses the server of another one starts its own when that has ended.
	other := s.stdio()
	other.call("get_sessions", args{})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if r := other.code("", "x + 2"); !strings.Contains(r.All, "43") {
		t.Errorf("after the other client's end: %q", r.All)
	}
}

// TestSecondInterrupt: a server that waits for a running call ends at once when its user presses Ctrl-C again, and the
// next one has the session.
func TestSecondInterrupt(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(newer, "", nil)
	id := c.code("new", "x = 41").session()
	go c.try(t.Context(), "execute_command", args{"command": "sleep 600", "session_id": id})
	for range 100 {
		if _, _, text := s.request("GET", "/v1/sessions", nil); strings.Contains(text, "processing") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = s.cmd.Process.Signal(os.Interrupt)
	ended := make(chan struct{})
	go func() { s.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
		t.Fatal("it does not wait for the call that runs")
	case <-time.After(2 * time.Second):
	}
	_ = s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("it ends with %d", code)
	}
	s.launch()
	if r := s.connect(newer, "", nil).code(id, "x + 1"); !strings.Contains(r.All, "42") {
		t.Errorf("the next server says %q", r.All)
	}
}
