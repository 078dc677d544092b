package interp

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lists of processes show what an interpreter is, and nothing of its driver. In the interpreter all is as if it had no
// driver.
func TestTitle(t *testing.T) {
	const most = 1000 // bytes
	for name, tt := range map[string]struct {
		l                *lang
		code, value, out string
	}{
		"python": {python(t), "import os, sys, __main__\n" +
			"(sys.argv, [n for n in ('_start', '_codes', 'SIZES') if n in vars(__main__)], __main__.__dict__ is globals(), " +
			"'compile' in ' '.join(sys.orig_argv))", "([''], [], True, False)", ""},
		"node": {node(t), "await new Promise((done) => require('child_process').fork('child.js').on('message', (m) => done(" +
			"[process.argv.length, process.execArgv.length, typeof b, m])))",
			"[ 1, 4, 'undefined', [ '--expose-internals', '--no-warnings' ] ]", ""},
		"bash": {bash(t), `echo $0 ${#BASH_SOURCE[@]} ${sandlot_cells-gone} $#`, "",
			"bash 1 gone 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tt.l
			child := filepath.Join(l.config.Dir, "child.js")
			if err := os.WriteFile(child, []byte("process.send(process.execArgv)"), 0o600); err != nil {
				t.Fatal(err)
			}
			l.want(tt.code, tt.value, tt.out)
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", l.PID()))
			if err != nil {
				t.Fatal(err)
			}
			shown := string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
			t.Log(shown)
			if len(line) > most || strings.Contains(shown, "\n") || strings.Count(shown, "sandlot-cells") != 1 {
				t.Errorf("%d bytes: %.1000s", len(line), shown)
			}
		})
	}
}

// A shell whose functions a cell removes runs that cell once, and goes on.
func TestBashFunctionsRemoved(t *testing.T) {
	l := bash(t)
	l.want("x=5; f() { :; }", "", "")
	l.want("echo once >>file; unset -f $(compgen -A function)", "", "")
	l.want("cat file; echo $x; compgen -A function f; true", "", "once\n5\n")
}

// Python reads the beginning of its driver at once, and bash counts characters.
func TestDriverTexts(t *testing.T) {
	const page = 4 << 10 // the smallest pipe has one
	if len(pythonStart) > page {
		t.Errorf("start.py has %d bytes", len(pythonStart))
	}
	for i, c := range []byte(bashDriver) {
		if c >= 0x80 {
			t.Errorf("byte %d of bash.sh is not ASCII", i)
		}
	}
}

// What a cell does to the descriptors and names by which its interpreter got the driver changes no later interpreter.
func TestDriverIsNotTheCells(t *testing.T) {
	for name, tt := range map[string]struct {
		l                        *lang
		attack, next, value, out string
	}{
		"python": {python(t), "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'print(5)' * 9)\n" +
			"    except OSError: pass\n    try: os.pwrite(fd, b'print(5)' * 9, 0)\n    except OSError: pass\nos._exit(3)", "1 + 1", "2", ""},
		"node": {node(t), "for (let fd = 3; fd < 30; fd++) { try { require('fs').writeSync(fd, 'process.exit(7);'.repeat(9)); } " +
			"catch {} }\nprocess.kill(process.pid, 'SIGKILL'); for (;;);", "1 + 1", "2", ""},
		"bash": {bash(t), "export sandlot_cells='echo mine'; read() { :; }; eval() { :; }; export -f read eval; " +
			"for fd in {3..254}; do { echo 'echo mine' >&$fd; } 2>/dev/null; done; kill -KILL $$", "echo $((1 + 1))", "", "2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if o := tt.l.run(tt.attack); o.OK {
				t.Fatalf("the interpreter lives: %s", o)
			}
			o := tt.l.run(tt.next)
			if !o.OK || o.value() != tt.value || o.out != tt.out {
				t.Errorf("the next one: %s", o)
			}
		})
	}
}
