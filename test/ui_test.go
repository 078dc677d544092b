package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"sandlot/internal/terminal"
)

// seat is a program in a terminal, and what that shows.
type seat struct {
	t    *testing.T
	cmd  *exec.Cmd
	file *os.File

	mu     sync.Mutex
	screen *terminal.Emulator
}

// sits starts a command of the program in a terminal.
func (s *server) sits(token string, args ...string) *seat {
	s.t.Helper()
	cmd := exec.Command(s.program, append([]string{"--state-dir", s.State}, args...)...)
	cmd.Env = append(s.env, "TERM=xterm-256color", "SANDLOT_TOKEN="+token)
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		s.t.Fatal(err)
	}
	p := &seat{t: s.t, cmd: cmd, file: f, screen: terminal.NewEmulator(24, 80)}
	var reading sync.WaitGroup
	reading.Go(p.read)
	s.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		f.Close()
		reading.Wait()
	})
	return p
}

// read shows what the program prints, and answers what it asks its terminal.
func (p *seat) read() {
	buf := make([]byte, 16<<10)
	for {
		n, err := p.file.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		_, answers := p.screen.Write(buf[:n])
		p.mu.Unlock()
		p.file.Write(answers)
	}
}

func (p *seat) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.Text()
}

// shows waits until the screen has a text.
func (p *seat) shows(what string) {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(p.text(), what); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("no %q on the screen:\n%s", what, p.text())
		}
	}
}

func (p *seat) types(keys string) {
	p.t.Helper()
	if _, err := p.file.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// TestUI: in the terminal interface a user sees a host asked for, says yes, and the agent goes on; a shell takes the
// terminal, and gives it back; it outlives the server, and ends with the token.
func TestUI(t *testing.T) {
	t.Parallel()
	web := startWeb(t)
	s := start(t, "SANDLOT_NETWORK_HOSTS=web.test=127.0.0.1", "SANDLOT_NETWORK_ALLOW_PRIVATE=web.test=127.0.0.0/8")
	token := s.token("ann")
	s.applySettings(fmt.Sprintf("policy: {rules: [\"ask ann network.reach *.test:%d\"]}\n", web.Port))
	c := s.connect(newer, token, nil)
	c.shell("home", "true")

	p := s.sits(token) // without arguments
	p.shows("● connected")
	p.shows("● home")
	agent := make(chan string, 1)
	go func() {
		said := "nothing"
		defer func() { agent <- said }() // also if the call fails
		said = c.shell("home", web.script("until curl -sS -m 10 http://web.test:PORT/hello; do sleep 0.3; done")).All
	}()
	p.shows(web.script("network.reach: web.test:PORT"))
	p.shows("a once")
	for end := time.Now().Add(time.Minute); !strings.Contains(p.text(), "Answered: yes (session)."); {
		if time.Now().After(end) {
			t.Fatalf("the question is not answered:\n%s", p.text())
		}
		p.types("S") // a busy machine may read it before a key counts
		time.Sleep(time.Second)
	}
	if got := <-agent; !strings.Contains(got, "hello from") {
		t.Errorf("after the yes: %s", got)
	}

	p.types("s")
	p.shows("sandbox:")
	p.types("echo in the sh''ell; read x; exit 3\n")
	p.shows("in the shell")
	p.types("\n")
	p.shows("The shell has ended.")
	p.types("?")
	p.shows("Questions stand on the top")
	p.types("q")

	s.stop()
	p.shows("✗ no connection")
	s.launch()
	p.shows("● connected")

	ids, _, _ := s.cli("token", "list")
	for line := range strings.SplitSeq(ids, "\n") {
		if id, _, _ := strings.Cut(line, " "); strings.HasPrefix(id, "tok_") {
			s.cli("token", "revoke", id)
		}
	}
	p.shows("✗ not let in")
	p.types("q")
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if out, errs, code := s.cli("ui"); code != 2 || !strings.Contains(errs, "needs a terminal") {
		t.Errorf("without a terminal: %d %s%s", code, out, errs)
	}
	if out, _, code := s.cli(); code != 0 || !strings.Contains(out, "Usage:") {
		t.Errorf("without a terminal and arguments: %d %s", code, out)
	}
}
