package guest

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/guesttest"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// eval runs a cell to its end.
func (r *rig) eval(language, code string) *agentv1.EvaluateDone {
	r.T.Helper()
	all := r.events(evaluateRun(&agentv1.EvaluateRequest{Language: language, Code: code}))
	d := all[len(all)-1].GetEvaluated()
	if d == nil {
		r.T.Fatalf("%s %q: %v", language, code, all[len(all)-1])
	}
	return d
}

// value is the text of a result, or "".
func value(d *agentv1.EvaluateDone) string {
	return string(d.GetResult().GetHead()) + string(d.GetResult().GetTail())
}

func needPython(t *testing.T) {
	t.Helper()
	for _, l := range languages() {
		if l.Name == "python" {
			return
		}
	}
	t.Skip("there is no python3 here")
}

func TestEvaluate(t *testing.T) {
	needPython(t)
	r := newRig(t)
	if d := r.eval("python", "import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1"); !d.Ok ||
		d.ExitCode != 0 || value(d) != "21" || string(d.Stdout.Head) != "out\n" || string(d.Stderr.Head) != "err\n" {
		t.Errorf("got %v", d)
	}
	if d := r.eval("python", "x + 2"); value(d) != "22" {
		t.Errorf("the variable is gone: %v", d)
	}
	if d := r.eval("python", "None"); d.Result != nil {
		t.Errorf("a value where there is none: %v", d)
	}
	if d := r.eval("python", "import os; os.getcwd()"); value(d) != "'"+r.Path+"'" {
		t.Errorf("it works in %s", value(d))
	}
	if d := r.eval("python", "1/0"); d.Ok || d.ExitCode != 1 || d.Error != "ZeroDivisionError: division by zero" ||
		!strings.Contains(d.Traceback, "line 1") {
		t.Errorf("got %v", d)
	}
	d := r.eval("python", "class P:\n    def _repr_html_(self): return '<b>'\nP()")
	if len(d.Rich) != 1 || d.Rich[0].Mime != "text/html" || string(d.Rich[0].Data) != "<b>" {
		t.Errorf("got %v", d)
	}
}

func TestEvaluateTimeout(t *testing.T) {
	needPython(t)
	r := newRig(t)
	r.eval("python", "kept = 1")
	all := r.events(evaluateRun(&agentv1.EvaluateRequest{Language: "python",
		Code: "print('begun', flush=True)\nwhile True: pass", TimeoutMillis: 300}))
	d := all[len(all)-1].GetEvaluated()
	if d.GetOk() || !d.GetTimedOut() || d.GetInterrupted() || d.GetExitCode() != 124 || d.GetStateLost() ||
		d.GetTraceback() != "" || string(d.GetStdout().GetHead()) != "begun\n" {
		t.Errorf("got %v", d)
	}
	if d := r.eval("python", "kept"); value(d) != "1" {
		t.Errorf("the variable is gone: %v", d)
	}
}

// A language without a driver runs as a file, and keeps nothing.
func TestEvaluateAFile(t *testing.T) {
	r := newRig(t)
	d := r.eval("sh", "x=1; echo out; echo err >&2; pwd; exit 3")
	if d.Ok || d.ExitCode != 3 || string(d.Stdout.Head) != "out\n"+r.Path+"\n" || string(d.Stderr.Head) != "err\n" {
		t.Errorf("got %v", d)
	}
	if d := r.eval("sh", "echo \"x=$x\"; echo $0"); !d.Ok || !strings.HasPrefix(string(d.Stdout.Head), "x=\n/") ||
		!strings.HasSuffix(string(d.Stdout.Head), "/code.sh\n") {
		t.Errorf("got %v", d)
	}
	if d := r.eval("bad", "echo $0"); !strings.HasSuffix(string(d.Stdout.Head), "/code\n") {
		t.Errorf("an extension with a slash: %q", d.Stdout.Head)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "code-*", "code*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	all := r.events(evaluateRun(&agentv1.EvaluateRequest{Language: "sh", Code: "echo begun; sleep 60",
		TimeoutMillis: 300}))
	if d := all[len(all)-1].GetEvaluated(); !d.GetTimedOut() || d.GetExitCode() != 124 ||
		string(d.GetStdout().GetHead()) != "begun\n" {
		t.Errorf("got %v", all[len(all)-1])
	}
}

