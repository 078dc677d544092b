package process

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// program is what a program writes: each time, after so long, the next piece. Read notes when it was called.
type program struct {
	pieces []string
	pause  time.Duration
	calls  []time.Time
}

func (p *program) Read(b []byte) (int, error) {
	p.calls = append(p.calls, time.Now())
	if len(p.pieces) == 0 {
		return 0, io.EOF
	}
	time.Sleep(p.pause)
	n := copy(b, p.pieces[0])
	p.pieces = p.pieces[1:]
	return n, nil
}

// gathering reads what a program writes, as pair does.
type gathering struct {
	gatherer
	program *program
}

func (g *gathering) Read(b []byte) (int, error) {
	if g.gathers() {
		time.Sleep(gatherDelay)
	}
	began := time.Now()
	n, err := g.program.Read(b)
	g.note(n, len(b), time.Since(began))
	return n, err
}

// TestGather: which pieces are read at once, and which may gather; in the time of a clock that does not depend on the
// machine.
func TestGather(t *testing.T) {
	line := "line\n"
	for what, c := range map[string]struct {
		piece   string
		pause   time.Duration
		gathers bool
	}{
		"lines without a pause":     {line, 0, true},
		"lines with short pauses":   {line, atOnce - 1, true},
		"lines with longer pauses":  {line, atOnce, false},
		"long pieces":               {strings.Repeat(line, 200), 0, false},
		"as much as the buffer has": {strings.Repeat("x", 2<<10), 0, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &program{pieces: repeated(c.piece, 40), pause: c.pause}
				g := &gathering{program: p}
				got := new(bytes.Buffer)
				if _, err := io.CopyBuffer(struct{ io.Writer }{got}, g, make([]byte, 2<<10)); err != nil {
					t.Fatal(err)
				}
				if got.String() != strings.Repeat(c.piece, 40) {
					t.Errorf("it read %d bytes", got.Len())
				}
				for i := range p.calls[1:] {
					want := c.pause
					if c.gathers && i+1 >= manyShort {
						want += gatherDelay
					}
					if took := p.calls[i+1].Sub(p.calls[i]); took != want {
						t.Errorf("read %d came after %v, not %v", i+1, took, want)
					}
				}
			})
		})
	}
}

func repeated(piece string, n int) (all []string) {
	for range n {
		all = append(all, piece)
	}
	return all
}

// TestGatherEnds: a program that pauses after many lines is read at once again.
func TestGatherEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{pieces: repeated("x", 2*manyShort)}
		g, b := &gathering{program: p}, make([]byte, 100)
		for range manyShort + 4 {
			g.Read(b)
		}
		p.pause = time.Second
		g.Read(b)
		began := time.Now()
		p.pause = 0
		g.Read(b)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("after a pause of the program it waits for %v", waited)
		}
	})
}
