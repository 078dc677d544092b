package interp

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// What is printed stands in the order in which it was, whoever writes it.
func TestPythonOutputOrder(t *testing.T) {
	l := python(t)
	l.want("import os, sys, subprocess, signal, io", "", "")
	for _, tt := range []struct{ code, out string }{
		{"print('a'); _ = os.write(1, b'b\\n'); print('c')", "a\nb\nc\n"},
		{"print('a'); _ = sys.stdout.buffer.write(b'b\\n'); print('c')", "a\nb\nc\n"},
		{"print('a'); f = os.fdopen(sys.stdout.fileno(), 'w', closefd=False); print('b', file=f, flush=True); " +
			"print('c'); print('d', file=f, flush=True)", "a\nb\nc\nd\n"},
		{"print('a'); _ = os.system('echo b'); print('c')", "a\nb\nc\n"},
		{"print('a'); _ = subprocess.run(['echo', 'b']); print('c')", "a\nb\nc\n"},
		{"print('a'); _ = subprocess.run('echo b', shell=True, preexec_fn=lambda: None); print('c')", "a\nb\nc\n"},
		{"print('a'); _ = os.waitpid(os.posix_spawn('/bin/echo', ['echo', 'b'], {}), 0); print('c')", "a\nb\nc\n"},
		{"print('a'); _ = os.spawnlp(os.P_WAIT, 'echo', 'echo', 'b'); print('c')", "a\nb\nc\n"},
		{"print('a')\nif os.fork() == 0:\n    print('b')\n    os._exit(0)\n_ = os.wait()\nprint('c')", "a\nb\nc\n"},
		{"print('a')\nif os.fork() == 0:\n    print('b')\n    os.execvp('echo', ['echo', 'c'])\n_ = " +
			"os.wait()\nprint('d')", "a\nb\nc\nd\n"},
		{"import multiprocessing\ndef say(x): print(x)\nprint('a')\np = " +
			"multiprocessing.get_context('fork').Process(target=say, args=('b',)); p.start(); p.join()\nprint('c')",
			"a\nb\nc\n"},
		{"import threading\nprint('a')\nt = threading.Thread(target=print, args=('b',)); t.start(); " +
			"t.join()\nprint('c')", "a\nb\nc\n"},
		{"print('a', end=''); sys.stdout.flush(); _ = os.write(1, b'b'); print('c', end='')", "abc"},
		{"print('a'); k = os.dup(1); f = os.open('moved', os.O_CREAT | os.O_WRONLY); _ = os.dup2(f, 1); " +
			"print('in the file'); _ = os.dup2(k, 1); os.close(k); os.close(f); " +
			"print('b')\nprint(open('moved').read(), end='')", "a\nb\nin the file\n"},
		{"import contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as s: print('caught')\nprint('a', " +
			"s.getvalue(), end='')", "a caught\n"},
	} {
		l.want(tt.code, "", tt.out)
	}
	for _, tt := range []struct {
		code string
		exit int32
	}{{"print('last'); os._exit(4)", 4}, {"print('last'); os.kill(os.getpid(), signal.SIGKILL)", 137},
		{"print('last'); os.abort()", 134},
		{"print('last'); signal.raise_signal(signal.SIGKILL)", 137}, {"print('last'); os.execvp('true', ['true'])",
			0}} {
		if o := l.run("import os, signal\n" + tt.code); o.Exit != tt.exit || o.out != "last\n" || !o.StateLost {
			t.Errorf("%s: %s", tt.code, o)
		}
	}
}

