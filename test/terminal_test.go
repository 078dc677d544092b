package test

import (
	"fmt"
	"strings"
	"testing"
)

// typist is a background process with a terminal.
type typist struct {
	*client
	id, session string
	cursor      float64
}

// terminal starts a command in a terminal, in a session.
func (c *client) terminal(session, command string) *typist {
	c.t.Helper()
	r := c.call("execute_command", args{"command": command, "tty": true, "session_id": session})
	id, _ := r.Fields["process_id"].(string)
	if id == "" {
		c.t.Fatalf("%s: %q", command, r.All)
	}
	return &typist{client: c, id: id, session: r.session()}
}

// read waits for what until says, and returns what the terminal shows.
func (p *typist) read(until string) *result {
	p.t.Helper()
	r := p.call("read_process", args{"process_id": p.id, "until": until, "cursor": p.cursor, "wait": 100})
	if met, _ := r.Fields["until_met"].(bool); !met {
		p.t.Fatalf("%q does not come: %q", until, r.All)
	}
	p.cursor, _ = r.Fields["cursor"].(float64)
	return r
}

func (p *typist) types(text string) {
	p.t.Helper()
	p.call("write_process", args{"process_id": p.id, "data": text})
}

// screens is a program that draws a screen, and draws it again at each key.
const screens = `
import curses
def main(w):
    n = 0
    while True:
        w.erase(); w.box()
        w.addstr(2, 5, "menu of %d x %d" % w.getmaxyx()); w.addstr(4, 7, "keys: %d" % n)
        if w.getch() == ord("q"): return
        n += 1
curses.wrapper(main)
print("left")
`

// TestTerminalOfProcess: programs that want a terminal get one, and what they show is read as text.
func TestTerminalOfProcess(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	p := c.terminal("new", "python3 -i -q")
	id := p.session
	p.read(">>> ")
	p.types("import sys, os; print(6 * 7, sys.stdin.isatty(), os.get_terminal_size(), os.environ['TERM'])\n")
	if r := p.read(`/-256color\s+.*>>> $/`); !strings.Contains(r.Text,
		"\n42 True os.terminal_size(columns=120, lines=30) xterm-256color\n>>>") {
		t.Errorf("Python shows %q", r.All)
	}
	p.types("exit(3)\n")
	if r := p.read("exit"); r.Fields["exit_code"] != 3.0 || !strings.Contains(r.Text, "xterm-256color\n>>> exit(3)") {
		t.Errorf("Python's end: %q", r.All)
	}
	// Programs that draw.
	c.call("sandbox_write_file", args{"path": "screens.py", "content": screens, "session_id": id})
	p = c.terminal(id, "python3 screens.py")
	for n := range 3 {
		want := fmt.Sprintf("keys: %d", n)
		if n == 0 { // all of the screen is drawn
			want = "/(?s)keys: 0.*└─+┘/"
		}
		r := p.read(want)
		lines := strings.Split(r.Text, "\n")
		if len(lines) < 30 || lines[2] != "│    menu of 30 x 120"+strings.Repeat(" ", 98)+"│" ||
			strings.Count(r.Text, "keys:") != 1 ||
			!strings.HasPrefix(lines[0], "┌────") || !strings.HasPrefix(lines[29], "└────") {
			t.Errorf("after %d keys the screen is:\n%s", n, r.All)
		}
		p.types(map[bool]string{true: "q", false: "x"}[n == 2])
	}
	if r := p.read("exit"); strings.TrimSpace(r.Text) != "left" || r.Fields["exit_code"] != 0.0 {
		t.Errorf("after its end: %q", r.All)
	}
	// Passwords are not shown, and Ctrl-C stops.
	p = c.terminal(id, "read -rsp 'Password: ' x; echo; echo got ${#x}; exec sleep 600")
	p.read("Password:")
	p.types("secret\n")
	if r := p.read("got 6"); strings.Contains(r.Text, "secret") {
		t.Errorf("a password is shown: %q", r.All)
	}
	p.types("\u0003")
	if r := p.read("exit"); r.Fields["exit_code"] != 130.0 {
		t.Errorf("Ctrl-C: %q", r.All)
	}
	// What has scrolled off is told once.
	p = c.terminal(id, "seq 100; read x; seq 101 150")
	if r := p.read("/^100/"); !strings.HasPrefix(r.Text, "1\n2\n") || !strings.HasSuffix(r.Text, "99\n100") {
		t.Errorf("a hundred lines: %q", r.All)
	}
	p.types("\n")
	if r := p.read("exit"); strings.Contains(r.Text, "\n100\n") || !strings.HasPrefix(r.Text, "\n101\n") ||
		!strings.HasSuffix(r.Text, "\n149\n150") {
		t.Errorf("fifty more: %q", r.All)
	}
	p = c.terminal(id, "yes | head -c 3000000")
	if r := p.read("exit"); len(r.Text) > 20000 || r.Fields["truncated"] != true || !strings.HasSuffix(r.Text, "\ny\ny") {
		t.Errorf("a flood: %d bytes, %v", len(r.Text), r.Fields["truncated"])
	}
	// Without, there is none.
	if r := c.shell(id, "test -t 0 || test -t 1 || echo none"); r.Text != "none" {
		t.Errorf("without tty: %q", r.All)
	}
}

// TestTerminalQuestions: a program that asks its user in a terminal is answered.
func TestTerminalQuestions(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	p := c.terminal("new", "mkdir -p demo && cd demo && npm init")
	p.read(`/name:.*\(demo\)/`)
	next := `/(version|description|point|command|repository|keywords|author|license|type): |\? \(yes\)/`
	shown := ""
	for range 20 {
		p.types("\n")
		if shown = p.read(next).Text; strings.Contains(shown, "(yes)") {
			break
		}
	}
	p.types("yes\n")
	if r := p.read("exit"); r.Fields["exit_code"] != 0.0 {
		t.Errorf("npm init: %q after %q", r.All, shown)
	}
	if r := c.shell(p.session, "node -p 'require(\"./demo/package.json\").version'"); r.Text != "1.0.0" {
		t.Errorf("what it made: %q", r.All)
	}
}
