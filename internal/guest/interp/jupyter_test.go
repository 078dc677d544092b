package interp

import (
	"strings"
	"testing"
	"time"
)

// Cells run as they do in Jupyter: await in any part, tasks that go on, values that cannot be shown, pasted text.
func TestCellsAsInJupyter(t *testing.T) {
	l := python(t)
	for _, c := range []struct{ code, value, out string }{
		{"import asyncio\nasync def f(x):\n    await asyncio.sleep(0.01); return x", "", ""},
		{"t = asyncio.create_task(f(1))\nawait t", "1", ""},
		{"t = asyncio.create_task(f(6))\nprint(await t)", "", "6\n"},
		{"t3 = asyncio.create_task(f(3))", "", ""},
		{"await t3", "3", ""},
		{"u = asyncio.gather(f(1), f(2)); [await u, asyncio.get_running_loop() is not None]", "[[1, 2], True]", ""},
		{"asyncio.run(f(8))", "8", ""},
		{"t4 = asyncio.ensure_future(f(4)); await t4", "4", ""},
		{"async with asyncio.TaskGroup() as g:\n    a = g.create_task(f(5))\na.result()", "5", ""},
		{"class C:\n    def __getattr__(self, n): return C()\n    def __call__(self, *a, **k): return C()\n    def __repr__(self): return 'C()'\nC()", "C()", ""},
		{"class G:\n    def __getattr__(self, n): raise OSError(n)\n    def __repr__(self): return 'G()'\nG()", "G()", ""},
		{"class O:\n    def _repr_mimebundle_(self, **k): return {'text/plain': 'tp', 'application/x-y': 1}\nO()", "tp", ""},
		{"class I:\n    def _ipython_display_(self): print('own display')\nI()", "", "own display\n"},
		{"class P:\n    def _repr_pretty_(self, p, cycle):\n        with p.group(2, '<', '>'):\n            p.text('x'); p.breakable(); p.pretty([1])\nP()", "<x [1]>", ""},
		{"import sys; raise_ = 1\n_", "<x [1]>", ""},
		{"5", "5", ""}, {"6", "6", ""}, {"_, __", "(6, 5)", ""},
		{"Out[len(In) - 2], In[-3]", "((6, 5), '6')", ""},
		{"  y = 5\n  print(y)", "", "5\n"},
		{"    # indented\n    def f1():\n        return 1\n    f1()", "1", ""},
		{">>> z = 6\n>>> for i in (1, 2):\n...     print(i)\n1\n2\n>>> z", "6", "1\n2\n"},
		{"In [3]: z + 1", "7", ""},
		{"  %pwd", "", ""},
		{"import os; p = os.fork()\nif p == 0: sys.exit(3)\nos.waitstatus_to_exitcode(os.waitpid(p, 0)[1])", "3", ""},
		{"p = os.fork()\nif p == 0: os.close(2); 1/0\nos.waitstatus_to_exitcode(os.waitpid(p, 0)[1])", "1", ""},
		{"from IPython.display import clear_output\nfor i in range(50):\n    clear_output(wait=True); print('epoch', i)", "", "epoch 49\n"},
		{"for i in range(5):\n    print('epoch', i); clear_output(wait=True)", "", "epoch 4\n"},
		{"print('old'); clear_output(); print('new')", "", "new\n"},
		{"for i in range(3): print('x' * 70000); clear_output(wait=True)\nprint('last')", "", "last\n"},
		{"with open('r.py', 'w') as r: r.write('print(kk)')\nkk = 8\n%run -i r.py", "", "8\n"},
		{"from IPython.display import Audio, Video\nAudio('a.wav')", "<Audio: a.wav>", ""},
	} {
		if strings.Contains(c.code, "%pwd") {
			if o := l.run(c.code); !o.OK {
				t.Errorf("%q: %s", c.code, o)
			}
			continue
		}
		l.want(c.code, c.value, c.out)
	}
	for _, code := range []string{"from unittest.mock import Mock\nMock()", "from unittest.mock import MagicMock\nMagicMock()",
		"class H:\n    def _repr_html_(self): raise ValueError('x')\nH()", "class V:\n    def __repr__(self): raise RuntimeError\nV()",
		"class B:\n    def _repr_png_(self): return 7\nB()", "class N:\n    def _repr_html_(self): return None\nN()",
		"class M:\n    def _repr_mimebundle_(self, **k): return 5\nM()", "class L:\n    def __repr__(self): return L\nL()"} {
		if o := l.run(code); !o.OK || o.Reply.Result == nil || *o.Reply.Result == "" {
			t.Errorf("%q: %s", code, o)
		}
	}
}

