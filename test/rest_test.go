package test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// TestStopWithClients: when the server stops, what may be open for ever ends, a shell and a forwarded connection; a
// command and a call by stdio have time to end, and their results arrive. Then all sessions sleep: nothing runs.
func TestStopWithClients(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(newer, "", nil)
	c.call("execute_command", args{"session_id": "home", "background": true, "command": "python3 -c 'import socket; " +
		"s = socket.create_server((\"127.0.0.1\", 7777)); c, _ = s.accept(); c.sendall(b\"hello\"); c.recv(1)'"})
	shell := s.sits("", "shell")
	shell.types("echo in the sh''ell; sleep 1000\n")
	shell.shows("in the shell")
	address, _ := s.forwarding([]string{"--state-dir", s.State}, "home", "7777")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Fatalf("the forwarded connection says %q, %v", got, err)
	}
	lasts := func(name string) string { return fmt.Sprintf("touch /workspace/%s; sleep 4; echo done", name) }
	command := exec.Command(s.program, "--state-dir", s.State, "exec", "--session", "home", "--", "sh", "-c", lasts("one"))
	command.Env = s.env
	said := make(chan string, 2)
	go func() {
		out, err := command.CombinedOutput()
		said <- fmt.Sprintf("%s %v", out, err)
	}()
	byStdio := s.stdio()
	go func() {
		r, err := byStdio.try(t.Context(), "execute_command", args{"session_id": "home", "command": lasts("two")})
		said <- fmt.Sprintf("%+v %v", r, err)
	}()
	until(t, "both run", func() bool { return !c.shell("home", "ls /workspace/one /workspace/two").IsError })
	s.stop()
	for range cap(said) {
		if got := <-said; !strings.Contains(got, "done") {
			t.Errorf("what ran says %q", got)
		}
	}
	shell.shows("the server was stopped")
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); os.IsTimeout(err) {
		t.Error("the forwarded connection goes on")
	}
	images, _ := filepath.Glob(filepath.Join(s.State, "frozen", "*"))
	if left := append(s.running(), s.folders()...); len(left) > 0 || len(images) != 1 {
		t.Errorf("these sandboxes are left: %q; images: %q; the log:\n%s", left, images, s.log)
	}
	s.launch()
}
