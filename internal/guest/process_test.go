package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/guesttest"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

func sh(script string) *agentv1.Command {
	return &agentv1.Command{Argv: []string{"sh", "-c", script}}
}

// exec runs a command to its end.
func (r *rig) exec(m *agentv1.ExecRequest) *agentv1.ExecDone {
	r.T.Helper()
	d, err := r.execute(r.T.Context(), m, nil)
	if err != nil {
		r.T.Fatalf("execute(%v): %v", m.Command, err)
	}
	return d
}

// dead waits until there is no such process.
func dead(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		if f, err := process.Stat(pid); err != nil || f[0] == "Z" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d lives", pid)
	syscall.Kill(pid, syscall.SIGKILL)
}

func number(t *testing.T, text []byte) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 2 {
		t.Fatalf("no process id: %q", text)
	}
	return n
}

func TestExecute(t *testing.T) {
	r := newRig(t)
	r.Write("sub/x", "")
	tests := []struct {
		name string
		m    *agentv1.ExecRequest
		exit int32
		out  string
		err  string
	}{
		{"output", &agentv1.ExecRequest{Command: sh("echo out; echo err >&2")}, 0, "out\n", "err\n"},
		{"no output", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"true"}}}, 0, "", ""},
		{"exit code", &agentv1.ExecRequest{Command: sh("exit 7")}, 7, "", ""},
		{"signal", &agentv1.ExecRequest{Command: sh("kill -TERM $$")}, 143, "", ""},
		{"binary", &agentv1.ExecRequest{Command: sh(`printf '\000\377\n\200'`)}, 0, "\x00\xff\n\x80", ""},
		{"input", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"cat"}}, Stdin: []byte("a\x00b")}, 0,
			"a\x00b", ""},
		{"input that nobody reads", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"true"}},
			Stdin: make([]byte, 1<<20)}, 0, "", ""},
		{"no input", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"cat"}}}, 0, "", ""},
		{"arguments as they are", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"printf", "%s|",
			"a b", "$x", "*", "", "ä"}}}, 0, "a b|$x|*||ä|", ""},
		{"default folder", &agentv1.ExecRequest{Command: sh("pwd")}, 0, r.Path + "\n", ""},
		{"folder", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"pwd"}, Cwd: "sub"}}, 0, r.Path +
			"/sub\n", ""},
		{"absolute folder", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"pwd"}, Cwd: "/usr"}}, 0,
			"/usr\n", ""},
		{"variables", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"sh", "-c",
			"echo $A $HOME $SANDLOT_AGENT_SECRET"}, Env: map[string]string{"A": "1", "HOME": "/h"}}}, 0, "1 /h\n", ""},
		{"a path", &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"/bin/echo", "x"}}}, 0, "x\n", ""},
		{"in time", &agentv1.ExecRequest{Command: sh("echo x"), TimeoutMillis: 60_000}, 0, "x\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := r.exec(tt.m)
			if d.ExitCode != tt.exit || string(d.Stdout.Head) != tt.out || string(d.Stderr.Head) != tt.err ||
				d.TimedOut || d.KilledBy != "" {
				t.Errorf("got %v", d)
			}
		})
	}
}

// A program inherits its three streams, and nothing that the agent opened.
func TestInherited(t *testing.T) {
	r := newRig(t)
	var private []*os.File
	for range 20 { // numbers above those that the machine gave this process
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		private = append(private, f)
	}
	d := r.exec(&agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{"ls", "/proc/self/fd"}}})
	open := strings.Fields(string(d.Stdout.Head))
	if len(open) < 4 {
		t.Errorf("open files: %q", open)
	}
	var others []int // neither standard files nor what the machine gave this process
	for _, n := range open {
		fd, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd > 2 && (err != nil || flags&unix.FD_CLOEXEC != 0) {
			others = append(others, fd)
		}
	}
	if len(others) > 1 { // one is the folder that ls reads
		t.Errorf("the files %v are open in the program", others)
	}
	for _, f := range private {
		if slices.Contains(open, fmt.Sprint(f.Fd())) {
			t.Errorf("file %d of the agent is open in the program", f.Fd())
		}
	}
}

