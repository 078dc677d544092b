package interp

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBash(t *testing.T) {
	l := bash(t)
	dir, err := filepath.EvalSymlinks(l.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ code, out string }{
		{"echo hello", "hello\n"},
		{"x=5", ""},
		{"echo $((x * 2))", "10\n"},
		{"pwd", dir + "\n"},
		{"mkdir -p sub && cd sub", ""},
		{"pwd", dir + "/sub\n"},
		{"greet() { echo \"hi $1, $x\"; }", ""},
		{"greet ann", "hi ann, 5\n"},
		{"list=(a 'b c'); declare -A map=([k]=v)", ""},
		{"echo \"${list[1]} ${map[k]}\"", "b c v\n"},
		{"alias say='echo aliased'", ""},
		{"say", "aliased\n"},
		{"export E=env", ""},
		{"bash -c 'echo $E'", "env\n"},
		{"echo one | tr a-z A-Z; echo two", "ONE\ntwo\n"},
		{"cat <<'END'\n$x `y`\nEND", "$x `y`\n"},
		{"for i in 1 2; do\n  echo $i\ndone", "1\n2\n"},
		{"cat", ""}, // there is no input
		{"echo ä😀; printf 'no newline'", "ä😀\nno newline"},
		{"# nothing but a comment", ""},
		{"echo $$ >/dev/null; ls /dev/fd/3 2>/dev/null || echo closed", "closed\n"},
		{"false; echo $?", "1\n"},
	} {
		l.want(tt.code, "", tt.out)
	}
}

func TestBashExitCodes(t *testing.T) {
	l := bash(t)
	l.fails("false", 1)
	l.want("echo $?", "", "1\n") // of the cell before
	l.fails("(exit 7)", 7)
	l.want("echo $?", "", "7\n")
	l.fails("no_such_command_here", 127, "no_such_command_here")
	l.fails("echo 'unclosed", 2, "unexpected EOF")
	l.want("echo fine", "", "fine\n")
	l.fails("sh -c 'kill -TERM $$'", 143)
}

// exit, set -e and a failed expansion end the shell; its state goes on.
func TestBashExitKeepsState(t *testing.T) {
	l := bash(t)
	l.want("x=5; f() { echo f$x; }; declare -A m=([k]='a b'); export E=env; alias say='echo aliased'; mkdir sub; "+
		"cd sub", "", "")
	dir := strings.TrimSpace(l.run("pwd").out)
	for _, code := range []string{"exit 3", "echo before; exit 3", "set -e; (exit 3); echo not here",
		"set -u; echo $nothing; echo not here", "( exit 3 ); exit $?"} {
		o := l.run(code)
		if o.OK || o.StateLost || strings.Contains(o.out, "not here") {
			t.Errorf("%q: %s", code, o)
		}
		if strings.Contains(code, "exit 3") && o.Exit != 3 {
			t.Errorf("%q: %s", code, o)
		}
		o = l.run("f; echo \"${m[k]}\"; bash -c 'echo $E'; say; pwd")
		if !o.OK || o.StateLost || o.out != "f5\na b\nenv\naliased\n"+dir+"\n" {
			t.Errorf("after %q: %s", code, o)
		}
	}
}

// A trap of the code's own stands in place of the one that saves: then the
// result says that the state is gone.
func TestBashOwnTrap(t *testing.T) {
	l := bash(t)
	if o := l.run("x=5; trap 'echo bye' EXIT; exit 3"); o.OK || o.Exit != 3 || o.out != "bye\n" || !o.StateLost {
		t.Errorf("got %s", o)
	}
	l.want("echo \"x=$x\"", "", "x=\n")
}

func TestBashExitZero(t *testing.T) {
	l := bash(t)
	l.want("x=5; exit 0", "", "")
	l.want("echo $x", "", "5\n")
	l.want("exit", "", "")
	l.want("echo $x", "", "5\n")
}

