package interp

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPythonValues(t *testing.T) {
	l := python(t)
	for _, tt := range []struct{ code, value, out string }{
		{"1 + 1", "2", ""},
		{"print(42)", "", "42\n"},
		{"x = 5", "", ""},
		{"x * 2", "10", ""},
		{"_ + 1", "11", ""},
		{"'text'", "'text'", ""},
		{"None", "", ""},
		{"for i in range(2): print(i)", "", "0\n1\n"},
		{"def f(a):\n    return a + x\n\nf(1)", "6", ""},
		{"# nothing but a comment", "", ""},
		{"x; y = 3", "", ""},
		{"y", "3", ""},
		// A semicolon at the end silences the value.
		{"x;", "", ""},
		{"x; # why", "", ""},
		{"(\n  x\n);", "", ""},
		{"x # no semicolon;", "5", ""},
		{"'a;'", "'a;'", ""},
		{"(w := x + 1)", "6", ""},
		{"w", "6", ""},
		{"1, 2", "(1, 2)", ""},
		{"*'ab', 'c'", "('a', 'b', 'c')", ""},
		{"x\n# done;", "5", ""},
		// await
		{"import asyncio\nawait asyncio.sleep(0)\n7", "7", ""},
		{"async def g(): return 3\nawait g()", "3", ""},
		{"z = await g()", "", ""},
		{"z", "3", ""},
		{"asyncio.run(g())", "3", ""},
		{"await asyncio.gather(g(), g())", "[3, 3]", ""},
		// other ways of writing
		{"import sys\n_ = sys.stdout.write('no newline')", "", "no newline"},
		{"import subprocess\nsubprocess.run(['echo', 'child']).returncode", "0", "child\n"},
		{"import os\nos.system('echo shell')", "0", "shell\n"},
		{"__name__", "'__main__'", ""},
		{"'ä😀\\ud800'", `'ä😀\ud800'`, ""},
		{"print('ä😀')", "", "ä😀\n"},
		{"print('\\ud800')", "", "\\ud800\n"},
		{"input.__name__", "'input'", ""},
	} {
		l.want(tt.code, tt.value, tt.out)
	}
}

func TestPythonErrors(t *testing.T) {
	l := python(t)
	l.want("kept = 1", "", "")
	o := l.fails("def f():\n    raise ValueError('oh')\n\n\nf()", 1, "line 5, in <module>", "line 2, in f",
		"raise ValueError('oh')", "ValueError: oh")
	if o.Error != "ValueError: oh" {
		t.Errorf("the error is %q", o.Error)
	}
	if strings.Contains(o.Traceback, "<string>") || strings.Contains(o.Traceback, "run_code") {
		t.Errorf("the traceback shows the driver:\n%s", o.Traceback)
	}
	l.fails("x = (1,\n  2\nfoo bar", 1, "SyntaxError")
	l.fails("print('a')\n  print('b')", 1, "IndentationError", "line 2")
	l.fails("1 +", 1, "SyntaxError", "line 1")
	l.fails("return 1", 1, "'return' outside function")
	l.fails("f()", 1, "line 1, in <module>", "line 2, in f", "raise ValueError('oh')") // of the earlier cell
	l.fails("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e", 1, "ZeroDivisionError",
		"direct cause", "KeyError")
	o = l.fails("import asyncio\nasync def g():\n    await asyncio.sleep(0)\n    1/0\nawait g()", 1, "line 4, in g",
		"ZeroDivisionError")
	if strings.Contains(o.Traceback, "run_until_complete") {
		t.Errorf("the traceback shows the loop:\n%s", o.Traceback)
	}
	l.fails("def r(): r()\nr()", 1, "RecursionError")
	l.fails("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E()", 1)
	l.fails("int('x' * 10)", 1, "ValueError")
	l.fails("raise KeyboardInterrupt", 130)
	l.fails("raise BaseException('base')", 1, "base")
	l.fails("raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])", 1, "ValueError: a", "KeyError")
	l.want("kept", "1", "")
	// A warning is no failure.
	if o := l.run("import warnings\nwarnings.warn('careful')\n1"); !o.OK || !strings.Contains(o.err, "careful") ||
		o.value() != "1" {
		t.Errorf("a warning: %s", o)
	}
	for _, code := range []string{"'a' is 'a'", "s = 'a' is 'a'", "len('\\d')", "s = '\\d'"} {
		if o := l.run(code); !o.OK || strings.Count(o.err, "Warning") > 1 {
			t.Errorf("%s warns twice: %s", code, o)
		}
	}
}