func TestExecuteRefuses(t *testing.T) {
	r := newRig(t)
	r.Write("plain", "no program")
	tests := []struct {
		name string
		c    *agentv1.Command
		code connect.Code
		text string
	}{
		{"nothing", nil, connect.CodeInvalidArgument, "empty"},
		{"no words", &agentv1.Command{}, connect.CodeInvalidArgument, "empty"},
		{"an empty word", &agentv1.Command{Argv: []string{""}}, connect.CodeInvalidArgument, "empty"},
		{"no such program", &agentv1.Command{Argv: []string{"no-such-program"}}, connect.CodeNotFound,
			"command not found: no-such-program"},
		{"no such path", &agentv1.Command{Argv: []string{"/no/such"}}, connect.CodeNotFound,
			"command not found: /no/such"},
		{"a file that is no program", &agentv1.Command{Argv: []string{"./plain"}}, connect.CodePermissionDenied,
			"not executable: ./plain"},
		{"no such folder", &agentv1.Command{Argv: []string{"true"}, Cwd: "none"}, connect.CodeNotFound,
			"directory not found in sandbox: " + r.Path + "/none"},
		{"a folder that is a file", &agentv1.Command{Argv: []string{"true"}, Cwd: "plain"},
			connect.CodeFailedPrecondition, "not a directory"},
		{"a zero byte", &agentv1.Command{Argv: []string{"echo", "a\x00b"}}, connect.CodeInvalidArgument, "zero byte"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := r.execute(t.Context(), &agentv1.ExecRequest{Command: tt.c}, nil)
			guesttest.Refused(t, err, tt.code, tt.text)
		})
	}
}