// A second cell waits for the slot, and says so; files and commands do not wait.
func TestWaitingForTheInterpreter(t *testing.T) {
	needPython(t)
	r := newRig(t)
	r.eval("python", "import time")
	first := make(chan *agentv1.EvaluateDone, 1)
	go func() { first <- r.eval("python", "time.sleep(2); over = True; 'first'") }()
	for {
		u, err := r.Usage(t.Context(), &agentv1.UsageRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if l := r.interpreters(); len(l) == 1 && l[0].Running && l[0].Busy && u.Busy {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if d := r.exec(&agentv1.ExecRequest{Command: sh("echo x")}); d.ExitCode != 0 {
		t.Errorf("got %v", d)
	}
	all := r.events(evaluateRun(&agentv1.EvaluateRequest{Language: "python", Code: "over and 'second'"}))
	if d := <-first; value(d) != "'first'" {
		t.Errorf("the first: %v", d)
	}
	if w := all[0].GetWaiting(); w.GetLanguage() != "python" || w.GetRunningForMicros() == 0 {
		t.Errorf("the first event of the second is %v", all[0])
	}
	if d := all[len(all)-1].GetEvaluated(); value(d) != "'second'" {
		t.Errorf("the second: %v", d)
	}
}

func TestStartAndStopInterpreter(t *testing.T) {
	needPython(t)
	r := newRig(t)
	ctx := t.Context()
	for _, l := range []string{"python", "sh"} {
		if _, err := r.StartInterpreter(ctx, &agentv1.StartInterpreterRequest{Language: l}); err != nil {
			t.Errorf("start %s: %v", l, err)
		}
	}
	_, err := r.StartInterpreter(ctx, &agentv1.StartInterpreterRequest{Language: "cobol"})
	guesttest.Refused(t, err, connect.CodeNotFound, "language not found in sandbox: cobol")
	r.eval("python", "x = 1")
	r.stop(interpreterPrefix+"python", syscall.SIGKILL, 0)
	if left := guesttest.Children(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if d := r.eval("python", "x"); d.Error != "NameError: name 'x' is not defined" {
		t.Errorf("got %v", d)
	}
}

// host is the server's side of an agent that really dials.
type host struct {
	t      *testing.T
	l      net.Listener
	secret []byte
}

func (h *host) link() *yamux.Session {
	h.t.Helper()
	c, err := h.l.Accept()
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := wire.Admit(c, h.secret, nil); err != nil {
		h.t.Fatal(err)
	}
	mux, err := yamux.Client(wire.Strict(wire.Coalesce(c)), wire.HostMuxConfig())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { mux.Close() })
	return mux
}

func (h *host) open(mux *yamux.Session, kind byte) net.Conn {
	h.t.Helper()
	s, err := mux.OpenStream()
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := s.Write([]byte{kind}); err != nil {
		h.t.Fatal(err)
	}
	s.SetDeadline(time.Now().Add(30 * time.Second))
	return s
}

// run runs one request on a run stream and returns its last event.
func (h *host) run(s net.Conn, m *agentv1.RunRequest) *agentv1.RunEvent {
	h.t.Helper()
	if err := wire.WriteMessage(s, m); err != nil {
		h.t.Fatal(err)
	}
	for {
		e := new(agentv1.RunEvent)
		if err := wire.ReadMessage(s, e); err != nil {
			h.t.Fatal(err)
		}
		if e.GetExecuted() != nil || e.GetEvaluated() != nil || e.GetRefused() != nil {
			return e
		}
	}
}

func (h *host) client(mux *yamux.Session) agentv1connect.AgentClient {
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return h.open(mux,
			wire.CallStream), nil
	}}
	h.t.Cleanup(tr.CloseIdleConnections)
	return agentv1connect.NewAgentClient(&http.Client{Transport: tr}, "http://agent")
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, secret: []byte(strings.Repeat("s", wire.SecretLen))}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	h.l = l
	a := New(Config{Socket: socket, Secret: h.secret, Env: []string{"PATH=/usr/bin:/bin"}})
	a.output.dir = t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		l.Close()
	})
	return h
}