// The marks beneath a line of a traceback stand where they belong, in the last
// line of a cell, too.
func TestPythonTracebackMarks(t *testing.T) {
	l := python(t)
	if got := l.run("import sys; sys.version_info >= (3, 11)").value(); got != "True" {
		return // this Python makes no marks
	}
	for _, code := range []string{"1/0", "1/0\n", "x = 1\n1/0"} {
		if o := l.run(code); !strings.Contains(o.Traceback, "\n    1/0\n    ~^~\n") {
			t.Errorf("%q: %s", code, o.Traceback)
		}
	}
}

func TestPythonExit(t *testing.T) {
	l := python(t)
	l.want("kept = 1", "", "")
	l.fails("import sys; sys.exit(3)", 3)
	l.fails("sys.exit('goodbye')", 1, "goodbye")
	l.fails("sys.exit(256 + 7)", 7)
	l.fails("sys.exit(-1)", 255)
	l.want("sys.exit()", "", "")
	l.want("sys.exit(0)", "", "")
	l.want("exit(0)", "", "")
	l.want("kept", "1", "")
	o := l.fails("import os\nos.write(1, b'last words')\nos._exit(4)", 4)
	if !o.StateLost || !strings.Contains(o.Reason, "code 4") || o.out != "last words" {
		t.Errorf("a death: %s", o)
	}
	o = l.fails("kept", 1, "NameError")
	if o.StateLost {
		t.Errorf("the loss is told twice: %s", o)
	}
	o = l.fails("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(5)", 143)
	if !o.StateLost || !strings.Contains(o.Reason, "signal 15") {
		t.Errorf("a death by a signal: %s", o)
	}
	l.want("1", "1", "")
}

// A death between two calls is told by the next one.
func TestPythonDeathBetweenCalls(t *testing.T) {
	l := python(t)
	pid := l.run("import threading, os\nthreading.Timer(0.1, lambda: os._exit(9)).start()\nos.getpid()").value()
	for range 500 {
		time.Sleep(time.Millisecond)
		if l.run("1").StateLost {
			if got := l.run("import os; os.getpid()").value(); got == pid {
				t.Error("it is the same process")
			}
			return
		}
	}
	t.Error("nobody told that the process died")
}

func TestPythonTimeouts(t *testing.T) {
	l := python(t)
	l.want("import time, asyncio; kept = 1", "", "")
	for _, code := range []string{
		"while True: pass",
		"print('begun', flush=True)\ntime.sleep(60)",
		"await asyncio.sleep(60)",
		"import subprocess\nsubprocess.run(['sleep', '60'])",
		"input.__self__\ntime.sleep(60)\n",
		"try:\n    while True: pass\nexcept Exception: pass",
	} {
		o := l.timed(code)
		if o.OK || !o.TimedOut || o.StateLost {
			t.Errorf("%q: %s", code, o)
		}
		if strings.Contains(code, "begun") && o.out != "begun\n" {
			t.Errorf("what was printed until then is lost: %s", o)
		}
		l.want("kept", "1", "")
	}
	// The loop works after it was interrupted.
	l.want("await asyncio.sleep(0, 'awake')", "'awake'", "")
	// In time is in time.
	if o := l.timed("kept"); !o.OK || o.TimedOut {
		t.Errorf("a cell that is quick: %s", o)
	}
}

// Code that will not stop is killed, and the result says so.
func TestPythonThatWillNotStop(t *testing.T) {
	l := python(t)
	l.want("kept = 1", "", "")
	o := l.timed("import time\nwhile True:\n    try:\n        while True: time.sleep(1)\n    except " +
		"KeyboardInterrupt: print('never', flush=True)")
	if o.OK || !o.TimedOut || !o.StateLost || !strings.Contains(o.Reason, "did not stop") || !strings.Contains(o.out,
		"never") {
		t.Errorf("got %s", o)
	}
	l.fails("kept", 1, "NameError")
}

func TestPythonMendsItsStreams(t *testing.T) {
	l := python(t)
	for _, breaks := range []string{"import sys; sys.stdout.close()", "import os; os.close(1)",
		"import sys; sys.stdout = None", "import sys; sys.stderr.close()", "import os; os.close(2)",
		"import os; os.close(1); os.close(2)",
		"import sys; _ = sys.stdout.detach()", "import sys; del sys.stdout",
		"import sys, io; sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')"} {
		if o := l.run(breaks); !o.OK || o.StateLost {
			t.Errorf("%q: %s", breaks, o)
		}
		if o := l.run("import sys; print('out'); print('err', file=sys.stderr)"); !o.OK || o.out != "out\n" ||
			o.err != "err\n" {
			t.Errorf("after %q: %s", breaks, o)
		}
	}
}

