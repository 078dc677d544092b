package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// sequence has what two streams get, in the order in which they get it.
type sequence struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// stream returns the sink of a stream: its bytes are in the sequence, and in their own buffer.
func (s *sequence) stream(own *bytes.Buffer) io.Writer {
	return writing(func(p []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all.Write(p)
		return own.Write(p)
	})
}

func (s *sequence) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

type writing func([]byte) (int, error)

func (w writing) Write(p []byte) (int, error) { return w(p) }

// reading is a pair that copies.
type reading struct {
	*pair
	ends   [2]*os.File
	both   sequence
	own    [2]bytes.Buffer
	copied chan struct{} // closed when copy has returned
}

func newReading(t *testing.T) *reading {
	t.Helper()
	r := &reading{copied: make(chan struct{})}
	var err error
	if r.pair, r.ends, err = newPair([2]io.Writer{r.both.stream(&r.own[0]), r.both.stream(&r.own[1])}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.copied)
		r.copy()
	}()
	t.Cleanup(func() {
		for i := range r.ends {
			r.ends[i].Close()
		}
		<-r.copied
		for _, p := range r.pipes {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *reading) write(t *testing.T, i int, text string) {
	t.Helper()
	if _, err := r.ends[i].WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// TestPairOrder: what is written to both pipes, one after the other was read, arrives in that order; of what has gathered
// in both, the pipe comes first that had something first.
func TestPairOrder(t *testing.T) {
	r := newReading(t)
	want := ""
	for n := range 200 {
		line := fmt.Sprintf("%d\n", n)
		want += line
		r.write(t, (n/2+n/3)%2, line)
		for r.both.String() != want {
			time.Sleep(50 * time.Microsecond)
		}
	}
	for _, first := range []int{0, 1} {
		var seen sequence
		goOn := make(chan struct{})
		began := make(chan struct{}, 10)
		sink := func(p []byte) (int, error) {
			began <- struct{}{}
			<-goOn
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return seen.all.Write(p)
		}
		p, ends, err := newPair([2]io.Writer{writing(sink), writing(sink)})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { p.copy(); close(done) }()
		fmt.Fprint(ends[0], "before ")
		<-began // the reader is busy
		fmt.Fprint(ends[first], "first ")
		fmt.Fprint(ends[1-first], "second ")
		close(goOn)
		ends[0].Close()
		ends[1].Close()
		<-done
		if got := seen.String(); got != "before first second " {
			t.Errorf("first in pipe %d: %q", first, got)
		}
		for _, x := range p.pipes {
			x.Close()
		}
	}
}

// TestPairLines: the lines of a program arrive whole and in order in each stream, also those that gather.
func TestPairLines(t *testing.T) {
	r := newReading(t)
	var want [2]bytes.Buffer
	var writers sync.WaitGroup
	for i := range want {
		for n := range 20_000 {
			want[i].WriteString(strings.Repeat("x", n%7) + "\n")
		}
		writers.Go(func() {
			defer r.ends[i].Close()
			for line := range strings.Lines(want[i].String()) {
				if _, err := r.ends[i].WriteString(line); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	<-r.copied
	for i := range want {
		if !bytes.Equal(r.own[i].Bytes(), want[i].Bytes()) {
			t.Errorf("stream %d: %d bytes of %d", i, r.own[i].Len(), want[i].Len())
		}
	}
}

// TestPairDeadline: a deadline of either pipe ends the copying, with what is in both, though somebody could still write.
func TestPairDeadline(t *testing.T) {
	for i := range 2 {
		r := newReading(t)
		r.write(t, 0, "out")
		r.write(t, 1, "err")
		if err := r.pipes[i].SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		<-r.copied
		if r.own[0].String() != "out" || r.own[1].String() != "err" {
			t.Errorf("%q, %q", r.own[0].String(), r.own[1].String())
		}
		r.write(t, 0, "after")
	}
}