func shRun(script string) *agentv1.RunRequest {
	return execRun(&agentv1.ExecRequest{Command: sh(script)})
}

// After a break the agent dials again, and what it owns lived on.
func TestTheLinkBreaks(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	mux := h.link()
	c := h.client(mux)
	_, err := c.Configure(t.Context(), &agentv1.ConfigureRequest{FileRoots: []*agentv1.FileRoot{{Path: dir}},
		Languages: languages(), Env: map[string]string{"E": "bound"}})
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Hello(t.Context(), &agentv1.HelloRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s := h.open(mux, wire.RunStream)
	for range 3 { // one request after the other on one stream
		if d := h.run(s, shRun("echo $E")).GetExecuted(); string(d.GetStdout().GetHead()) != "bound\n" {
			t.Errorf("got %v", d)
		}
	}
	if e := h.run(s, &agentv1.RunRequest{}); e.GetRefused() == nil {
		t.Errorf("got %v", e)
	}
	started, err := c.StartProcess(t.Context(),
		&agentv1.StartProcessRequest{Command: sh("echo begun; read x; echo $x; sleep 60"), StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	id := started.ProcessId
	mux.Close()

	mux = h.link()
	c = h.client(mux)
	after, err := c.Hello(t.Context(), &agentv1.HelloRequest{})
	if err != nil || after.BootId != before.BootId {
		t.Errorf("it is another agent: %v, %v", after, err)
	}
	if _, err := c.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id,
		Data: []byte("word\n")}); err != nil {
		t.Fatal(err)
	}
	out := ""
	for cursor := uint64(0); !strings.Contains(out, "word"); {
		m, err := c.ReadProcess(t.Context(), &agentv1.ReadProcessRequest{ProcessId: id, Cursor: cursor, MaxBytes: 100,
			WaitMillis: 10_000})
		if err != nil || len(m.Output) == 0 {
			t.Fatalf("after %q: %v", out, err)
		}
		out, cursor = out+string(m.Output), m.Cursor
	}
	if out != "begun\nword\n" {
		t.Errorf("its output is %q", out)
	}
	if m, err := c.StopProcess(t.Context(), &agentv1.StopProcessRequest{ProcessId: id, Signal: 15,
		GraceMillis: 5000}); err != nil || m.Running {
		t.Errorf("stopped: %v, %v", m, err)
	}
}

// A run whose stream is closed is stopped.
func TestTheHostGoesAway(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	mux := h.link()
	if _, err := h.client(mux).Configure(t.Context(),
		&agentv1.ConfigureRequest{FileRoots: []*agentv1.FileRoot{{Path: dir}}}); err != nil {
		t.Fatal(err)
	}
	for name, leave := range map[string]func(net.Conn){
		"the stream": func(s net.Conn) { s.Close() },
		"the link":   func(net.Conn) { mux.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "pid")
			os.Remove(file)
			if mux.IsClosed() {
				mux = h.link()
			}
			s := h.open(mux, wire.RunStream)
			if err := wire.WriteMessage(s, shRun("sleep 60 & echo $! >pid.new; mv pid.new pid; wait")); err != nil {
				t.Fatal(err)
			}
			var pid []byte
			for range 1000 {
				if pid, _ = os.ReadFile(file); len(pid) > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			leave(s)
			dead(t, number(t, pid))
		})
	}
}