func TestExecuteTimeout(t *testing.T) {
	r := newRig(t)
	for name, script := range map[string]string{
		"asleep":           "echo begun; sleep 60 & echo $! >pid; wait",
		"deaf to TERM":     "trap '' TERM; echo begun; sleep 60 & echo $! >pid; while :; do wait; done",
		"in its own group": "echo begun; set -m; sleep 60 & echo $! >pid; wait",
	} {
		t.Run(name, func(t *testing.T) {
			d := r.exec(&agentv1.ExecRequest{Command: sh(script), TimeoutMillis: 300})
			if d.ExitCode != 124 || !d.TimedOut || string(d.Stdout.Head) != "begun\n" {
				t.Errorf("got %v", d)
			}
			pid, err := os.ReadFile(filepath.Join(r.Path, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			dead(t, number(t, pid))
		})
	}
}

// When nobody waits for a command, it is stopped with all that it started.
func TestExecuteCancelled(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if b, err := os.ReadFile(filepath.Join(r.Path, "pid")); err == nil && len(b) > 1 {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, err := r.execute(ctx, &agentv1.ExecRequest{Command: sh("sleep 60 & echo $! >pid; wait")}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("execute: %v", err)
	}
	pid, err := os.ReadFile(filepath.Join(r.Path, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	dead(t, number(t, pid))
}

// What a command leaves behind does not hold its call.
func TestExecuteLeavesSomethingBehind(t *testing.T) {
	r := newRig(t)
	d := r.exec(&agentv1.ExecRequest{Command: sh("sleep 60 & echo $!"), TimeoutMillis: 30_000})
	if d.TimedOut || d.ExitCode != 0 {
		t.Errorf("got %v", d)
	}
	pid := number(t, d.Stdout.Head)
	if f, err := process.Stat(pid); err != nil || f[0] == "Z" {
		t.Errorf("what it left behind is gone: %v", err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	dead(t, pid)
}

func TestExecuteBounds(t *testing.T) {
	r := newRig(t)
	d := r.exec(&agentv1.ExecRequest{Command: sh("printf 0123456789; printf abc >&2"),
		Bounds: &agentv1.Bounds{HeadChars: 2, TailChars: 3}})
	if string(d.Stdout.Head) != "01" || string(d.Stdout.Tail) != "789" || d.Stdout.Total != 10 ||
		string(d.Stderr.Head)+string(d.Stderr.Tail) != "abc" || d.Stderr.Path != "" {
		t.Errorf("got %v", d)
	}
	if whole, err := os.ReadFile(d.Stdout.Path); err != nil || string(whole) != "0123456789" {
		t.Errorf("the whole output: %q, %v", whole, err)
	}
}

// events runs one request as the wire does, and returns its events.
func (r *rig) events(m *agentv1.RunRequest) []*agentv1.RunEvent {
	r.T.Helper()
	var mu sync.Mutex
	var all []*agentv1.RunEvent
	last := r.run(r.T.Context(), m, func(e *agentv1.RunEvent) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, e)
		return nil
	})
	return append(all, last)
}

func TestLiveOutput(t *testing.T) {
	r := newRig(t)
	script := "for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.2; done"
	all := r.events(execRun(&agentv1.ExecRequest{Command: sh(script),
		Live: true}))
	var out, err string
	for _, e := range all[:len(all)-1] {
		if o := e.GetOutput(); o.GetStderr() {
			err += string(o.GetData())
		} else {
			out += string(o.GetData())
		}
	}
	if !strings.HasPrefix(out, "out1\nout2\n") || !strings.HasPrefix(err, "err1\nerr2\n") {
		t.Errorf("live %q and %q", out, err)
	}
	if d := all[len(all)-1].GetExecuted(); string(d.GetStdout().GetHead()) != "out1\nout2\nout3\n" {
		t.Errorf("the end: %v", d)
	}
	quiet := r.events(execRun(&agentv1.ExecRequest{Command: sh(script)}))
	if len(quiet) != 1 {
		t.Errorf("%d events for a host that did not ask for output", len(quiet))
	}
	// A program that floods is passed on in part.
	all = r.events(execRun(&agentv1.ExecRequest{Command: sh("yes | head -c 3000000; sleep 0.3"), Live: true}))
	for _, e := range all[:len(all)-1] {
		if n := len(e.GetOutput().GetData()); n > liveBytes {
			t.Errorf("an event with %d bytes", n)
		}
	}
	if d := all[len(all)-1].GetExecuted(); d.GetStdout().GetTotal() != 3_000_000 {
		t.Errorf("the end: %d bytes", d.GetStdout().GetTotal())
	}
}

func TestUnknownRuns(t *testing.T) {
	r := newRig(t)
	for _, m := range []*agentv1.RunRequest{{}, {Kind: &agentv1.RunRequest_Exec{Exec: &agentv1.ExecRequest{}}},
		{Kind: &agentv1.RunRequest_Evaluate{Evaluate: &agentv1.EvaluateRequest{Language: "cobol"}}}} {
		all := r.events(m)
		if len(all) != 1 || all[0].GetRefused().GetCode() == 0 {
			t.Errorf("%v: %v", m, all)
		}
	}
}

func (r *rig) start(m *agentv1.StartProcessRequest) string {
	r.T.Helper()
	s, err := r.StartProcess(r.T.Context(), m)
	if err != nil {
		r.T.Fatal(err)
	}
	return s.ProcessId
}

func (r *rig) output(id string, cursor uint64, max uint32, wait uint64) *agentv1.ReadProcessResponse {
	r.T.Helper()
	m, err := r.ReadProcess(r.T.Context(), &agentv1.ReadProcessRequest{ProcessId: id, Cursor: cursor, MaxBytes: max,
		WaitMillis: wait})
	if err != nil {
		r.T.Fatal(err)
	}
	return m
}

// rest reads to the end.
func (r *rig) rest(id string) (out string, last *agentv1.ReadProcessResponse) {
	r.T.Helper()
	cursor := uint64(0)
	for range 1000 {
		m := r.output(id, cursor, 1<<20, 10_000)
		out += string(m.Output)
		cursor = m.Cursor
		if !m.Running && m.Left == 0 {
			return out, m
		}
	}
	r.T.Fatalf("process %s has no end", id)
	return "", nil
}

func (r *rig) stop(id string, signal syscall.Signal, grace uint64) *agentv1.StopProcessResponse {
	r.T.Helper()
	m, err := r.StopProcess(r.T.Context(), &agentv1.StopProcessRequest{ProcessId: id, Signal: int32(signal),
		GraceMillis: grace})
	if err != nil {
		r.T.Fatal(err)
	}
	return m
}

func TestBackground(t *testing.T) {
	r := newRig(t)
	id := r.start(&agentv1.StartProcessRequest{Command: sh("echo one; echo two >&2; read x; echo got $x; read y; " +
		"echo end; exit 3"), StdinOpen: true})
	m := r.output(id, 0, 100, 10_000)
	for !strings.Contains(string(m.Output), "two\n") { // both streams, as they come
		m = r.output(id, 0, 100, 10_000)
	}
	if string(m.Output) != "one\ntwo\n" || m.Cursor != 8 || !m.Running || m.Skipped != 0 {
		t.Errorf("first %v", m)
	}
	if m := r.output(id, 4, 2, 0); string(m.Output) != "tw" || m.Cursor != 6 {
		t.Errorf("a part: %v", m)
	}
	if m := r.output(id, 8, 100, 0); len(m.Output) != 0 || m.Cursor != 8 || !m.Running {
		t.Errorf("nothing new: %v", m)
	}
	write := func(data string, eof bool) error {
		w, err := r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id, Data: []byte(data), Eof: eof})
		if err == nil && int(w.Written) != len(data) {
			t.Errorf("%d bytes were written", w.Written)
		}
		return err
	}
	if err := write("hello\n", false); err != nil {
		t.Fatal(err)
	}
	if m := r.output(id, 8, 100, 10_000); string(m.Output) != "got hello\n" {
		t.Errorf("an answer: %v", m)
	}
	if err := write("", true); err != nil {
		t.Fatal(err)
	}
	out, last := r.rest(id)
	if out != "one\ntwo\ngot hello\nend\n" || last.ExitCode != 3 || last.Running {
		t.Errorf("all: %q, %v", out, last)
	}
	guesttest.Refused(t, write("more", false), connect.CodeFailedPrecondition, "ended")
	// What ended can still be read, and is in the list.
	if out, last := r.rest(id); len(out) == 0 || last.ExitCode != 3 {
		t.Errorf("again: %q, %v", out, last)
	}
	if p := r.listed(id); p == nil || p.Running || p.ExitCode != 3 || p.Kind != "background" ||
		p.OutputBytes != uint64(len(out)) || p.EndedUnixMillis < p.StartedUnixMillis {
		t.Errorf("listed: %v", p)
	}
}

func (r *rig) listed(id string) *agentv1.Process {
	r.T.Helper()
	m, err := r.ListProcesses(r.T.Context(), &agentv1.ListProcessesRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	for _, p := range m.Processes {
		if p.ProcessId == id {
			return p
		}
	}
	return nil
}

// A process that has ended says so, though output is left to be read.
func TestEndedBeforeAllWasRead(t *testing.T) {
	r := newRig(t)
	id := r.start(&agentv1.StartProcessRequest{Command: sh("printf 0123456789; exit 5")})
	r.rest(id)
	if m := r.output(id, 0, 4, 0); m.Running || m.ExitCode != 5 || m.Left != 6 || string(m.Output) != "0123" {
		t.Errorf("a part: %v", m)
	}
	if m := r.output(id, 4, 100, 0); m.Running || m.ExitCode != 5 || m.Left != 0 || string(m.Output) != "456789" {
		t.Errorf("the rest: %v", m)
	}
}

// A background process with a time limit is ended after it: its whole group, by
// TERM, and by KILL where that does not help.
func TestBackgroundTimeLimit(t *testing.T) {
	r := newRig(t)
	obeys := r.start(&agentv1.StartProcessRequest{Command: sh("sleep 61 & echo $!; sleep 60"), TimeoutMillis: 300})
	graceful := r.start(&agentv1.StartProcessRequest{Command: sh("trap 'echo bye; exit 0' TERM; while :; do " +
		"sleep 0.05; done"), TimeoutMillis: 300})
	quick := r.start(&agentv1.StartProcessRequest{Command: sh("exit 3"), TimeoutMillis: 300})
	child := number(t, r.output(obeys, 0, 100, 10_000).Output)
	for id, want := range map[string]int32{obeys: 124, graceful: 124, quick: 3} {
		out, m := r.rest(id)
		if m.ExitCode != want || m.TimeoutMillis != 300 || (m.KilledBy == "time") != (want == 124) {
			t.Errorf("%q, %v, want exit code %d", out, m, want)
		}
		if id == graceful && !strings.HasSuffix(out, "bye\n") {
			t.Errorf("it was not asked to end: %q", out)
		}
		if p := r.listed(id); p.KilledBy != m.KilledBy || p.TimeoutMillis != 300 {
			t.Errorf("listed: %v", p)
		}
	}
	dead(t, child)
}

func TestBackgroundInput(t *testing.T) {
	r := newRig(t)
	id := r.start(&agentv1.StartProcessRequest{Command: &agentv1.Command{Argv: []string{"cat"}},
		Stdin: []byte("given")})
	if out, _ := r.rest(id); out != "given" {
		t.Errorf("got %q", out)
	}
	id = r.start(&agentv1.StartProcessRequest{Command: &agentv1.Command{Argv: []string{"cat"}}})
	if out, _ := r.rest(id); out != "" {
		t.Errorf("got %q", out)
	}
	id = r.start(&agentv1.StartProcessRequest{Command: sh("sleep 60")})
	_, err := r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id, Data: []byte("x")})
	guesttest.Refused(t, err, connect.CodeFailedPrecondition, "takes no input")
	r.stop(id, syscall.SIGKILL, 0)
	// One that does not read does not hold the call beyond its time.
	id = r.start(&agentv1.StartProcessRequest{Command: sh("sleep 60"), StdinOpen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = r.WriteProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id, Data: make([]byte, 1<<20)})
	guesttest.Refused(t, err, connect.CodeResourceExhausted, "does not read its input")
	r.stop(id, syscall.SIGKILL, 0)
}

func TestStop(t *testing.T) {
	r := newRig(t)
	tests := []struct {
		name, script string
		signal       syscall.Signal
		grace        uint64
		exit         int32
	}{
		{"TERM", "sleep 60", syscall.SIGTERM, 5000, 143},
		{"KILL", "sleep 60", syscall.SIGKILL, 0, 137},
		{"TERM that is obeyed", "trap 'exit 9' TERM; while :; do sleep 0.05; done", syscall.SIGTERM, 5000, 9},
		{"TERM that is ignored, then KILL", "trap '' TERM; while :; do sleep 0.05; done", syscall.SIGTERM, 300, 137},
		{"INT", "trap 'exit 8' INT; while :; do sleep 0.05; done", syscall.SIGINT, 5000, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := r.start(&agentv1.StartProcessRequest{Command: sh("sleep 61 & echo $!; " + tt.script)})
			child := number(t, r.output(id, 0, 100, 10_000).Output)
			time.Sleep(100 * time.Millisecond) // for the trap
			if m := r.stop(id, tt.signal, tt.grace); m.Running || m.ExitCode != tt.exit {
				t.Errorf("stopped: %v, want exit code %d", m, tt.exit)
			}
			if tt.signal == syscall.SIGINT { // a shell's background jobs ignore it
				syscall.Kill(child, syscall.SIGKILL)
			}
			dead(t, child) // the whole group
			if m := r.stop(id, tt.signal, tt.grace); m.Running {
				t.Errorf("stopped again: %v", m)
			}
		})
	}
	id := r.start(&agentv1.StartProcessRequest{Command: sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")})
	r.output(id, 0, 100, 10_000)
	if m := r.stop(id, syscall.SIGTERM, 0); !m.Running {
		t.Errorf("without grace it is not killed: %v", m)
	}
	for _, s := range []syscall.Signal{0, -9, 65, 1000} {
		_, err := r.StopProcess(t.Context(), &agentv1.StopProcessRequest{ProcessId: id, Signal: int32(s)})
		guesttest.Refused(t, err, connect.CodeInvalidArgument, "not known")
	}
	r.stop(id, syscall.SIGKILL, 0)
}

func TestUnknownProcess(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"", "p0", "1", strings.Repeat("x", 10_000)} {
		_, err := r.ReadProcess(t.Context(), &agentv1.ReadProcessRequest{ProcessId: id})
		guesttest.Refused(t, err, connect.CodeNotFound, "process not found")
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		_, err = r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id})
		guesttest.Refused(t, err, connect.CodeNotFound, "process not found")
		_, err = r.StopProcess(t.Context(), &agentv1.StopProcessRequest{ProcessId: id, Signal: 15})
		guesttest.Refused(t, err, connect.CodeNotFound, "process not found")
	}
}