// Of a burst of writes no more than a few lines wait in Node, though the code then
// blocks the event loop in silence and is killed.
func TestNodeTailOfABurst(t *testing.T) {
	l := node(t)
	for _, n := range []int{5, 90, 2007, 20_011} {
		var out safe
		done := make(chan *Result, 1)
		go func() {
			code := fmt.Sprintf("for (let i = 1; i <= %d; i++) console.log(i); Atomics.wait(new Int32Array(new "+
				"SharedArrayBuffer(4)), 0, 0, 60000)", n)
			r, _ := l.Run(t.Context(), Cell{Code: code, Stdout: &out, Stderr: new(safe)})
			done <- r
		}()
		few := n - 31
		if n < 100 {
			few = n
		}
		lines := func() int { return strings.Count(out.String(), "\n") }
		for end := time.Now().Add(time.Minute); lines() < few && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		if got := lines(); got < few || got > n {
			t.Errorf("%d of %d lines came while the code ran", got, n)
		}
		l.Signal(unix.SIGKILL)
		<-done
	}
}

func TestNodeOutputOrder(t *testing.T) {
	l := node(t)
	many := "for (let i = 0; i < 300; i++) console.log('-'); "
	l.want("const fs = require('fs'), cp = require('child_process'); var w = require('worker_threads')", "", "")
	for _, code := range []string{
		"cp.spawnSync('echo', ['b'], {stdio: 'inherit'})",
		"cp.execSync('echo b', {stdio: 'inherit'})",
		"await new Promise((end) => cp.spawn('echo', ['b'], {stdio: 'inherit'}).on('close', end))",
		"fs.writeSync(1, 'b\\n')", "fs.writeFileSync(1, 'b\\n')", "fs.writeFileSync('/dev/stdout', 'b\\n')",
		"process.stdout.write(Buffer.from('b\\n'))",
		"process.stdout.write('Ygo=', 'base64')", "await new Promise((done) => process.stdout.write('b\\n', done))",
		"(await import('fs')).writeSync(1, 'b\\n')",
	} {
		l.want(many+"console.log('a'); "+code+"; console.log('c'); void 0", "", strings.Repeat("-\n", 300)+"a\nb\nc\n")
	}
	l.want("await new Promise((end) => new w.Worker('console.log(\"b\")', {eval: true}).on('exit', end)); void 0", "",
		"b\n")
	for code, exit := range map[string]int32{"process.exit(3)": 3, "process.abort()": 134,
		"process.kill(process.pid, 'SIGKILL'); for (;;);": 137} {
		if o := l.run(many + "console.log('last'); " + code); o.Exit != exit || !strings.HasSuffix(o.out, "-\nlast\n") {
			t.Errorf("%s: %s", code, o)
		}
	}
}

// meter counts what comes, and remembers how it came.
type meter struct {
	bytes, writes atomic.Int64
}

func (m *meter) Write(p []byte) (int, error) {
	m.bytes.Add(int64(len(p)))
	m.writes.Add(1)
	return len(p), nil
}

// Code that prints much line by line wakes the reader seldom, and no byte is lost.
func TestManyLines(t *testing.T) {
	for name, l := range map[string]*lang{"python": python(t), "node": node(t), "bash": bash(t)} {
		code := map[string]string{"python": "for i in range(100000): print(i)",
			"node": "for (let i = 0; i < 100000; i++) console.log(i)",
			"bash": "for ((i=0; i<100000; i++)); do echo $i; done"}[name]
		t.Run(name, func(t *testing.T) {
			var m meter
			r, err := l.Run(t.Context(), Cell{Code: code, Stdout: &m, Stderr: new(safe)})
			if err != nil || !r.OK || m.bytes.Load() != 588_890 {
				t.Fatalf("%d bytes came: %v, %v", m.bytes.Load(), r, err)
			}
			if m.writes.Load() > 5000 {
				t.Errorf("%d writes for 100000 lines", m.writes.Load())
			}
		})
	}
}

