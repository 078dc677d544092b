package process

import (
	"bytes"
	"errors"
	"io"
	"os"
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
				g := &gatherReader{Reader: p}
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
		g, b := &gatherReader{Reader: p}, make([]byte, 100)
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

// TestGatherPipe: a program's lines arrive whole and in order, also those that gather.
func TestGatherPipe(t *testing.T) {
	r, w, err := newGatherPipe()
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := range 20_000 {
		want.WriteString(strings.Repeat("x", i%7) + "\n")
	}
	go func() {
		defer w.Close()
		for line := range strings.Lines(want.String()) {
			w.WriteString(line)
		}
	}()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes of %d, %v", len(got), want.Len(), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestGatherPipeDeadline: a deadline ends a read that waits, and all that follow, though somebody could still write.
func TestGatherPipeDeadline(t *testing.T) {
	r, w, err := newGatherPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan error)
	go func() {
		_, err := io.ReadAll(r)
		ended <- err
	}()
	w.WriteString("before")
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read ended with %v", err)
	}
	w.WriteString("after")
	if n, err := r.Read(make([]byte, 9)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a later read: %d, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