func TestBashTimeouts(t *testing.T) {
	l := bash(t)
	l.want("x=5", "", "")
	for _, code := range []string{"sleep 60", "echo begun; sleep 60", "while true; do :; done", "sleep 60 | cat"} {
		o := l.timed(code)
		if o.OK || !o.TimedOut || o.StateLost {
			t.Errorf("%q: %s", code, o)
		}
		if strings.Contains(code, "begun") && o.out != "begun\n" {
			t.Errorf("what was printed until then is lost: %s", o)
		}
		l.want("echo $x", "", "5\n")
	}
}

func TestBashDeath(t *testing.T) {
	l := bash(t)
	l.want("x=5", "", "")
	if o := l.run("kill -KILL $$"); o.OK || o.Exit != 137 || !o.StateLost || !strings.Contains(o.Reason, "signal 9") {
		t.Errorf("killed: %s", o)
	}
	if o := l.run("echo \"x=$x\""); o.out != "x=\n" || o.StateLost {
		t.Errorf("after that: %s", o)
	}
	// Nor does the state of an earlier exit come back.
	l.want("x=6; exit 0", "", "")
	l.want("echo $x", "", "6\n")
	if o := l.run("x=7; kill -KILL $$"); !o.StateLost {
		t.Errorf("killed: %s", o)
	}
	if o := l.run("echo \"x=$x\""); o.out != "x=\n" {
		t.Errorf("after that: %s", o)
	}
}

// What runs in the background holds no call.
func TestBashBackground(t *testing.T) {
	l := bash(t)
	l.want("sleep 60 >/dev/null 2>&1 & echo started", "", "started\n")
	l.want("kill %1; wait; echo ended", "", "ended\n")
}

// A cell may end before the shell has heard the signal that was to stop it.
// A shell whose code deals with the signal lives on, and so does what it has started.
func TestBashTrapsTheSignal(t *testing.T) {
	l := bash(t)
	l.want("sleep 300 & job=$!", "", "")
	l.timed("trap 'heard=1' INT; sleep 60")
	l.want("trap - INT; kill -0 $job && echo $heard", "", "1\n")
	l.want("kill $job; wait $job 2>/dev/null; true", "", "")
}

func TestBashHearsASignalLate(t *testing.T) {
	l := bash(t)
	l.want("x=5; mkdir sub; cd sub", "", "")
	l.process.signalPending = true
	pid := l.PID()
	late := time.AfterFunc(30*time.Millisecond, func() { _ = unix.Kill(-pid, unix.SIGINT) })
	defer late.Stop()
	l.want("sleep 0.1; echo $x ${PWD##*/}", "", "5 sub\n")
	l.want("echo $x", "", "5\n")
}

// What a cell breaks does not take the next cell's answer.
func TestBashBrokenByACell(t *testing.T) {
	for _, code := range []string{"alias read=false echo=false builtin=false source=false", "IFS=0123456789", "PATH=/none", "exec 253<&- 254>&-",
		"exec 3<&- 4>&- 5>&- 6>x", "set -o posix", "unset HOME PATH PWD IFS", "shopt -s nullglob failglob; shopt -u sourcepath",
		"set -Cfu", "trap '' INT HUP TERM", "set -x; PS4='$(echo traced >&2)'", "read() { return 1; }; printf() { false; }; source() { exit 9; }; command() { :; }",
		"mkdir gone; cd gone; rmdir ../gone", "set -e; false && true", "BASH_ENV=/none ENV=/none; POSIXLY_CORRECT=1", "exec 2>&-", "exec 0<&-",
		"LC_ALL=xx LANG=none; declare -r IFS"} {
		l := bash(t)
		l.run("kept=5; " + code)
		if o := l.run("{ set +x; } 2>/dev/null; 'builtin' echo \"$kept\""); o.StateLost || o.Exit != 0 || o.out != "5\n" {
			t.Errorf("after %q: %s", code, o)
		}
		l.Close()
	}
}