// Waiting for output ends with the call, or with its time.
func TestWaitingForOutput(t *testing.T) {
	r := newRig(t)
	id := r.start(&agentv1.StartProcessRequest{Command: sh("sleep 60")})
	if m := r.output(id, 0, 100, 100); !m.Running || len(m.Output) > 0 {
		t.Errorf("got %v", m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := r.ReadProcess(ctx, &agentv1.ReadProcessRequest{ProcessId: id, WaitMillis: 600_000}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	r.stop(id, syscall.SIGKILL, 0)
}

// A long output is kept as far as the window reaches.
func TestOutputThatWasNotRead(t *testing.T) {
	r := newRig(t)
	id := r.start(&agentv1.StartProcessRequest{Command: sh("head -c 3000000 /dev/zero; printf end")})
	r.rest(id)
	m := r.output(id, 0, 4<<20, 0)
	if m.Skipped != 3_000_003-process.RingSize || m.Cursor != 3_000_003 || !bytes.HasSuffix(m.Output,
		[]byte("\x00end")) || len(m.Output) != process.RingSize {
		t.Errorf("%d bytes, skipped %d, cursor %d", len(m.Output), m.Skipped, m.Cursor)
	}
}

// Many short ones: none is lost, and old ones are forgotten.
func TestManyProcesses(t *testing.T) {
	r := newRig(t)
	first := ""
	for i := range process.MaxEnded + 6 {
		id := r.start(&agentv1.StartProcessRequest{Command: &agentv1.Command{Argv: []string{"echo", fmt.Sprint(i)}}})
		if out, last := r.rest(id); out != fmt.Sprintln(i) || last.ExitCode != 0 {
			t.Errorf("process %d: %q, %v", i, out, last)
		}
		if first == "" {
			first = id
		}
	}
	var processes []*agentv1.Process
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		m, err := r.ListProcesses(t.Context(), &agentv1.ListProcessesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if processes = m.Processes; len(processes) <= process.MaxEnded || time.Now().After(deadline) {
			break
		}
	}
	if len(processes) != process.MaxEnded {
		t.Errorf("%d are kept, want %d", len(processes), process.MaxEnded)
	}
	if r.listed(first) != nil {
		t.Error("the oldest is not forgotten")
	}
}

// When the agent ends, so does all that it started.
func TestTheEndOfTheAgent(t *testing.T) {
	var pid int
	t.Run("running", func(t *testing.T) {
		r := newRig(t)
		id := r.start(&agentv1.StartProcessRequest{Command: sh("trap '' TERM HUP; sleep 60 & echo $!; wait; wait")})
		pid = number(t, r.output(id, 0, 100, 10_000).Output)
	})
	dead(t, pid)
}

// stream opens a raw stream on the agent.
func (r *rig) stream(open *agentv1.StreamOpen) (net.Conn, *agentv1.StreamReply) {
	r.T.Helper()
	host, guest := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serveRaw(guest)
		guest.Close()
	}()
	r.T.Cleanup(func() {
		host.Close()
		<-done
	})
	host.SetDeadline(time.Now().Add(30 * time.Second))
	reply := new(agentv1.StreamReply)
	if err := errors.Join(wire.WriteMessage(host, open), wire.ReadMessage(host, reply)); err != nil {
		r.T.Fatal(err)
	}
	return host, reply
}

func execOpen(c *agentv1.Command) *agentv1.StreamOpen {
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: c}}
}

