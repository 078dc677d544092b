package interp

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/guest/guesttest"
)

func TestMain(m *testing.M) { guesttest.Main(m) }

// program finds a real interpreter.
func program(t *testing.T, name string) string {
	t.Helper()
	if p := filepath.Join("/usr/bin", name); name == "bash" || exec.Command(p, "--version").Run() == nil {
		return p
	}
	if p := guesttest.Python(); name == "python3" && p != "" {
		return p
	}
	t.Skipf("there is no %s here", name)
	return ""
}

func start(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	attr.Sys = &syscall.SysProcAttr{Setsid: true}
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	c := make(chan syscall.WaitStatus, 1)
	go func() {
		var st syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &st, 0, nil); err != syscall.EINTR {
				break
			}
		}
		c <- st
	}()
	return pid, c, nil
}

// lang is one interpreter under test.
type lang struct {
	*Interp
	t *testing.T
}

// Signal sends a signal to the interpreter's process group.
func (l *lang) Signal(s syscall.Signal) {
	if pid := l.PID(); pid != 0 {
		syscall.Kill(-pid, s)
	}
}

func newLang(t *testing.T, driver string, command ...string) *lang {
	t.Helper()
	i := New(Config{Driver: driver, Command: command, Dir: t.TempDir(), Start: start,
		Env:         func() []string { return []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"} },
		KilledSince: func(time.Time) string { return "" }})
	t.Cleanup(func() {
		i.Close()
		for _, end := range []string{"", ".new", ".code"} {
			os.Remove(i.stateFile() + end)
		}
	})
	return &lang{i, t}
}

func python(t *testing.T) *lang { return newLang(t, "python", program(t, "python3")) }
func node(t *testing.T) *lang   { return newLang(t, "node", program(t, "node")) }
func bash(t *testing.T) *lang   { return newLang(t, "bash", program(t, "bash")) }

// safe is a buffer that a call may still write to.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

func (s *safe) Write(p []byte) (int, error) { s.mu.Lock(); defer s.mu.Unlock(); return s.b.Write(p) }
func (s *safe) String() string              { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

// outcome is a result with its output.
type outcome struct {
	*Result
	out, err string
}

func (o outcome) value() string {
	if o.Result.Result == nil {
		return ""
	}
	return *o.Result.Result
}

func (o outcome) String() string {
	return fmt.Sprintf("ok %v, exit %d, value %.300q, error %.300q, out %.300q, err %.600q, lost %v %q, timed "+
		"out %v, interrupted %v",
		o.OK, o.Exit, o.value(), o.Error, o.out, o.err, o.StateLost, o.Reason, o.TimedOut, o.Interrupted)
}

func (l *lang) call(ctx context.Context, c Cell) outcome {
	l.t.Helper()
	var out, err safe
	c.Stdout, c.Stderr = &out, &err
	// A cell that never ends must not hold the tests.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, rerr := l.Run(ctx, c)
	if rerr != nil {
		l.t.Fatalf("Run(%.100q): %v", c.Code, rerr)
	}
	if ctx.Err() == context.DeadlineExceeded {
		l.t.Fatalf("Run(%.100q) did not end", c.Code)
	}
	return outcome{r, out.String(), err.String()}
}

func (l *lang) run(code string) outcome {
	l.t.Helper()
	return l.call(l.t.Context(), Cell{Code: code})
}

// timed runs code whose time is short.
func (l *lang) timed(code string) outcome {
	l.t.Helper()
	return l.call(l.t.Context(), Cell{Code: code, Timeout: 300 * time.Millisecond})
}

// want runs code and compares its value and output.
func (l *lang) want(code, value, out string) {
	l.t.Helper()
	if o := l.run(code); !o.OK || o.StateLost || o.Exit != 0 || o.value() != value || o.out != out || o.err != "" {
		l.t.Errorf("%q\n got %s\nwant value %q and output %q", code, o, value, out)
	}
}

// fails runs code and wants an exit code and an error.
func (l *lang) fails(code string, exit int32, words ...string) outcome {
	l.t.Helper()
	o := l.run(code)
	if o.OK || o.Exit != exit {
		l.t.Errorf("%q\n got %s\nwant exit code %d", code, o, exit)
	}
	for _, w := range words {
		if !strings.Contains(o.Traceback+o.err, w) {
			l.t.Errorf("%q\n the traceback does not say %q:\n%s%s", code, w, o.Traceback, o.err)
		}
	}
	return o
}

// What is no answer to this call is ignored.
func TestNonsenseOnTheDriversPipe(t *testing.T) {
	l := python(t)
	l.want(`import os
os.write(4, b'nonsense\n[1]\n{"id": "x"}\n{"id": 999, "ok": true, "result": "forged"}\n\n')
'real'`, "'real'", "")
	l.want("1", "1", "")
}

func TestTurns(t *testing.T) {
	l := python(t)
	l.want("import time; x = 0", "", "")
	first := make(chan outcome, 1)
	go func() { first <- l.call(context.Background(), Cell{Code: "time.sleep(0.4); x += 1; print('one'); x"}) }()
	for !l.Busy() {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Run(ctx, Cell{Code: "x = 100", Stdout: new(safe), Stderr: new(safe)}); err != context.Canceled {
		t.Errorf("a call that gave up waiting: %v", err)
	}
	var waited time.Duration
	second := l.call(t.Context(), Cell{Code: "x += 1; print('two'); x", Waiting: func(d time.Duration) { waited = d }})
	if o := <-first; !o.OK || o.out != "one\n" || o.value() != "1" {
		t.Errorf("the first: %s", o)
	}
	if second.out != "two\n" || second.value() != "2" {
		t.Errorf("the second: %s", second)
	}
	if waited <= 0 {
		t.Error("the second was not told that it waits")
	}
	if l.Busy() {
		t.Error("busy when nothing runs")
	}
}

func TestACancelledCall(t *testing.T) {
	for name, l := range map[string]*lang{"python": python(t), "node": node(t)} {
		t.Run(name, func(t *testing.T) {
			set, get, loop := "x = 7", "x", "import time\nwhile True: time.sleep(1)"
			if name == "node" {
				loop = "while (true) {}"
			}
			l.run(set)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(200*time.Millisecond, cancel)
			o := l.call(ctx, Cell{Code: loop})
			if o.OK || !o.Interrupted || o.TimedOut || o.StateLost || o.Exit != 130 {
				t.Errorf("cancelled: %s", o)
			}
			l.want(get, "7", "")
		})
	}
}

// stop_process sends its signal to an interpreter too.
func TestASignal(t *testing.T) {
	l := python(t)
	l.run("x = 7")
	time.AfterFunc(300*time.Millisecond, func() { l.Signal(syscall.SIGINT) })
	if o := l.run("import time\ntime.sleep(60)"); o.OK || !o.Interrupted || o.StateLost {
		t.Errorf("interrupted: %s", o)
	}
	// When nothing runs there is nothing to interrupt.
	l.Signal(syscall.SIGINT)
	l.want("x", "7", "")
}

func TestWarm(t *testing.T) {
	l := python(t)
	if l.PID() != 0 {
		t.Error("it runs before it is used")
	}
	if err := l.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := l.PID()
	l.want("import os; os.getpid()", strconv.Itoa(pid), "")
	l.Close()
	if syscall.Kill(pid, 0) != syscall.ESRCH {
		t.Error("the process lives on after Close")
	}
}

func TestAnInterpreterThatDoesNotStart(t *testing.T) {
	l := newLang(t, "python", "/usr/bin/false")
	if err := l.Warm(t.Context()); err == nil || !strings.Contains(err.Error(), "did not start") {
		t.Errorf("a program that ends at once: %v", err)
	}
	l = newLang(t, "python", "/no/such/python")
	if err := l.Warm(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/python") {
		t.Errorf("no program: %v", err)
	}
	// Who runs code there learns why.
	l = newLang(t, "python", "/bin/sh", "-c", "echo it is broken >&2; exit 5")
	if o := l.run("1"); o.OK || o.Exit != 1 || !strings.Contains(o.Traceback,
		"it ended with code 5\nit is broken\n") || !strings.Contains(o.Traceback, ".pth") {
		t.Errorf("code for it: %s", o)
	}
}

// A start that hangs takes a call no longer than its own time.
func TestAStartThatHangs(t *testing.T) {
	l := newLang(t, "python", "/bin/sh", "-c", "echo it sleeps >&2; exec sleep 1000")
	warm := make(chan error, 1)
	go func() { warm <- l.Warm(t.Context()) }()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit/2)
	defer cancel()
	o := l.call(ctx, Cell{Code: "1", Timeout: 100 * time.Millisecond})
	if o.OK || o.TimedOut || !strings.Contains(o.Error, "still starting") || !strings.Contains(o.Error,
		"sitecustomize") || l.PID() == 0 {
		t.Errorf("a call with little time: %s", o)
	}
	o = l.call(ctx, Cell{Code: "1", Timeout: slowStart})
	if o.OK || o.StateLost || !strings.Contains(o.Error, "not ready within") || !strings.Contains(o.Error,
		"it sleeps\n") || l.PID() != 0 {
		t.Errorf("a call with more: %s", o)
	}
	if err := <-warm; err == nil || ctx.Err() != nil {
		t.Errorf("whoever warmed it: %v, %v", err, ctx.Err())
	}
	// Who goes away waits no longer, and what hung is no lost state.
	l.config.Command = []string{program(t, "python3")}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Run(gone, Cell{Code: "1"}); err != context.Canceled {
		t.Errorf("a call that was given up: %v", err)
	}
	l.want("1 + 1", "2", "")
	// A start that hung before the cause was mended does not hold up the next call.
	l = newLang(t, "python", "/bin/sh", "-c", "exec sleep 1000")
	hung, err := l.ensureRunning()
	if err != nil {
		t.Fatal(err)
	}
	hung.startedAt = hung.startedAt.Add(-joinLimit)
	l.config.Command = []string{program(t, "python3")}
	l.want("1 + 1", "2", "")
}

func TestOutputBetweenCalls(t *testing.T) {
	l := python(t)
	l.want("import threading, time, os\nt = threading.Timer(0.1, lambda: os.write(1, b'late\\n'))\nt.start()", "", "")
	time.Sleep(300 * time.Millisecond)
	l.want("t.join(); print('now')", "", "late\nnow\n")
}

func TestAPieceOfAnySize(t *testing.T) {
	pad := strings.Repeat("x", 3<<20)
	python(t).want("s = '"+pad+"ä'; len(s)", strconv.Itoa(len(pad)+1), "")
	node(t).want("var s = '"+pad+"ä'; s.length", strconv.Itoa(len(pad)+1), "")
	bash(t).want("s='"+strings.Repeat("x", 100_000)+"ä'; printf %s \"$s\" | wc -c", "", "100002\n")
	python(t).want("", "", "")
	node(t).want("", "", "")
	bash(t).want("", "", "")
}

// The last bytes of a call's output are in that call's.
func TestNoOutputIsLost(t *testing.T) {
	l := python(t)
	for i := range 60 {
		want := strings.Repeat("y", i*997) + fmt.Sprint(i)
		l.want(fmt.Sprintf("print('y' * %d + '%d')", i*997, i), "", want+"\n")
	}
	l.want("import os\nfor _ in range(300): _ = os.write(1, b'z' * 1000)", "", strings.Repeat("z", 300_000))
}