// What stands for ever, or ends the program, in a task between cells does not take the interpreter away.
func TestTasksGoOn(t *testing.T) {
	l := python(t)
	l.want("import asyncio, sys\nticks = []\nasync def tick():\n    while True:\n        ticks.append(1); await asyncio.sleep(0.01)\n"+
		"async def start():\n    global task; task = asyncio.create_task(tick())\nawait start()", "", "")
	for until := time.Now().Add(20 * time.Second); ; {
		if o := l.run("print(len(ticks) > 5)"); strings.Contains(o.out, "True") {
			break
		}
		if time.Now().After(until) {
			t.Fatal("a task stands still between cells")
		}
	}
	for _, ends := range []string{"raise SystemExit(3)", "raise KeyboardInterrupt", "1/0", "raise BaseException('x')",
		"asyncio.get_running_loop().stop()"} {
		l.run("async def bad():\n    await asyncio.sleep(0.01)\n    " + ends + "\nb = asyncio.create_task(bad())")
		time.Sleep(50 * time.Millisecond) // the task ends between the cells
		if o := l.run("print('here', task.done())"); o.StateLost || !strings.Contains(o.out, "here False") {
			t.Errorf("after %q: %s", ends, o)
		}
	}
	if o := l.run("asyncio.get_event_loop().close()"); o.StateLost {
		t.Errorf("%s", o)
	}
	if o := l.run("async def g(): return 5\nawait g()"); !o.OK || *o.Reply.Result != "5" {
		t.Errorf("after the loop was closed: %s", o)
	}
}

// A cell that leaves the output elsewhere does not make the next ones mute.
func TestOutputElsewhere(t *testing.T) {
	for _, code := range []string{"import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
		"import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1); os.dup2(1, 2)",
		"import os\nr, w = os.pipe(); os.dup2(w, 1)"} {
		l := python(t)
		if o := l.run(code); !o.OK || !strings.Contains(o.err, "led to another file") {
			t.Errorf("%q: %s", code, o)
		}
		l.want("print('visible')", "", "visible\n")
	}
	l := python(t)
	l.run("import sys, io\nsys.stdout = io.StringIO()")
	if o := l.run("print('where')"); !strings.Contains(o.err, "sys.stdout is <_io.StringIO") {
		t.Errorf("%s", o)
	}
	l.want("seen = sys.stdout.getvalue(); sys.stdout = sys.__stdout__; seen", `'where\n'`, "")
}

// An error's text keeps what print keeps.
func TestErrorsKeepSurrogates(t *testing.T) {
	if o := python(t).run(`raise ValueError('bad \udcff name')`); !strings.HasSuffix(o.Error, `bad \udcff name`) {
		t.Errorf("%s", o)
	}
}

// Lines of Python and of C come in the order in which they were written.
func TestOrderOfC(t *testing.T) {
	l := python(t)
	l.want("import ctypes; libc = ctypes.CDLL(None)", "", "")
	const want = "py 0\nc 0\npy 1\nc 1\npy 2\nc 2\n"
	for _, call := range []string{`libc.printf(b"c %d\n", i)`, `libc.puts(b"c %d" % i)`, `libc.printf(b"c %d", i); libc.putchar(10)`} {
		l.want("for i in range(3):\n    print('py', i); "+call+"\nNone", "", want)
	}
	l.want("print('py'); libc.printf(b'no newline'); None", "", "py\nno newline")
	l.want("f = libc.atoi; f.argtypes, f.restype = [ctypes.c_char_p], ctypes.c_int; f(b'42')", "42", "")
	l.want("own = ctypes.CDLL(None, use_errno=True); own.close(-1); ctypes.get_errno()", "9", "")
}

// What a cell does to Python in ways that do not show in its text is mended before the next cell, and said.
func TestMendedBetweenCells(t *testing.T) {
	for _, tt := range []struct{ code, said string }{
		{"m = __import__('built' + 'ins'); del m.len; m.print = None", "builtins that a cell has taken away are back: len, print"},
		{"n = 1; open(n, 'w').close(); keep = open('/dev/null', 'w')", "descriptor 1 led to another file"},
	} {
		l := python(t)
		first := l.run(tt.code)
		second := l.run("print('visible', len('ab'))")
		if !first.OK || second.StateLost || second.out != "visible 2\n" || !strings.Contains(first.err+second.err, tt.said) {
			t.Errorf("%q: %s; then %s", tt.code, first, second)
		}
		l.want("print('again')", "", "again\n")
	}
}