// A shell that ends after a cell has replaced what it can is followed by one that has its variables, and answers.
func TestBashBrokenAndEnded(t *testing.T) {
	for _, code := range []string{"alias builtin=false echo=false source=false exec=false trap=false cd=false", "echo() { builtin echo mine; }",
		"trap() { :; }; exec() { :; }; shopt() { :; }; cd() { :; }", "read() { false; }; printf() { false; }; source() { :; }; return() { :; }",
		"shopt -u expand_aliases; shopt -s nocasematch nullglob", "set -u -C -f", "IFS=0123456789", "exec >file 2>&1", "PATH=/none"} {
		l := bash(t)
		l.run("kept=5; mkdir in; 'builtin' cd in; " + code)
		if o := l.run("exit 3"); o.Exit != 3 {
			t.Errorf("exit after %q: %s", code, o)
		}
		if o := l.run("'builtin' echo \"$kept ${PWD##*/}\""); o.StateLost || o.Exit != 0 || o.out != "5 in\n" || o.err != "" {
			t.Errorf("after %q and an exit: %s", code, o)
		}
		l.Close()
	}
	l := bash(t)
	for _, code := range []int32{113, 114} {
		l.fails(fmt.Sprint("exit ", code), code)
	}
}

// A cell that leads the output to a file is followed by ones that say so, until it leads to results again.
func TestBashOutputElsewhere(t *testing.T) {
	for code, to := range map[string]string{"exec >log.txt": "/log.txt", "exec >/dev/null 2>&1": "/dev/null", "exec >&-": "nothing that is open",
		"IFS=0123456789; exec >log.txt": "/log.txt", "set -eux; exec >log.txt": "/log.txt", "PATH=/none; exec >log.txt": "/log.txt"} {
		l := bash(t)
		for _, cell := range []string{code, "kept=5; echo hidden || :"} {
			if o := l.run(cell); o.StateLost || !strings.Contains(o.err, "[the output of this shell leads to ") || !strings.Contains(o.err, to+",") {
				t.Errorf("%q: %s", cell, o)
			}
		}
		l.run("exit")
		l.want("'builtin' echo \"$kept\"", "", "5\n")
		l.Close()
	}
	l := bash(t)
	for _, code := range []string{"exec > >(cat) 2>&1", "exec >&2", "exec 3>x 3>&-; exec 5>&1 >&5"} { // it leads to results all the same
		if o := l.run(code); o.err != "" {
			t.Errorf("%q: %s", code, o)
		}
	}
}

// A shell that cannot go on is followed by another one, and the result says so.
func TestBashAnswersOrSaysWhy(t *testing.T) {
	for _, code := range []string{"unset ${!__sandlot*}", "unset -f $(compgen -A function)", "unset $(compgen -v) 2>/dev/null", "exec bash", "kill -9 $$",
		"kill -STOP $$", "ulimit -n 4", "ulimit -f 0", "enable -n echo read printf source trap", "set -n", "exec <&- >&- 2>&-",
		"trap 'exit 9' DEBUG", "trap 'sleep 9' EXIT; exit", "PROMPT_COMMAND=false PS1=x; while :; do :; done"} {
		l := bash(t)
		o := l.timed(code)
		next := l.call(t.Context(), Cell{Code: "echo 1", Timeout: 10 * time.Second})
		if next.out != "1\n" && !o.StateLost && !next.StateLost && !strings.Contains(next.err, "the output of this shell leads to") {
			t.Errorf("after %q, which says\n%s\nthe next cell says\n%s", code, o, next)
		}
		if again := l.call(t.Context(), Cell{Code: "echo 2", Timeout: 10 * time.Second}); again.out != "2\n" && !again.StateLost &&
			!strings.Contains(again.err, "the output of this shell leads to") {
			t.Errorf("after %q the second cell says\n%s", code, again)
		}
		l.Close()
	}
}