// A process that the code forks is nobody to answer.
func TestPythonFork(t *testing.T) {
	l := python(t)
	l.want("import os, sys\nkept = 1", "", "")
	for range 3 {
		o := l.run("pid = os.fork()\n'parent' if pid else 'child'")
		if o.value() != "'parent'" {
			t.Errorf("fork: %s", o)
		}
		l.want("os.waitpid(pid, 0)[1]", "0", "")
	}
	o := l.run("pid = os.fork()\nif not pid:\n    os.write(1, b'from the child')\n    raise ValueError('in the " +
		"child')\nos.waitpid(pid, 0)[1]")
	if !o.OK || !strings.Contains(o.out, "from the child") {
		t.Errorf("a child that fails: %s", o)
	}
	l.want("import multiprocessing as mp\ndef work(n): return n * n\n\nwith mp.get_context('fork').Pool(2) as p: "+
		"r = p.map(work, [1, 2, 3])\n\nr", "[1, 4, 9]", "")
	l.want("kept", "1", "")
}

func TestPythonRich(t *testing.T) {
	l := python(t)
	tests := []struct {
		name, code string
		mime       []string
		data       []string
	}{
		{"png", "class P:\n    def _repr_png_(self): return b'\\x89PNG\\0'\nP()", []string{"image/png"},
			[]string{"\x89PNG\x00"}},
		{"html", "class H:\n    def _repr_html_(self): return '<b>ä</b>'\nH()", []string{"text/html"},
			[]string{"<b>ä</b>"}},
		{"the best of several", "class B(P, H): pass\nB()", []string{"image/png"}, []string{"\x89PNG\x00"}},
		{"bundle", "class M:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': " +
			"'x', 'text/markdown': '*m*'}\nM()", []string{"text/markdown"}, []string{"*m*"}},
		{"none to show", "class N:\n    def _repr_html_(self): return None\nN()", nil, nil},
		{"a class itself", "H", nil, nil},
		{"display", "display(H(), P())", []string{"text/html", "image/png"}, []string{"<b>ä</b>", "\x89PNG\x00"}},
		{"silenced", "H();", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := l.run(tt.code)
			if !o.OK || len(o.Rich) != len(tt.mime) {
				t.Fatalf("%d rich values: %s", len(o.Rich), o)
			}
			for i, r := range o.Rich {
				if r.MIME != tt.mime[i] || string(r.Data) != tt.data[i] {
					t.Errorf("%s: %q, want %s: %q", r.MIME, r.Data, tt.mime[i], tt.data[i])
				}
			}
		})
	}
	l.want("display('text', 5)", "", "'text'\n5\n")
	o := l.run("class Huge:\n    def _repr_png_(self): return b'x' * (9 << 20)\nHuge()")
	if !o.OK || len(o.Rich) != 0 || !strings.Contains(o.err, "left out") {
		t.Errorf("a rich value that is too large: %s", o)
	}
	o = l.run("class Broken:\n    def _repr_html_(self): raise ValueError('display')\nBroken()")
	if o.StateLost || o.OK && len(o.Rich) > 0 {
		t.Errorf("a display that fails: %s", o)
	}
}

// Whatever the code makes, its answer is bounded and comes.
func TestPythonHugeResults(t *testing.T) {
	l := python(t)
	for _, code := range []string{
		"'x' * (9 << 20)",
		"'\\U0001F600' * (9 << 20)",
		"'\\x01' * (9 << 20)",
		"class Raw:\n    def __repr__(self): return '\\x01' * (9 << 20)\nRaw()",
		"list(range(2_000_000))",
		"class Both:\n    def _repr_png_(self): return b'x' * (8 << 20)\n    def __repr__(self): return '\\x01' " +
			"* (9 << 20)\nBoth()",
	} {
		o := l.run(code)
		if !o.OK || o.value() == "" || len(o.value()) > 17<<20 {
			t.Errorf("%.60q: %d bytes: %s", code, len(o.value()), o)
		}
	}
	for _, code := range []string{
		"raise ValueError('x' * (20 << 20))",
		"raise ValueError('\\U0001F600' * (5 << 20))",
		"raise ValueError('line\\n' * (1 << 20))",
		"assert False, 'y' * (20 << 20)",
	} {
		o := l.run(code)
		if o.OK || o.Exit != 1 || o.Error == "" || len(o.Error)+len(o.Traceback) > 2<<20 || o.StateLost {
			t.Errorf("%.60q: error of %d bytes, traceback of %d: %s", code, len(o.Error), len(o.Traceback), o)
		}
	}
	l.want("1", "1", "")
}