// frames reads until the process ends.
func frames(t *testing.T, c net.Conn) (out, err string, exit int32, reason string) {
	t.Helper()
	buf := make([]byte, wire.MaxFrame)
	for {
		kind, p, e := wire.ReadFrame(c, buf)
		if e != nil {
			t.Fatalf("after %q and %q: %v", out, err, e)
		}
		switch kind {
		case wire.FrameStdout:
			out += string(p)
		case wire.FrameStderr:
			err += string(p)
		case wire.FrameExit:
			return out, err, int32(binary.BigEndian.Uint32(p)), string(p[4:])
		}
	}
}

func TestInteractive(t *testing.T) {
	r := newRig(t)
	c, reply := r.stream(execOpen(sh("read x; echo got $x; cat >&2; exit 3")))
	if reply.Code != 0 || reply.ProcessId == "" {
		t.Fatalf("reply %v", reply)
	}
	for _, data := range []string{"hel", "lo\n", "rest", ""} {
		if err := wire.WriteFrame(c, wire.FrameStdin, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err, exit, reason := frames(t, c); out != "got hello\n" || err != "rest" || exit != 3 || reason != "" {
		t.Errorf("got %q, %q, %d, %q", out, err, exit, reason)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the stream goes on after the end")
	}
	if r.listed(reply.ProcessId) != nil {
		t.Error("it is listed after its end")
	}
}

func TestInteractiveSignal(t *testing.T) {
	r := newRig(t)
	c, _ := r.stream(execOpen(sh("trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.05; done")))
	buf := make([]byte, wire.MaxFrame)
	if _, p, err := wire.ReadFrame(c, buf); err != nil || string(p) != "ready\n" {
		t.Fatalf("%q, %v", p, err)
	}
	if err := wire.WriteFrame(c, wire.FrameSignal, []byte{byte(syscall.SIGINT)}); err != nil {
		t.Fatal(err)
	}
	if out, _, exit, _ := frames(t, c); out != "caught\n" || exit != 4 {
		t.Errorf("got %q, %d", out, exit)
	}
}

func TestTerminal(t *testing.T) {
	r := newRig(t)
	cmd := sh("test -t 0 && test -t 1 && echo terminal; stty size; (trap '' HUP; exec sleep 61) & " +
		"echo job $! of; read x; stty size; echo got $x")
	cmd.Pty = &agentv1.Pty{Rows: 30, Cols: 100}
	c, reply := r.stream(execOpen(cmd))
	if reply.Code != 0 {
		t.Fatalf("reply %v", reply)
	}
	buf := make([]byte, wire.MaxFrame)
	text := ""
	for !strings.Contains(text, "30 100") || !strings.Contains(text, " of") {
		_, p, err := wire.ReadFrame(c, buf)
		if err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		text += string(p)
	}
	if err := errors.Join(wire.WriteFrame(c, wire.FrameResize, []byte{0, 40, 0, 120}), wire.WriteFrame(c,
		wire.FrameStdin, []byte("word\n"))); err != nil {
		t.Fatal(err)
	}
	out, err, exit, _ := frames(t, c) // it is seen to end, although what it has started has the terminal
	text += out
	_, job, _ := strings.Cut(text, "job ")
	job, _, _ = strings.Cut(job, " of")
	_ = syscall.Kill(number(t, []byte(job)), syscall.SIGKILL)
	if !strings.Contains(text, "terminal\r\n") || !strings.Contains(text, "40 120\r\n") || !strings.Contains(text,
		"got word\r\n") || err != "" || exit != 0 {
		t.Errorf("got %q, %q, %d", text, err, exit)
	}
}

// A client that goes away ends its process.
func TestInteractiveWithoutAClient(t *testing.T) {
	r := newRig(t)
	c, _ := r.stream(execOpen(sh("trap '' HUP; echo $$; while :; do sleep 0.05; done")))
	buf := make([]byte, wire.MaxFrame)
	_, p, err := wire.ReadFrame(c, buf)
	if err != nil {
		t.Fatal(err)
	}
	pid := number(t, p)
	c.Close()
	dead(t, pid)
}

func TestRefusedStreams(t *testing.T) {
	r := newRig(t)
	for name, tt := range map[string]struct {
		open *agentv1.StreamOpen
		code connect.Code
	}{
		"nothing":         {&agentv1.StreamOpen{}, connect.CodeUnimplemented},
		"no command":      {execOpen(nil), connect.CodeInvalidArgument},
		"unknown command": {execOpen(&agentv1.Command{Argv: []string{"no-such-program"}}), connect.CodeNotFound},
		"no such " +
			"file": {readStream(&agentv1.ReadStream{Path: "none"}), connect.CodeNotFound},
		"a file " +
			"outside": {readStream(&agentv1.ReadStream{Path: "/etc/hostname"}), connect.CodeOutOfRange},
		"write " +
			"outside": {writeStream(&agentv1.WriteStream{Path: "../x"}), connect.CodeOutOfRange},
		"a dead port": {&agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: 1}}, connect.CodeNotFound},
		"no port":     {&agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: 1 << 20}}, connect.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if _, reply := r.stream(tt.open); connect.Code(reply.Code) != tt.code || reply.Message == "" {
				t.Errorf("reply %v, want %s", reply, tt.code)
			}
		})
	}
}

