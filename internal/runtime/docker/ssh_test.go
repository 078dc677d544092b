package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox/sandboxtest"
)

// dialer is a program in the place of ssh that reaches the daemon of a test, whatever its arguments are, and notes
// them.
const dialer = `#!/usr/bin/python3
import os, socket, sys, threading
open(%q, "a").write(" ".join(sys.argv[1:]) + "\n")
s = socket.socket(socket.AF_UNIX)
s.connect(%q)
def send():
    while data := os.read(0, 65536): s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := s.recv(65536):
    while data: data = data[os.write(1, data):]
os._exit(0)
`

// TestSSH: sandboxes of a daemon that is reached by a program such as ssh live, are recovered and leave nothing, and
// no such program. The program is one of the test's own.
func TestSSH(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t, "--live-restore")
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	program := fmt.Sprintf(dialer, calls, strings.TrimPrefix(d.Host, "unix://"))
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s, c := subject(t, d, baseTemplate())
	c.Host = "ssh://someone@daemon.example:2222"
	separate(t, d, s, c)
	rt := s.Open(t)
	if err := rt.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	link := agent.New(b, sandboxtest.Log(t), nil)
	defer link.Close()
	if got := sum(t, link); got != "1" {
		t.Errorf("the interpreter counts %s", got)
	}
	link.Close()
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	rt = s.Open(t)
	all := sandboxtest.RecoverAll(t, rt)
	if len(all) != 1 || all[0].Spec().ID != b.Spec().ID {
		t.Fatalf("recovered %d", len(all))
	}
	mustStop(t, s, rt, all...)
	text, err := os.ReadFile(calls)
	want := "-o BatchMode=yes -o ConnectTimeout=30 -T -l someone -p 2222 -- daemon.example docker system dial-stdio"
	if line, _, _ := strings.Cut(string(text), "\n"); err != nil || line != want {
		t.Errorf("ssh was called with %q, %v", line, err)
	}
	for range 200 {
		if !slices.ContainsFunc(proc.PIDs(), func(pid int) bool {
			return slices.Contains(proc.Args(pid), filepath.Join(dir, "ssh"))
		}) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a program that reached the daemon lives on")
}
