package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
)

// inline is how many bytes a result has of the head and of the tail of each stream.
const inline = 1000

// cell runs a Python cell as the server does: over a direct connection, if there is one.
func (b *Bench) cell(t *testing.T, code string, timeout time.Duration) *agent.CodeResult {
	t.Helper()
	return b.run(t, agent.Code{Source: code, Timeout: timeout})
}

// viaAgent runs a Python cell without a direct connection.
func (b *Bench) viaAgent(t *testing.T, code string, timeout time.Duration) *agent.CodeResult {
	t.Helper()
	return b.run(t, agent.Code{Source: code, Timeout: timeout, ThroughAgent: true})
}

func (b *Bench) run(t *testing.T, code agent.Code) *agent.CodeResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), code.Timeout+30*time.Second)
	defer cancel()
	code.Language, code.Inline = "python", agent.InlineBounds{Head: inline, Tail: inline}
	d, err := b.Evaluate(ctx, code, agent.Observer{})
	if err != nil {
		t.Fatalf("%.100s: %v", code.Source, err)
	}
	return d
}

// direct tests that cells have the same results over a direct connection as through the agent.
func direct(t *testing.T, b *Bench) {
	cells := []string{
		"1 + 1", "x = 1", "print('a')", "print('a')\n'b'", "import sys\nprint('e', file=sys.stderr)\nprint('o')", "1/0",
		"raise SystemExit(3)", "import sys; sys.exit('why')",
		"def (", "'ä€😀'", "print('ä' * 400)", "'\\ud800'", "print(chr(0) + '\\ud800')",
		"import os\n_ = os.write(1, bytes(range(256)))",
		"print('x' * 999)", "print('x' * 1000)", "print('x' * 2500)", "print('x' * 2500000)", "'r' * 999", "'r' * 3000",
		"'ä' * 600",
		"import os\nprint('a', flush=True)\n_ = os.system('echo b')\nprint('c')",
		"import subprocess\nprint('a')\n_ = subprocess.run(['sh', '-c', 'echo b; echo e >&2; sleep 0.05; echo " +
			"c'])\nprint('d')",
		"import time\nprint('a')\ntime.sleep(0.03)\nprint('b')\n'after'",
		"import time\nfor n in range(40):\n    print(n)\n    time.sleep(0.001)",
		"await __import__('asyncio').sleep(0.001)\nprint('waited')", "input()", "_ = [print(i) for i in range(300)]",
		"import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True)\nelse:\n    _ = os.waitpid(pid, " +
			"0)\n    print('parent')",
		"import os\nos.close(1)", "print('again')", "import sys\nsys.stdout.close()", "print('once more')",
		"import sys\nsys.stdout = None", "print('back')",
		"class R:\n    def _repr_png_(self): return b'png' * 100\n    def __repr__(self): return 'R'\nR()",
		"class B:\n    def _repr_html_(self): return 'h' * 400000\n    def __repr__(self): return '<B object>'\nB()",
		"print('a')\n!echo b; echo e >&2\nprint('c')", "l = !echo x; echo y\nl", "%%bash\necho $((6 * 7))", "%nothing",
		"from IPython.display import display, HTML\ndisplay(HTML('h'))",
		"import os\nfor i in range(30000): print(i)\n_ = os.system('echo end')",
		"print('a\\rb')", "import sys\nprint('\\x1b[31mred', file=sys.stderr)\nprint('plain\\r')", "print('a\\r\\n')",
		"x", "_", "None", "", "# nothing", "while True: pass", "x",
	}
	var through []*agent.CodeResult
	for _, code := range cells {
		through = append(through, b.viaAgent(t, code, limit(code)))
	}
	b.viaAgent(t, "import os; os._exit(0)", time.Minute) // the next interpreter has no variables of these cells
	if opened := b.OpenDirect(t.Context(), "python"); opened == b.subject.Bridged {
		t.Fatalf("there is a direct connection to the interpreter: %t", opened)
	}
	if b.subject.Bridged {
		if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" {
			t.Errorf("a cell without a direct connection: %+v", d)
		}
		transfers(t, b)
		return
	}
	for n, code := range cells {
		d := b.cell(t, code, limit(code))
		if got, want := shape(d), shape(through[n]); got != want {
			t.Errorf("%.100q:\n directly %s\nby agent %s", code, got, want)
		}
		if !b.OpenDirect(t.Context(), "python") {
			t.Fatalf("after %.100q, there is no direct connection any more", code)
		}
	}
	between(t, b)
	givenUp(t, b)
	held(t, b)
	died(t, b)
	transfers(t, b)
}

