package guest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// TestWhoIs: a process belongs to what the host has started, also one that has left the tree of that program.
func TestWhoIs(t *testing.T) {
	r := newRig(t)
	want := func(pid int, name, process, server string) {
		t.Helper()
		// A program has the name of its shell for a moment.
		for end := time.Now().Add(10 * time.Second); r.whoIs(pid).Name != name && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		if got := r.whoIs(pid); got != (wire.Who{PID: uint32(pid), Name: name, Process: process, Server: server}) {
			t.Errorf("process %d: %+v, want %q of process %q and server %q", pid, got, name, process, server)
		}
	}
	const script = "echo $$; sleep 600 & echo $!; (setsid sleep 600 & echo $!); wait"
	m := sh(script)
	m.Server = "aserver"
	c, reply := r.stream(execOpen(m))
	if reply.Code != 0 {
		t.Fatalf("reply %v", reply)
	}
	out, buf := "", make([]byte, wire.MaxFrame)
	for strings.Count(out, "\n") < 3 {
		_, p, err := wire.ReadFrame(c, buf)
		if err != nil {
			t.Fatal(err)
		}
		out += string(p)
	}
	var own, child, orphan int
	if _, err := fmt.Sscan(out, &own, &child, &orphan); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	want(own, "sh", "", "aserver")
	want(child, "sleep", "", "aserver")
	want(orphan, "sleep", "", "aserver")

	if got := r.whoIs(0); got != (wire.Who{Server: "aserver"}) {
		t.Errorf("where only the server's programs run: %+v", got)
	}
	id := r.start(&agentv1.StartProcessRequest{Command: sh(script)})
	for strings.Count(out, "\n") < 6 {
		d, err := r.ReadProcess(t.Context(), &agentv1.ReadProcessRequest{ProcessId: id, MaxBytes: 100, WaitMillis: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(d.Output), "\n") == 3 {
			out += string(d.Output)
		}
	}
	if _, err := fmt.Sscan(out[strings.LastIndex(strings.TrimSuffix(out, "\n"), "\n")+1:], &orphan); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	want(orphan, "sleep", id, "")
	if got := r.whoIs(0); got != (wire.Who{}) {
		t.Errorf("where others run, too: %+v", got)
	}

	if got := r.whoIs(os.Getpid()); got.Process != "" || got.Server != "" {
		t.Errorf("a process of nobody: %+v", got)
	}
	needPython(t)
	d := r.eval("python", "import os, subprocess\np = subprocess.Popen(['sleep', '600'])\nprint(os.getpid(), p.pid)")
	if _, err := fmt.Sscan(string(d.Stdout.Head), &own, &child); err != nil {
		t.Fatalf("%v: %v", d, err)
	}
	want(child, "sleep", "interpreter-python", "")
	if got := r.whoIs(own); got.Process != "interpreter-python" {
		t.Errorf("the interpreter: %+v", got)
	}
}