// A cell that breaks how modules are imported does not take the errors of later cells.
func TestBrokenImports(t *testing.T) {
	l := python(t)
	l.run("import _thread, io, time; _thread.get_ident = io.TextIOWrapper = io.open = time.sleep = time.monotonic = None")
	l.run("import sys; sys.stdout = sys.__stdout__ = 5")
	o := l.run("def f():\n    print(1)\nf()")
	if want := "AttributeError: 'int' object has no attribute 'write'"; o.StateLost || o.Error != want ||
		!strings.Contains(o.Traceback, "line 2, in f\n") {
		t.Errorf("the next cell says %s", o)
	}
	l.run("sys.stdout = None; sys.stderr.close()")
	l.want("print('again'); 2", "2", "again\n")
}

// What a cell breaks does not take the next cell's answer.
func TestBrokenByACell(t *testing.T) {
	for _, tt := range []struct{ code, said string }{
		{"import builtins; del builtins.print", "builtins that a cell has taken away are back: print"},
		{"import builtins; builtins.len = builtins.isinstance = None", "are back: isinstance, len"},
		{"import builtins; builtins.compile = builtins.eval = builtins.exec = None", "are back: compile, eval, exec"},
		{"import builtins; builtins.__dict__.clear()", "are back: "},
		{"__builtins__ = {}", "__builtins__ was {}"},
		{"del __builtins__", ""},
		{"globals().clear()", ""},
		{"In.clear(); Out.clear(); del _, _i", ""},
		{"import os\nfor n in dir(os):\n    if not n.startswith('__'): setattr(os, n, None)", ""},
		{"import sys; sys.meta_path.insert(0, object())", ""},
		{"import sys; sys.path = None", ""},
		{"import sys; sys.modules.clear()", ""},
		{"import sys\nclass E:\n    def flush(self): raise SystemExit(4)\n    write = sys.__stdout__.write\nsys.stdout = E()", "SystemExit: 4"},
		{"class K:\n    def __eq__(self, o): raise SystemExit\n    def __hash__(self): return hash('_')\nglobals()[K()] = 1", ""},
		{"import os; null = os.open('/dev/null', os.O_RDWR); os.dup2(null, 6)", ""},
		{"import _signal; _signal.signal(_signal.SIGALRM, lambda *a: 1/0); _signal.setitimer(_signal.ITIMER_REAL, 0.02)", ""},
	} {
		l := python(t)
		if o := l.run(tt.code); o.StateLost || !strings.Contains(o.err, tt.said) {
			t.Errorf("%q: %s", tt.code, o)
		}
		time.Sleep(50 * time.Millisecond) // for the alarm
		if o := l.run("print(1)"); o.StateLost || !o.OK || strings.TrimSpace(o.out) != "1" {
			t.Errorf("after %q: %s", tt.code, o)
		}
	}
	l := python(t)
	l.want("import signal\ndef h(*a): pass\nsignal.signal(signal.SIGUSR1, h) == signal.SIG_DFL, signal.getsignal(signal.SIGUSR1) is h, "+
		"signal.signal(signal.SIGUSR1, signal.SIG_IGN) is h, signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN", "(True, True, True, True)", "")
	l.run("import builtins; builtins.print = lambda *a, **k: None")
	if o := l.run("print('lost')"); !strings.Contains(o.err, "builtins.print is <function <lambda>") {
		t.Errorf("%s", o)
	}
	l = python(t)
	l.run("import sys\nclass E:\n    def flush(self): raise SystemExit(4)\n    write = sys.__stdout__.write\nsys.stdout = E()")
	l.run("print = lambda *a, **k: None")
	o := l.run("print('lost')")
	if !strings.Contains(o.err, "print is <function <lambda>") || !strings.Contains(o.err, "SystemExit: 4") {
		t.Errorf("%s", o)
	}
	l = python(t)
	l.run("import sys\nclass F(BaseException):\n    def __str__(self): raise SystemExit\n" +
		"class E:\n    def flush(self): raise F\n    write = sys.__stdout__.write\nsys.stdout = E()")
	if o := l.run("print(1)"); o.StateLost || !o.OK || !strings.Contains(o.err, "an exception that has no text") {
		t.Errorf("%s", o)
	}
}
