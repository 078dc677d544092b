package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandlot/proto/agentv1"
)

// TestLateOutput: what a program has written is read also after the time for it is over, as on a machine on which the
// reader did not run until then; but no more, though another program goes on writing.
func TestLateOutput(t *testing.T) {
	polled := func() (readEnd, *os.File, error) {
		r, w, err := newPolledPipe()
		return &drained{r}, w, err
	}
	for what, pipe := range map[string]func() (readEnd, *os.File, error){"polled": polled, "a file": newLatePipe} {
		t.Run(what, func(t *testing.T) {
			p, w, err := pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			defer w.Close()
			if _, err := w.WriteString("all of it"); err != nil {
				t.Fatal(err)
			}
			if err := p.SetReadDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 1<<10)
			if n, err := p.Read(b); err != nil || string(b[:n]) != "all of it" {
				t.Errorf("%q, %v", b[:max(n, 0)], err)
			}
			read := 0
			for {
				if _, err := w.Write(b); err != nil {
					t.Fatal(err)
				}
				n, err := p.Read(b)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if read += n; err != nil || read > maxLate {
					t.Fatalf("%d bytes, %v", read, err)
				}
			}
			if _, err := p.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a later read: %v", err)
			}
		})
	}
}

// drained reads a polledPipe after its deadline.
type drained struct{ *polledPipe }

func (d *drained) Read(b []byte) (int, error) { return d.late.read(d.fd, b) }

// slowSink takes the first output when it is told to.
type slowSink struct {
	first sync.Once
	began chan struct{} // closed when the first output is there
	goOn  chan struct{}
	got   bytes.Buffer
}

func (s *slowSink) Write(b []byte) (int, error) {
	s.first.Do(func() { close(s.began); <-s.goOn })
	return s.got.Write(b)
}

// TestLateOutputOfEachKind: of each kind of process, what it has written is kept though the reader was busy until the
// time for it was over.
func TestLateOutputOfEachKind(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for what, c := range map[string]struct {
		kind  string
		stdio Stdio
		fd    int // the stream that is written to
	}{
		"a command":            {kind: "exec", stdio: Stdio{Stderr: io.Discard}, fd: 1},
		"a background process": {kind: "background", fd: 1},
		"an interactive one":   {kind: "interactive", fd: 1},
		"a terminal": {"interactive", Stdio{TerminalSize: &agentv1.Pty{Rows: 9, Cols: 99},
			OnTerminal: func(*os.File) {}}, 1},
		"standard error beside direct connections": {"interactive", Stdio{Direct: [2]*os.File{null, null}}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			sink := &slowSink{began: make(chan struct{}), goOn: make(chan struct{})}
			stdio, open := c.stdio, (*Process).openPipes
			stdio.Stdout = sink
			if stdio.Direct[0] != nil {
				stdio.Stdout, stdio.Stderr = nil, sink
			}
			if stdio.TerminalSize != nil {
				open = (*Process).openTerminal
			}
			p, attr := &Process{kind: c.kind}, new(syscall.ProcAttr)
			programs, err := open(p, attr, stdio)
			if err != nil {
				t.Fatal(err)
			}
			write := func(text string) {
				if _, err := syscall.Write(int(attr.Files[c.fd]), []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			write("early ")
			<-sink.began
			write("late")
			for _, r := range p.readEnds {
				if err := r.SetReadDeadline(time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			close(sink.goOn)
			p.closeOutput() // the programs' ends are open still, as those of something that was left behind
			for _, f := range programs {
				f.Close()
			}
			if got := sink.got.String(); strings.TrimSpace(got) != "early late" {
				t.Errorf("%q is kept", got)
			}
		})
	}
}
