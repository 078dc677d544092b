package guest

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/guest/guesttest"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// terminal starts a program in the background that has a terminal.
func (r *rig) terminal(command *agentv1.Command, typed string) string {
	r.T.Helper()
	command.Pty = &agentv1.Pty{Rows: 30, Cols: 120}
	return r.start(&agentv1.StartProcessRequest{Command: command, Stdin: []byte(typed), StdinOpen: true})
}

// types types into a terminal.
func (r *rig) types(id, text string, eof bool) {
	r.T.Helper()
	m, err := r.WriteProcess(r.T.Context(), &agentv1.WriteProcessRequest{ProcessId: id, Data: []byte(text), Eof: eof})
	if err != nil || m.Written != uint32(len(text)) {
		r.T.Fatalf("%v, %v", m, err)
	}
}

// shows waits until a text is in the output of a process.
func (r *rig) shows(id, text string) {
	r.T.Helper()
	out, cursor := "", uint64(0)
	for until := time.Now().Add(30 * time.Second); !strings.Contains(out, text); {
		m := r.output(id, cursor, 1<<20, 1000)
		out, cursor = out+string(m.Output), m.Cursor
		if time.Now().After(until) || !m.Running && m.Left == 0 && !strings.Contains(out, text) {
			r.T.Fatalf("%q, and not %q", out, text)
		}
	}
}

// A background process has a terminal of its own if one is asked for: what is written to it is typed.
func TestTerminalInBackground(t *testing.T) {
	r := newRig(t)
	for name, tt := range map[string]struct {
		script string
		steps  []string // a text that it shows, and what is typed then, in turn; the last may be Ctrl-D
		want   string
		exit   int32
	}{
		"a terminal": {"test -t 0 && test -t 1 && test -t 2 && stty size && echo told >/dev/tty; echo $NO_COLOR.", nil,
			"30 120\r\ntold\r\n.\r\n", 0},
		"echo":    {"read -r x; echo got $x", []string{"", "word\n"}, "word\r\ngot word\r\n", 0},
		"Windows": {"read -r x; read -r y; echo got $x $y", []string{"", "a\r\nb\r\n"}, "got a b\r\n", 0},
		"a password": {"stty -echo; echo ready; read -r x; stty echo; echo got $x", []string{"ready", "word\n"},
			"ready\r\ngot word\r\n", 0},
		"Ctrl-C": {"trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done", []string{"ready", "\x03"},
			"^Ccaught\r\n", 5},
		"Ctrl-D":                    {"cat; echo end", []string{"", "word\n", "word\r\nword", "EOF"}, "end\r\n", 0},
		"a descendant that stays":   {"nohup sleep 61 >/dev/null & exit 4", nil, "", 4},
		"Enter":                     {"stty raw -echo; echo ready; dd bs=1 count=1 2>/dev/null | od -An -tx1", []string{"ready", "\n"}, " 0d", 0},
		"a group in the foreground": {"ps -o tpgid= -p $$ | grep -qw $$ && echo foreground", nil, "foreground\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			id := r.terminal(sh(tt.script), "")
			for i := 0; i+1 < len(tt.steps); i += 2 {
				if r.shows(id, tt.steps[i]); tt.steps[i+1] == "EOF" {
					r.types(id, "", true)
				} else {
					r.types(id, tt.steps[i+1], false)
				}
			}
			out, m := r.rest(id)
			if !strings.HasSuffix(out, tt.want) && !strings.Contains(out, tt.want+"\n") || m.ExitCode != tt.exit ||
				m.Terminal.GetRows() != 30 || m.Terminal.GetCols() != 120 {
				t.Errorf("%q, %v, want %q and exit code %d", out, m, tt.want, tt.exit)
			}
			if name == "a password" && strings.Count(out, "word") != 1 {
				t.Errorf("it was shown: %q", out)
			}
		})
	}
	// What is given at the start is typed, too.
	if out, _ := r.rest(r.terminal(sh("read -r x; echo got $x"), "word\n")); !strings.HasSuffix(out, "got word\r\n") {
		t.Errorf("given at the start: %q", out)
	}
	if out, m := r.rest(r.start(&agentv1.StartProcessRequest{Command: sh("test -t 1 || echo pipe")})); out != "pipe\n" ||
		m.Terminal != nil {
		t.Errorf("without a terminal: %q, %v", out, m)
	}
}

// A program that does not read what is typed holds no call beyond its time.
func TestTypingIsBounded(t *testing.T) {
	r := newRig(t)
	id := r.terminal(sh("stty raw -echo; echo ready; exec sleep 600"), "")
	r.shows(id, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := r.WriteProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id, Data: make([]byte, 1<<20)})
	guesttest.Refused(t, err, connect.CodeResourceExhausted, "does not read its input")
	r.stop(id, syscall.SIGKILL, 0)
}