func TestFileStreams(t *testing.T) {
	r := newRig(t)
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	size := uint64(len(data))
	c, _ := r.stream(writeStream(&agentv1.WriteStream{Path: "d/f", Size: &size, Mode: 0o600}))
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	reply := new(agentv1.StreamReply)
	if err := wire.ReadMessage(c, reply); err != nil || reply.Code != 0 || reply.Size != size {
		t.Fatalf("reply %v, %v", reply, err)
	}
	r.Is("d/f", string(data))
	for _, tt := range []struct{ offset, limit uint64 }{{0, 0}, {10, 0}, {10, 25}, {size, 0}, {size + 5, 7},
		{0, 1 << 63}, {1<<64 - 1, 1<<64 - 1}} {
		c, reply := r.stream(readStream(&agentv1.ReadStream{Path: "d/f", Offset: tt.offset, Limit: tt.limit}))
		want := data[min(tt.offset, size):]
		if tt.limit > 0 {
			want = want[:min(tt.limit, uint64(len(want)))]
		}
		got, err := io.ReadAll(c)
		if err != nil || reply.Size != size || !bytes.Equal(got, want) {
			t.Errorf("%+v: %d bytes of %d, %v, want %d", tt, len(got), reply.Size, err, len(want))
		}
	}
	// A transfer that broke changes nothing.
	for _, some := range []int{0, 10} {
		c, _ = r.stream(writeStream(&agentv1.WriteStream{Path: "d/f", Size: &size}))
		if _, err := c.Write(data[:some]); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	time.Sleep(50 * time.Millisecond)
	r.Is("d/f", string(data))
	if left, _ := filepath.Glob(filepath.Join(r.Path, "d", ".sandlot-*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestDial(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, reply := r.stream(dialStream(l.Addr()))
	if reply.Code != 0 {
		t.Fatalf("reply %v", reply)
	}
	got := make([]byte, 4)
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		t.Errorf("%q, %v", got, err)
	}
}

// Where memory is short, programs go before the interpreters and the agent, with all that they start.
func TestProgramsAreOffered(t *testing.T) {
	r := newRig(t)
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	// The program may be a moment ahead of the score.
	const script = `i=0; while [ "$(cat /proc/self/oom_score_adj)" = ` + "%s" + ` ] && [ $i -lt 2000 ]; do i=$((i+1)); done
		cat /proc/self/oom_score_adj; (cat /proc/self/oom_score_adj)`
	code := fmt.Sprintf(script, strings.TrimSpace(string(own)))
	if d := r.exec(&agentv1.ExecRequest{Command: sh(code)}); string(d.Stdout.Head)+string(d.Stdout.Tail) != "200\n200\n" {
		t.Errorf("a command has %q%q, %q", d.Stdout.Head, d.Stdout.Tail, d.Stderr.Head)
	}
	id := r.start(&agentv1.StartProcessRequest{Command: sh(code)})
	if out, _ := r.rest(id); out != "200\n200\n" {
		t.Errorf("a background process has %q", out)
	}
	if now, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(now) != string(own) {
		t.Errorf("the agent has %q, and had %q: %v", now, own, err)
	}
}