// What the code puts in place of a stream is touched by its own thread alone, at
// the end of a cell, and never while the driver writes its own.
func TestPythonLeavesOthersStreamsAlone(t *testing.T) {
	l := python(t)
	if o := l.run(`import os, sys, threading, time
class Mine:
    threads, depth = [], 0
    def write(self, text): pass
    def flush(self):
        self.threads.append(threading.current_thread() is threading.main_thread())
        os.write(1, b'flushed\n')
real, mine = sys.stdout, Mine()
sys.stdout = mine
real.write('first\n')
time.sleep(0.3)`); !o.OK || o.out != "first\nflushed\n" {
		t.Error(o)
	}
	l.want("sys.stdout = real; mine.threads", "[True]", "")
}

// An interrupt while a process is forked stops the code, and not the thread that
// writes its output.
func TestPythonInterruptedWhileItForks(t *testing.T) {
	l := python(t)
	for _, hook := range []string{"before_fork", "after_fork_in_parent"} {
		o := l.run(`import os, signal, sys
def spy(frame, event, arg):
    if frame.f_code.co_name == '` + hook + `' and event == 'call':
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(spy)
if os.fork() == 0: os._exit(0)
print('not stopped')`)
		if o.OK || !o.Interrupted || o.StateLost || o.out != "" || o.err != "" {
			t.Errorf("in %s: %s", hook, o)
		}
	}
	l.want("import subprocess, pty; subprocess.run(['echo', 'a'], preexec_fn=lambda: None).returncode", "0", "a\n")
	var out safe
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx, Cell{Code: "import time\nprint('here')\ntime.sleep(60)", Stdout: &out, Stderr: new(safe)})
	}()
	for end := time.Now().Add(20 * time.Second); out.String() == "" && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if out.String() != "here\n" {
		t.Error("nobody writes any more what is printed while the code runs")
	}
	cancel()
	<-ended
}

// A cell may end before the process has heard the signal that was to stop it.
func TestPythonHearsASignalLate(t *testing.T) {
	l := python(t)
	l.want("import time; kept = 1", "", "")
	l.process.signalsSent++
	late := time.AfterFunc(30*time.Millisecond, func() { l.Signal(unix.SIGINT) })
	defer late.Stop()
	l.want("time.sleep(0.1); kept", "1", "")
	l.want("kept", "1", "")
	l.process.signalsSent++ // and one that never comes costs a moment
	l.want("kept", "1", "")
}

// Who closes the descriptors of the interpreter learns that, and the next call works.
func TestClosedDescriptors(t *testing.T) {
	each := map[string]string{
		"python": "import os\nprint('last')\nfor fd in range(3, 20):\n    try: os.close(fd)\n    except " +
			"OSError: pass",
		"python, taken": "import os\nprint('last')\nos.closerange(3, 256)\nf = [open('/dev/null', 'r+b') for _ " +
			"in range(20)]",
		"python, after": "import os, threading\nprint('last')\nthreading.Timer(0.1, os.closerange, (3, 256)).start()",
	}
	for name, code := range each {
		t.Run(name, func(t *testing.T) {
			l := python(t)
			l.want("kept = 1", "", "")
			o := l.run(code)
			if strings.HasSuffix(name, "after") {
				time.Sleep(300 * time.Millisecond)
				o = l.run("")
			} else if o.OK || o.out != "last\n" || o.Exit != 1 {
				t.Errorf("got %s", o)
			}
			if !o.StateLost || !strings.Contains(o.Reason, "file descriptors") {
				t.Errorf("got %s", o)
			}
			l.want("6 * 7", "42", "")
		})
	}
	b := bash(t)
	b.want("x=5", "", "")
	if o := b.run("for fd in {3..19}; do eval \"exec $fd>&-\"; done; echo last"); o.StateLost || o.out != "last\n" {
		t.Errorf("bash: %s", o)
	}
	b.want("echo $x", "", "5\n")
	n := node(t)
	if o := n.run("for (let fd = 3; fd < 20; fd++) try { require('fs').closeSync(fd) } catch {}"); o.OK ||
		!o.StateLost {
		t.Errorf("node: %s", o)
	}
	n.want("6 * 7", "42", "")
	if o := n.run("for (const fd of [3, 4]) require('fs').closeSync(fd)"); o.OK || !o.StateLost ||
		!strings.Contains(o.Reason, "file descriptors") {
		t.Errorf("node: %s", o)
	}
	n.want("6 * 7", "42", "")
}