// What is printed is there soon, while the code runs on, and after it was killed.
func TestOutputWhileCodeRuns(t *testing.T) {
	busy := map[string]string{
		"python":      "print('begun')\nprint('more', end='')\nwhile True: pass",
		"python in C": "import time\nprint('begun')\nprint('more', end='')\ntime.sleep(60)",
		"python's threads": "import threading\nt = threading.Thread(target=lambda: print('begun\\nmore', " +
			"end=''))\nt.start()\nthreading.Event().wait()",
		"node": "console.log('begun'); process.stdout.write('more'); for (;;);",
		"node's loop": "for (let i = 0; i < 500; i++) process.stdout.write('-'); console.log('begun'); " +
			"process.stdout.write('more'); await new Promise(() => {})",
		"bash": "echo begun; printf more; while :; do :; done",
	}
	for name, code := range busy {
		t.Run(name, func(t *testing.T) {
			l := map[string]func(*testing.T) *lang{"python": python, "node": node,
				"bash": bash}[strings.Fields(strings.ReplaceAll(name, "'", " "))[0]](t)
			var out safe
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan *Result, 1)
			go func() {
				r, _ := l.Run(ctx, Cell{Code: code, Stdout: &out, Stderr: new(safe)})
				done <- r
			}()
			for end := time.Now().Add(10 * time.Second); !strings.HasSuffix(out.String(), "begun\nmore") &&
				time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			if got := out.String(); !strings.HasSuffix(got, "begun\nmore") {
				t.Errorf("while it ran only this came: %q", got)
			}
			cancel()
			<-done
		})
	}
	l := python(t)
	o := l.run("import ctypes, os, time\nprint('kept')\ntime.sleep(0.5)\nctypes.CDLL(None)['raise'](9)")
	if o.Exit != 137 || o.out != "kept\n" {
		t.Errorf("killed behind Python's back: %s", o)
	}
}

// Python says nothing of the thread that writes for it: newer ones warn of a fork
// beside threads.
func TestForkWarnsOfNoThread(t *testing.T) {
	path := program(t, "python3")
	for _, name := range []string{"python3.12", "python3.13", "python3.14"} {
		if out, err := exec.Command(name, "-c", "import sys; print(sys.executable)").Output(); err == nil {
			path = strings.TrimSpace(string(out))
		}
	}
	newLang(t, "python", path).want("import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)[1]", "0",
		"")
}

// The drivers know the order of what the code writes to both streams, and say nothing where they do not.
func TestOrderOfStreams(t *testing.T) {
	const pythonTurns = "import sys\nfor i in range(3): print('o%d' % i); print('e%d' % i, file=sys.stderr)\nprint('ö')"
	const nodeTurns = "for (let i = 0; i < 3; i++) { console.log('o' + i); console.error('e' + i); }; console.log('ö')"
	const turns = "o0\ne0\no1\ne1\no2\ne2\nö\n"
	for _, tt := range []struct {
		l       *lang
		code    string
		want    string // "": the order is not known
		unknown bool
	}{
		{l: python(t), code: pythonTurns, want: turns},
		{l: node(t), code: nodeTurns, want: turns},
		{l: python(t), code: "import sys; sys.stderr.write('e'); print('o'); print('f', file=sys.stderr)", want: "eo\nf\n"},
		{l: node(t), code: "process.stderr.write('e'); process.stdout.write(Buffer.from('o')); console.error('f')", want: "eof\n"},
		{l: python(t), code: pythonTurns + "\nimport os; _ = os.write(1, b'more')", unknown: true},
		{l: python(t), code: pythonTurns + "\nimport os; _ = os.system('echo more >&2')", unknown: true},
		{l: node(t), code: nodeTurns + "; require('fs').writeSync(2, 'more')", unknown: true},
	} {
		for range 2 { // a cell knows nothing of the one before it
			o := tt.l.run(tt.code)
			got := wire.Merge(o.Order, []byte(o.out), []byte(o.err))
			if string(got) != tt.want || (got == nil) != tt.unknown {
				t.Errorf("%s: %q by %v, want %q: %s", tt.code, got, o.Order, tt.want, o)
			}
		}
	}
	for code, l := range map[string]*lang{"print('only')": python(t), "console.log('only')": node(t)} {
		if o := l.run(code); o.Order != nil {
			t.Errorf("%s: %v", code, o.Order)
		}
	}
}
