package test

import (
	"strings"
	"testing"
)

// TestOutputOrder: the text of a result has what was printed to stdout and stderr as a terminal shows it, in the order of
// time, whoever prints it; the streams stay apart as data.
func TestOutputOrder(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(newer, "", nil)
	const inTurn = "o0\ne0\no1\ne1\no2\ne2"
	pause := map[string]string{ // programs that print in turn, with pauses
		"Python": "import sys, time\nfor i in range(3):\n    print('o%d' % i, flush=True); time.sleep(0.1)\n" +
			"    print('e%d' % i, file=sys.stderr); time.sleep(0.1)\n",
		"the C library": "import ctypes, time\nlibc = ctypes.CDLL(None)\nerr = ctypes.c_void_p.in_dll(libc, 'stderr')\n" +
			"for i in range(3):\n    libc.puts(b'o%d' % i); libc.fflush(None); time.sleep(0.1)\n" +
			"    libc.fputs(b'e%d\\n' % i, err); time.sleep(0.1)\n",
	}
	const node = "const wait = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100);\n" +
		"for (let i = 0; i < 3; i++) { console.log('o' + i); wait(); console.error('e' + i); wait(); }\n"
	const bash = "for i in 0 1 2; do echo o$i; sleep 0.1; echo e$i >&2; sleep 0.1; done"
	printed := func(t *testing.T, r *result, want string) {
		t.Helper()
		output, _ := r.Fields["output"].(string)
		if r.Text != want || output != want {
			t.Errorf("%q, as data %q, want %q", r.Text, output, want)
		}
	}
	t.Run("commands", func(t *testing.T) {
		for name, code := range pause {
			t.Run(name, func(t *testing.T) {
				printed(t, c.call("execute_command", args{"command": "python3", "args": []string{"-c", code},
					"session_id": "home"}), inTurn)
			})
		}
		t.Run("Node", func(t *testing.T) {
			printed(t, c.call("execute_command", args{"command": "node", "args": []string{"-e", node}, "session_id": "home"}), inTurn)
		})
		t.Run("bash", func(t *testing.T) { printed(t, c.shell("home", bash), inTurn) })
		t.Run("programs", func(t *testing.T) { // each starts after the one before it has ended
			r := c.shell("home", `for f in a b; do echo "== $f"; LC_ALL=C ls /none-$f; done; echo end`)
			printed(t, r, "== a\nls: cannot access '/none-a': No such file or directory\n== b\n"+
				"ls: cannot access '/none-b': No such file or directory\nend")
		})
		t.Run("a line in two pieces", func(t *testing.T) {
			printed(t, c.shell("home", "printf 'building… '; sleep 0.1; echo failed >&2; sleep 0.1; echo done"), "building… failed\ndone")
		})
		t.Run("in the background", func(t *testing.T) {
			r := c.call("execute_command", args{"command": strings.ReplaceAll(bash, "sleep 0.1", ":"), "background": true,
				"session_id": "home"})
			id, _ := r.Fields["process_id"].(string)
			if got := c.call("read_process", args{"process_id": id, "until": "exit", "wait": 30}); strings.TrimSpace(got.Text) != inTurn {
				t.Errorf("%q", got.All)
			}
		})
		t.Run("as data", func(t *testing.T) {
			r := c.call("sandbox_shell_exec", args{"command": bash})
			if r.Fields["stdout"] != "o0\no1\no2\n" || r.Fields["stderr"] != "e0\ne1\ne2\n" || r.Text != inTurn {
				t.Errorf("%q, %v", r.Text, r.Fields)
			}
		})
	})
	t.Run("cells", func(t *testing.T) {
		for name, code := range map[string]string{
			"Python, at once": "import sys\nfor i in range(3):\n    print('o%d' % i); print('e%d' % i, file=sys.stderr)",
			"Python, long": "import sys, time\nfor i in range(3):\n    print('o%d' % i); print('e%d' % i, file=sys.stderr)\n" +
				"time.sleep(0.2)",
			"Python, with pauses": pause["Python"],
			"the C library":       pause["the C library"],
			"programs":            "import os\nfor i in range(3):\n    print('o%d' % i)\n    _ = os.system('sleep 0.1; echo e%d >&2; sleep 0.1' % i)",
		} {
			t.Run(name, func(t *testing.T) {
				for range 3 { // the first may go through the agent, the others to the driver
					printed(t, c.code("home", code), inTurn)
				}
			})
		}
		t.Run("Python, an error in the end", func(t *testing.T) {
			r := c.code("home", "import sys\nprint('o'); print('e', file=sys.stderr); print('p')\n1/0")
			if !strings.HasPrefix(r.Text, "o\ne\np\nTraceback") {
				t.Errorf("%q", r.Text)
			}
		})
		for name, a := range map[string]args{
			"Node, at once":     {"code": "for (let i = 0; i < 3; i++) { console.log('o' + i); console.error('e' + i); }", "language": "node"},
			"Node, with pauses": {"code": node, "language": "node"},
			"bash, with pauses": {"code": bash, "language": "bash"},
		} {
			t.Run(name, func(t *testing.T) {
				a["session_id"] = "home"
				printed(t, c.call("execute_code", a), inTurn)
			})
		}
	})
}
