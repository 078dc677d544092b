package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hostileCells are hostile or careless cells. %d is a small random number.
var hostileCells = []string{
	// descriptors
	"import os; os.close(%d)",
	"import os\nfor fd in range(3, 64):\n    try: os.close(fd)\n    except OSError: pass",
	"import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass",
	"import os; os.closerange(0, %d)",
	"import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
	"import os; os.dup2(os.open('/dev/null', os.O_RDWR), %d)",
	"import os; r, w = os.pipe(); os.dup2(w, 1); os.dup2(w, 2)",
	"import os; os.dup2(1, 3)", "import os; os.dup2(1, 4)", "import os; os.dup2(3, 4); os.dup2(4, %d)",
	"import os; os.dup2(2, 1); os.dup2(1, 2)", "import os; os.set_blocking(%d, False)", "import os; os.set_blocking(3, False); os.set_blocking(4, False)",
	"import socket; s = socket.socket(fileno=%d); s.close()",
	"import os\nfor fd in (6, 7, 8): os.read(fd, 1) if False else os.set_blocking(fd, False)",
	"import os, fcntl; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)\nfor i in range(100): print('x' * 5000)",
	"held = [open('/dev/null') for _ in range(2000)]",
	"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))",
	"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); open('/tmp/f', 'w').write('x' * 100)",
	"import resource; resource.setrlimit(resource.RLIMIT_AS, (%d << 28, -1))",
	"import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 5))\nwhile True: pass",
	"import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))",
	"import resource; resource.setrlimit(resource.RLIMIT_STACK, (1 << 16, -1))",
	// streams
	"import sys; sys.stdout.close()", "import sys; sys.stderr.close(); sys.stdout.close()", "import sys; sys.stdout = None",
	"import sys; sys.stdout = sys.stderr", "import sys, io; sys.stdout = io.StringIO()", "import sys; del sys.stdout", "import sys; sys.stdout.detach()",
	"import sys; sys.stdout = sys.__stdout__ = 5", "import sys; sys.stdout.buffer.raw.close()", "import sys; sys.stdin.close(); sys.stdin = None",
	"import sys\nclass Bad:\n    def write(self, x): raise RuntimeError('no')\n    def flush(self): raise RuntimeError('no')\nsys.stdout = sys.stderr = Bad()",
	"import sys\nclass Deep:\n    def write(self, x): print('again')\nsys.stdout = Deep()",
	"import sys\nclass Exits:\n    def flush(self): raise SystemExit(4)\n    def write(self, x): sys.__stdout__.write(x)\nsys.stdout = Exits()",
	"import sys; sys.stdout.reconfigure(encoding='ascii', errors='strict'); print('ü')",
	// builtins and modules
	"print = lambda *a, **k: None", "import builtins; builtins.print = lambda *a, **k: None", "import builtins; builtins.print = 5", "import builtins; del builtins.print",
	"del __builtins__", "__builtins__ = {}", "__builtins__ = None", "import builtins; builtins.__dict__.clear()", "import builtins; builtins.len = builtins.isinstance = None",
	"import builtins\nfor n in dir(builtins):\n    if not n.startswith('__'): setattr(builtins, n, None)",
	"import builtins; builtins.__import__ = lambda *a, **k: 1/0", "import builtins; builtins.Exception = builtins.BaseException = int",
	"import builtins; builtins.compile = builtins.eval = builtins.exec = None", "import builtins; builtins.open = None",
	"import sys; sys.modules.clear()", "import sys\nfor n in list(sys.modules): sys.modules[n] = None", "import sys; sys.modules.pop('__main__')", "import sys; sys.path.clear(); sys.meta_path.clear()",
	"import sys; sys.meta_path.insert(0, object())", "import sys; sys.path = None", "import sys; sys.path_hooks.clear(); sys.path_importer_cache.clear()",
	"import os; os.write = os.read = os.dup2 = os.fstat = os.close = None", "import os\nfor n in dir(os):\n    if not n.startswith('__'): setattr(os, n, None)",
	"import os; os.fstat = lambda *a: 1/0", "import time; time.sleep = time.monotonic = None", "import traceback; traceback.TracebackException = None\n1/0",
	"import traceback\nfor n in dir(traceback): setattr(traceback, n, None)\n1/0", "import linecache; linecache.cache = None; linecache.getline = None\n1/0", "import json, base64; json.dumps = base64.b64encode = None",
	"import io; io.TextIOWrapper = io.BytesIO = io.open = None", "import _thread; _thread.get_ident = None", "import sys; sys.exc_info = sys.exit = sys.getrefcount = None",
	"globals().clear()", "In.clear(); Out.clear()", "In = Out = None", "del In, Out, _, __, ___", "_ = __ = ___ = None\n5", "del _i, _ii", "import os; os.chdir('/'); os.environ.clear()",
	"import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)", "import locale; locale.setlocale(locale.LC_ALL, 'C')",
	// signals
	"import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except Exception: pass",
	"import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_DFL)\n    except Exception: pass",
	"import signal; signal.signal(signal.SIGINT, lambda *a: 1/0)", "import signal; signal.signal(signal.SIGALRM, lambda *a: 1/0); signal.setitimer(signal.ITIMER_REAL, 0.0%d, 0.02)",
	"import signal; signal.signal(signal.SIGALRM, lambda *a: 1/0); signal.alarm(1)", "import signal\ndef late(*a): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.%d)",
	"import signal; signal.setitimer(signal.ITIMER_REAL, 0.2)", "import signal, os; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))", "import signal, os; os.kill(os.getpid(), signal.SIGTERM)",
	"import signal, os; os.kill(os.getpid(), %d)", "import signal, os; os.kill(os.getpid(), signal.SIGSTOP)", "import os, signal; os.kill(os.getppid(), signal.SIGTERM)", "import os, signal; os.kill(1, signal.SIGKILL)",
	"import signal, os; signal.signal(signal.SIGUSR1, lambda *a: os._exit(7)); os.kill(os.getpid(), signal.SIGUSR1)", "import signal; signal.set_wakeup_fd(-1); signal.siginterrupt(signal.SIGINT, True)",
	// the end of the process
	"import os; os._exit(%d)", "import sys; sys.exit(%d)", "exit()", "quit(3)", "raise SystemExit('text')", "raise KeyboardInterrupt", "raise BaseException", "raise GeneratorExit", "import os; os.abort()",
	"import ctypes; ctypes.string_at(%d)", "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()", "import faulthandler; faulthandler.dump_traceback_later(0.0%d, exit=True)", "import atexit, os; atexit.register(os._exit, 3)",
	"import os; os.execv('/bin/true', ['true'])", "import os; os.execv('/usr/bin/env', ['env', 'sleep', '1'])",
	// processes
	"import os\nif os.fork() == 0: os._exit(%d)", "import os\nif os.fork() == 0: raise SystemExit(3)", "import os\nif os.fork() == 0: 1/0", "import os\npid = os.fork()\nprint('both', pid > 0)", "import os\nif os.fork(): os._exit(0)",
	"import os\nfor _ in range(8): os.fork()\nos.getpid()", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: print('child'); time.sleep(0.01)",
	"import subprocess; p = subprocess.Popen('yes', stdout=None)\nimport time; time.sleep(0.2)", "import subprocess; p = [subprocess.Popen(['sleep', '100']) for _ in range(%d)]", "import os; os.system('kill -9 $PPID')", "import os; os.system('kill -INT $PPID')",
	"import multiprocessing as mp\nwith mp.get_context('fork').Pool(3) as p: p.map(print, range(%d))", "import multiprocessing as mp\nmp.get_context('fork').Process(target=exit).start()",
	// threads
	"import threading\ndef f():\n    while True: print('t')\nthreading.Thread(target=f, daemon=True).start()\nimport time; time.sleep(0.1)", "import threading, sys\nthreading.Thread(target=sys.exit).start()",
	"import threading, os\nthreading.Timer(0.0%d, os._exit, [3]).start()", "import threading, time\nfor _ in range(%d * 5): threading.Thread(target=time.sleep, args=(5,)).start()", "import _thread; _thread.interrupt_main()",
	"import threading, _thread\nthreading.Timer(0.0%d, _thread.interrupt_main).start()", "import threading\nl = threading.Lock(); l.acquire(); l.acquire()", "import threading\ndef f(): raise ValueError\nthreading.Thread(target=f).start()",
	"import threading, ctypes\ndef f():\n    import time; time.sleep(0.0%d)\n    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.main_thread().ident), ctypes.py_object(ValueError))\nthreading.Thread(target=f).start()",
	// the interpreter
	"def f(): return f()\nf()", "import sys; sys.setrecursionlimit(10**6)\ndef f(): return f()\nf()", "import sys; sys.setrecursionlimit(%d + 40)", "import sys; sys.setswitchinterval(100)", "import sys; sys.setswitchinterval(1e-9)",
	"import sys; sys.settrace(lambda *a: 1/0)", "import sys; sys.setprofile(lambda *a: 1/0)", "import sys\ndef t(*a): return t\nsys.settrace(t)", "import threading; threading.settrace(lambda *a: 1/0); threading.setprofile(lambda *a: 1/0)",
	"import gc; gc.disable(); gc.freeze()", "import gc; gc.set_threshold(1)", "import gc\ngc.callbacks.append(lambda *a: 1/0)", "import sys; sys.excepthook = sys.displayhook = sys.unraisablehook = None", "import sys; sys.addaudithook(lambda *a: None)",
	"import sys\ndef h(event, args):\n    if event == 'open': raise RuntimeError('audited')\nsys.addaudithook(h)", "import warnings; warnings.simplefilter('error')", "import warnings; warnings.showwarning = None; warnings.warn('x')",
	"class M(type):\n    def __repr__(self): raise SystemExit\nclass X(metaclass=M): pass\nX", "class R:\n    def __repr__(self): import os; os._exit(3)\nR()", "class R:\n    def __repr__(self): raise KeyboardInterrupt\nR()", "class R:\n    def __repr__(self): return self.__repr__()\nR()",
	"class E(Exception):\n    def __str__(self): raise SystemExit(9)\nraise E", "class E(Exception):\n    def __str__(self): return self.__str__()\nraise E", "class E(BaseException):\n    __module__ = 5\nraise E('x')", "class D:\n    def __del__(self): raise ValueError\nd = D(); del d",
	"class C:\n    def __getattribute__(self, n): raise SystemExit\nC()", "class C:\n    @property\n    def __class__(self): raise KeyboardInterrupt\nC()", "e = ValueError(); e.__cause__ = e.__context__ = e\nraise e",
	"import ctypes; ctypes.pythonapi.PyErr_SetInterrupt()", "import ctypes; ctypes.CDLL(None).exit(3)", "import ctypes; ctypes.CDLL(None).setvbuf(None, None, 0, 0)", "import ctypes; ctypes.CDLL(None).fclose(ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'stdout'))",
	// values
	"list(range(10**6))", "{n: str(n) for n in range(10**5 * %d)}", "'x' * (10**7 * %d)", "[[1] * 900] * 900", "x = []\nfor _ in range(10**5): x = [x]\nx", "10 ** 10**5", "print('x' * 10**7)", "print('\\x00\\x1b[2J\\ud800' * 1000)", "for n in range(10**5): print(n)",
	"set(map(str, range(10**5)))", "a = []; a.append(a); b = {1: a}; a.append(b); a", "b'\\xff' * 10**6", "from unittest.mock import MagicMock\nMagicMock()", "display(*range(10**4))", "object.__new__(type('N', (), {'__slots__': ()}))",
	// loops
	"import asyncio; asyncio.get_event_loop().close()", "import asyncio; asyncio.get_event_loop().stop()", "import asyncio; asyncio.set_event_loop(None)", "import asyncio; asyncio.new_event_loop = asyncio.get_event_loop = None\nasync def f(): pass\nawait f()",
	"import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\nt = asyncio.create_task(f())", "import asyncio, time\nasync def f(): time.sleep(60)\nt = asyncio.create_task(f())", "import asyncio\nasync def f(): raise SystemExit\nt = asyncio.create_task(f())",
	"import asyncio\nasync def f(): raise KeyboardInterrupt\nawait f()", "import asyncio\nawait asyncio.sleep(60)", "import asyncio\nasyncio.get_running_loop().stop() if False else None\nawait asyncio.sleep(0); asyncio.get_running_loop().stop()",
	"import asyncio\nasync def f():\n    try: await asyncio.sleep(60)\n    except asyncio.CancelledError: await asyncio.sleep(60)\nawait f()",
	"while True: pass", "while True:\n    try: pass\n    except BaseException: pass", "while True:\n    try:\n        while True: pass\n    except BaseException: pass", "import time\nwhile True:\n    try: time.sleep(100)\n    except KeyboardInterrupt: pass", "while True: print('x')", "input()", "import sys; sys.stdin.read()",
	// the driver
	"import sys; sys._getframe(1).f_globals.clear()", "import sys\nf = sys._getframe(1)\nwhile f: f.f_locals.clear(); f = f.f_back", "import sys; sys._getframe(1).f_trace = lambda *a: 1/0; sys.settrace(lambda *a: None)",
	"import gc, types\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'is_driver' in o: o.clear()", "import os; os.write(4, b'{\"id\": 1, \"ok\": true}\\n')", "import os; os.write(4, b'\\x00' * 100000)", "get_ipython = None; display = None", "__sandlot__ = None\n!echo x", "import sys; sys.argv = None",
	"class K:\n    def __eq__(self, o): raise SystemExit\n    def __hash__(self): return hash('_')\nglobals()[K()] = 1",
}