// A host that does not know the secret's answer, or hangs up, is dialed again.
func TestTheAgentDialsAgain(t *testing.T) {
	h := newHost(t)
	for _, answer := range []string{"", "\x15", "HTTP/1.1 400\r\n"} {
		c, err := h.l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		greeting := make([]byte, len(wire.Greeting)+wire.SecretLen)
		if n, err := c.Read(greeting); err != nil || n != len(greeting) {
			t.Errorf("the greeting: %d bytes, %v", n, err)
		}
		c.Write([]byte(answer))
		c.Close()
	}
	mux := h.link()
	if _, err := h.client(mux).Hello(t.Context(), &agentv1.HelloRequest{}); err != nil {
		t.Error(err)
	}
	// A kind of stream that it does not know is closed.
	if n, err := h.open(mux, '?').Read(make([]byte, 1)); err == nil {
		t.Errorf("an unknown kind: %d bytes", n)
	}
	if _, err := h.client(mux).Hello(t.Context(), &agentv1.HelloRequest{}); err != nil {
		t.Error(err)
	}
}

func TestFromEnvironment(t *testing.T) {
	good := strings.Repeat("0a", wire.SecretLen)
	t.Setenv(wire.EnvSecret, good)
	t.Setenv(wire.EnvSocket, "/x.sock")
	boot, err := proto.Marshal(&agentv1.Boot{Warm: []string{"python"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(wire.EnvBoot, base64.StdEncoding.EncodeToString(boot))
	t.Setenv("KEPT", "yes")
	c, err := FromEnvironment()
	if err != nil || len(c.Secret) != wire.SecretLen || c.Secret[0] != 10 || c.Socket != "/x.sock" ||
		!slices.Equal(c.Boot.Warm, []string{"python"}) || c.Init != (os.Getpid() == 1) {
		t.Errorf("got %+v, %v", c, err)
	}
	all := strings.Join(append(c.Env, os.Environ()...), "\n")
	if strings.Contains(all, "SANDLOT_AGENT") || strings.Contains(all, good) || !strings.Contains(all, "KEPT=yes") {
		t.Error("what it was told is still in the environment")
	}
	for _, bad := range []string{"", "0a", good + "0a", strings.Repeat("zz", wire.SecretLen)} {
		t.Setenv(wire.EnvSecret, bad)
		if _, err := FromEnvironment(); err == nil {
			t.Errorf("secret %q was taken", bad)
		}
	}
	t.Setenv(wire.EnvSecret, good)
	for _, bad := range []string{"lots?", "////"} {
		t.Setenv(wire.EnvBoot, bad)
		if _, err := FromEnvironment(); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	t.Setenv(wire.EnvBoot, "")
	if c, err := FromEnvironment(); err == nil && c.Socket == "" {
		t.Error("no socket")
	}
}

// The environment of a call wins over the session's, that over the template's.
func TestEnvironment(t *testing.T) {
	r := newRig(t)
	if _, err := r.Configure(t.Context(), &agentv1.ConfigureRequest{Env: map[string]string{"A": "session",
		"HOME": "/session"}}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(r.environment(map[string]string{"A": "call"}, false), " ")
	if got != "A=call HOME=/session LANG=C.UTF-8 PATH=/usr/bin:/bin" {
		t.Errorf("got %s", got)
	}
	if got := strings.Join(r.environment(nil, false), " "); !strings.Contains(got, "A=session") {
		t.Errorf("a call's variable stays: %s", got)
	}
}

func TestUsage(t *testing.T) {
	r := newRig(t)
	usage := func() *agentv1.UsageResponse {
		u, err := r.Usage(t.Context(), &agentv1.UsageRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if u := usage(); u.Busy || u.MemoryBytes == 0 {
		t.Errorf("at rest: %v", u)
	}
	id := r.start(&agentv1.StartProcessRequest{Command: sh("echo x; sleep 60; :")})
	r.output(id, 0, 10, 10_000)
	if u := usage(); !u.Busy || u.Processes == 0 {
		t.Errorf("with a process: %v", u)
	}
	r.stop(id, 9, 0)
	if u := usage(); u.Busy {
		t.Errorf("after it: %v", u)
	}
}