// A program that floods its terminal ends, and what is kept of its output is bounded. What it has started loses the
// terminal with it.
func TestTerminalEnds(t *testing.T) {
	r := newRig(t)
	id := r.terminal(sh("head -c 3000000 /dev/zero | tr '\\0' x; exit 3"), "")
	for r.listed(id).Running {
		time.Sleep(10 * time.Millisecond)
	}
	if m := r.output(id, 0, 4<<20, 0); m.ExitCode != 3 || len(m.Output) != process.RingSize || m.Left != 0 ||
		m.Skipped != 3000000-process.RingSize {
		t.Errorf("%d bytes after %d, exit code %d", len(m.Output), m.Skipped, m.ExitCode)
	}
	id = r.terminal(sh("sleep 61 & echo $!; exit 4"), "")
	out, m := r.rest(id)
	if m.ExitCode != 4 {
		t.Errorf("%q, %v", out, m)
	}
	dead(t, number(t, []byte(out)))
}

// A terminal that has got another size is bounded as before: a program that does not read holds no call beyond its time,
// and what a shell has started keeps nobody from seeing its end.
func TestResizedTerminalIsBounded(t *testing.T) {
	r := newRig(t)
	resized := func(script string) string {
		id := r.terminal(sh(script), "")
		r.shows(id, "ready")
		if _, err := r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id,
			Resize: &agentv1.Pty{Rows: 40, Cols: 100}}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := resized("stty raw -echo; echo ready; exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := r.WriteProcess(ctx, &agentv1.WriteProcessRequest{ProcessId: id, Data: make([]byte, 1<<20)})
	guesttest.Refused(t, err, connect.CodeResourceExhausted, "does not read its input")
	r.stop(id, syscall.SIGKILL, 0)
	id = resized("trap '' HUP; sleep 61 & stty -echo; echo ready; read -r x; echo $!; exit 4")
	r.types(id, "go\n", false)
	out, m := r.rest(id)
	if m.ExitCode != 4 {
		t.Errorf("%q, %v", out, m)
	}
	if fields := strings.Fields(out); len(fields) > 0 {
		if pid, err := strconv.Atoi(fields[len(fields)-1]); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A program whose output nobody reads any more ends, if that was asked for.
func TestUnread(t *testing.T) {
	r := newRig(t)
	start := func(unread uint64) string {
		return r.start(&agentv1.StartProcessRequest{Command: sh("trap 'exit 5' HUP; echo ready; while :; do sleep 0.01; done"),
			StdinOpen: true, UnreadMillis: unread})
	}
	kept, read, unread := start(0), start(800), start(800)
	cursor := uint64(0)
	for r.listed(unread).Running {
		cursor = r.output(read, cursor, 1000, 100).Cursor
	}
	if p := r.listed(unread); p.ExitCode != 5 || p.UnreadMillis != 800 {
		t.Errorf("what nobody has read is %v", p)
	}
	if !r.listed(read).Running || !r.listed(kept).Running {
		t.Error("what somebody reads, or what need not be read, has ended")
	}
	for r.listed(read).Running {
		time.Sleep(10 * time.Millisecond)
	}
	r.stop(kept, syscall.SIGKILL, 0)
}

// A person's terminal has any size, which can change, and what it sends arrives byte for byte.
func TestTerminalOfAPerson(t *testing.T) {
	r := newRig(t)
	id := r.terminal(sh("trap 'stty size' WINCH; stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -tx1; "+
		"sleep 0.1"), "")
	r.shows(id, "ready")
	resize := func(id string, rows, cols uint32) error {
		_, err := r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id,
			Resize: &agentv1.Pty{Rows: rows, Cols: cols}})
		return err
	}
	if err := resize(id, 40, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteProcess(t.Context(), &agentv1.WriteProcessRequest{ProcessId: id, Data: []byte("a\n\r"),
		Keys: true}); err != nil {
		t.Fatal(err)
	}
	r.shows(id, " 61 0a 0d")
	out, m := r.rest(id)
	if !strings.Contains(out, "40 100") || m.Terminal.GetRows() != 40 || m.Terminal.GetCols() != 100 {
		t.Errorf("%q, %v", out, m.Terminal)
	}
	list := r.List()
	if p := list[len(list)-1]; p.GetTerminal().GetRows() != 40 {
		t.Errorf("the list has %v", p)
	}
	id = r.start(&agentv1.StartProcessRequest{Command: sh("sleep 60"), StdinOpen: true})
	guesttest.Refused(t, resize(id, 40, 100), connect.CodeFailedPrecondition, "no terminal")
}