// What a result says of an interpreter that was started again, with the reason.
var startedAgain = regexp.MustCompile(`(?s)interpreter was restarted \(.+\)|interpreter .*(?:exited|was killed|was ended|ended)|sandbox had to end: .+`)

// The answer of print(1), within the lines of a thread or process that prints for ever.
var answer = regexp.MustCompile(`^(?:t|y|child)*1(?:t|y|child)*$`)

// Lines of a thread or process that prints for ever.
var prints = regexp.MustCompile(`(?m)^(?:t|y|child)+$`)

// After each of many hostile or careless cells the next cell answers, or says that the interpreter was started again, and
// why. SANDLOT_HOSTILE_CELLS is how many cells, SANDLOT_SEED makes the same again.
func TestHostileCells(t *testing.T) {
	t.Parallel()
	count, seed := 30, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv("SANDLOT_HOSTILE_CELLS")); err == nil {
		count = n
	}
	if n, err := strconv.ParseUint(os.Getenv("SANDLOT_SEED"), 10, 64); err == nil {
		seed = n
	}
	random := rand.New(rand.NewPCG(seed, 0))
	c := start(t).connect(older, "", nil)
	id := c.code("new", "1").session()
	proven(t, c, id)
	fail := func(code string, what string, r *result) {
		t.Errorf("SANDLOT_SEED=%d: after\n%s\n%s: %.1500s", seed, code, what, r.All)
	}
	run := func(code string, seconds int) *result {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := c.try(ctx, "execute_code", args{"code": code, "session_id": id, "timeout": seconds})
		if err != nil {
			return &result{CallToolResult: &mcp.CallToolResult{IsError: true}, All: "fault: " + err.Error()}
		}
		return r
	}
	order := random.Perm(len(hostileCells))
	for n := range count {
		code := hostileCells[order[n%len(order)]]
		if strings.Contains(code, "%d") {
			code = fmt.Sprintf(code, 1+random.IntN(9))
		}
		if n >= len(order) { // two at once
			other := hostileCells[random.IntN(len(hostileCells))]
			if strings.Contains(other, "%d") {
				other = fmt.Sprintf(other, 1+random.IntN(9))
			}
			code = "try:\n    " + strings.ReplaceAll(code, "\n", "\n    ") + "\nexcept BaseException: pass\n" + other
		}
		began := time.Now()
		r := run(code, 2)
		after := run("print(1)", 20)
		lost := startedAgain.MatchString(r.All + after.All)
		if took := time.Since(began); took > 20*time.Second {
			t.Logf("%v for\n%s", took, code)
		}
		if strings.HasPrefix(r.All, "fault: ") && !lost {
			fail(code, "its result is a", r)
		}
		lines := strings.Split(after.Text, "\n")
		one := false
		for _, line := range lines {
			one = one || answer.MatchString(strings.TrimSpace(line))
		}
		if !one && (after.Fields["truncated"] == true || prints.MatchString(after.Text)) { // its line is in the gap, as another thread or process prints for ever
			one = run("2 - 1", 20).Fields["result"] == "1"
		}
		switch {
		case one || lost:
		case strings.Contains(after.Text, "print is ") || strings.Contains(after.Text, "sys.stdout is "): // said
		default:
			fail(code, "the next cell says", after)
		}
		if n%8 == 7 || after.IsError || !one { // what was replaced on purpose stays: begin anew
			c.call("stop_session", args{"session_id": id})
			id = c.code("new", "1").session()
		}
	}
}