// transfers tests uploads and downloads: of a file that is large enough for a direct connection, and of
// one that is not.
func transfers(t *testing.T, b *Bench) {
	for _, n := range []int{1000, 9 << 20} {
		data := bytes.Repeat([]byte("0123456789abcdef"), n/16)
		open := func() *agent.Upload {
			up, err := b.Upload(t.Context(), "moved", int64(len(data)), agent.Condition{})
			if err != nil {
				t.Fatal(err)
			}
			if up.Direct != (n > 4<<20) {
				t.Errorf("%d bytes, directly: %v", n, up.Direct)
			}
			return up
		}
		up := open()
		if _, err := up.Write(data); err != nil {
			t.Fatal(err)
		}
		if f, err := up.Commit(time.Now().Add(time.Minute)); err != nil || f.Size != int64(len(data)) {
			t.Errorf("sent %d bytes: %d, %v", len(data), f.Size, err)
		}
		up.Close()
		// An upload that is cut off leaves the file as it was.
		half := open()
		half.Write(make([]byte, len(data)/2))
		half.Close()
		time.Sleep(50 * time.Millisecond)
		down, _, err := b.Download(t.Context(), "moved", 16, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(down); err != nil || !bytes.Equal(got, data[16:]) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		down.Close()
	}
	b.want(t, "ls -A -I .local /workspace", "moved")
	b.sh(t, "rm moved")
}

func limit(code string) time.Duration {
	if strings.Contains(code, "while True") {
		return 300 * time.Millisecond
	}
	return time.Minute
}

// shape returns the part of a result that is the same each time.
func shape(d *agent.CodeResult) string {
	same := *d
	same.Duration = 0
	same.Merged = nil // what a program writes to both streams at the same moment has no order of its own
	if d.Value != nil {
		value := *d.Value
		same.Value = &value
	}
	for _, o := range []*agent.Output{&same.Stdout, &same.Stderr, same.Value} {
		if o == nil {
			continue
		}
		o.Head, o.Tail = append([]byte{}, o.Head...), append([]byte{}, o.Tail...)
		if o.Path != "" {
			o.Path = "there is one"
		}
	}
	same.Rich = slices.Clone(same.Rich)
	for i := range same.Rich {
		same.Rich[i].Data = numberedFile.ReplaceAll(same.Rich[i].Data, []byte("/N-value.txt"))
	}
	text, err := json.Marshal(same)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// numberedFile is the name of the file of a value that does not fit into a result.
var numberedFile = regexp.MustCompile(`/[0-9]+-value\.txt`)

// between tests output that is written while no cell runs: the next result has it, and its writer never
// blocks.
func between(t *testing.T, b *Bench) {
	b.cell(t, "import subprocess\np = subprocess.Popen(['sh', '-c', 'sleep 0.2; head -c 300000 /dev/zero | tr "+
		"\"\\\\0\" y; echo end > /tmp/written'])", time.Minute)
	for range 100 {
		if b.sh(t, "cat /tmp/written 2>/dev/null") == "end" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.want(t, "cat /tmp/written", "end")
	if got := b.cell(t, "", time.Minute).Stdout.Total; got == 0 || got > 300_000 {
		t.Errorf("%d bytes were kept of what was written between cells", got)
	}
	// A process that writes all the time does not displace a cell's own output.
	b.cell(t, "q = subprocess.Popen(['sh', '-c', 'while :; do echo -; done'])", time.Minute)
	for n := range 30 {
		d := b.cell(t, fmt.Sprintf("print('mine', %d)", n), time.Minute)
		out := string(d.Stdout.Head) + string(d.Stdout.Tail)
		own := strings.NewReplacer("-", "", "\n", "").Replace(out)
		if d.Stdout.Path == "" && own != fmt.Sprintf("mine %d", n) {
			t.Errorf("cell %d lost what it printed: %.200q", n, out)
		}
	}
	b.cell(t, "q.kill(); _ = q.wait()", time.Minute)
	b.cell(t, "", time.Minute) // reads what is left of its output
}

// held tests cells that the driver cannot begin, as another thread holds Python's global lock.
func held(t *testing.T, b *Bench) {
	b.cell(t, "import threading\nkept = 7\nthreading.Thread(target=lambda: sum(range(6 * 10 ** 7))).start()",
		time.Minute)
	if d := b.cell(t, "import time\nprint('begun', flush=True)\ntime.sleep(400)", 3*time.Second); !d.TimedOut {
		t.Errorf("a limit of 3 s: %v", d)
	}
	b.cell(t, "threading.Thread(target=lambda: sum(range(3 * 10 ** 7))).start()", time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	_, err := b.Evaluate(ctx, agent.Code{Language: "python", Source: "given = 'up'\nimport time\ntime.sleep(20)",
		Inline: agent.InlineBounds{Head: inline}}, agent.Observer{})
	cancel()
	if err == nil {
		t.Error("given up, and there is a result")
	}
	if d := b.cell(t, "'mine'", time.Minute); value(d) != "'mine'" || !d.OK {
		t.Errorf("the cell after one that was given up: %v", d)
	}
}

// givenUp tests cells whose caller cancels them, at once and later. The next cell can run soon after,
// over the direct connection.
func givenUp(t *testing.T, b *Bench) {
	for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond,
		300 * time.Millisecond} {
		b.cell(t, "kept = 7", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := b.Evaluate(ctx, agent.Code{Language: "python", Source: "import time\ntime.sleep(300)",
			Inline: agent.InlineBounds{Head: inline}}, agent.Observer{})
		cancel()
		if err == nil {
			t.Errorf("given up after %s, and there is a result", after)
		}
		if d := b.cell(t, "kept", time.Minute); value(d) != "7" {
			t.Errorf("given up after %s: the next cell says %v", after, d)
		}
	}
}

// died tests an interpreter that ends during a cell, and between two cells.
func died(t *testing.T, b *Bench) {
	b.OpenDirect(t.Context(), "python")
	if d := b.cell(t, "import os, signal\nprint('last', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
		time.Minute); !d.StateLost || d.OK || string(d.Stdout.Head) != "last\n" {
		t.Errorf("killed in a cell: %v", d)
	}
	if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" || d.StateLost {
		t.Errorf("after that: %v", d)
	}
	for _, code := range []string{"for fd in range(3, 20):\n    try: os.close(fd)\n    except OSError: pass",
		"os.closerange(3, 256); f = [open('/dev/null', 'r+b') for _ in range(30)]",
		"os.closerange(3, 20)\nimport time\ntime.sleep(0.1)"} {
		b.OpenDirect(t.Context(), "python")
		if d := b.cell(t, "import os\nprint('last')\n"+code, time.Minute); !d.StateLost || d.OK ||
			!strings.Contains(d.Reason, "file descriptors") {
			t.Errorf("%q: %v", code, d)
		}
		if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" || d.StateLost {
			t.Errorf("after %q: %v", code, d)
		}
	}
	b.OpenDirect(t.Context(), "python")
	// The brackets keep the shell from killing itself, so that it waits until the agent knows.
	b.sh(t, "pkill -KILL -x python3; pkill -KILL -f '[s]andlot_driver'; pkill -KILL python; sleep 0.5")
	if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" || !d.StateLost {
		t.Errorf("killed between cells: %v", d)
	}
	// The timeout of a call also bounds an interpreter that hangs at its start.
	b.sh(t,
		`d=$(python3 -m site --user-site); mkdir -p $d; echo 'import time; time.sleep(100)' > $d/usercustomize.py; echo $d > /tmp/site; pkill -KILL -x python3; pkill -KILL python; sleep 0.5`)
	b.Prepare("python")
	if d := b.cell(t, "6 * 7", 4*time.Second); d.OK || d.TimedOut || !strings.Contains(d.Error, "usercustomize.py") {
		t.Errorf("an interpreter that hangs at its start: %v", d)
	}
	b.sh(t, "rm $(cat /tmp/site)/usercustomize.py")
	if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" {
		t.Errorf("after that: %v", d)
	}
	// The interpreter ends, and its child keeps the connection open.
	b.OpenDirect(t.Context(), "python")
	d := b.cell(t, "import os, time\nif os.fork() == 0:\n    time.sleep(3)\n    os._exit(0)\nos._exit(9)", time.Minute)
	if !d.StateLost || d.ExitCode != 9 {
		t.Errorf("ended while a child lives: %v", d)
	}
	if d := b.cell(t, "6 * 7", time.Minute); value(d) != "42" {
		t.Errorf("after that: %v", d)
	}
}
