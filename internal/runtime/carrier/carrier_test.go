package carrier

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// TestLink: a link passes on what comes over any stream, and begins anew when the stream cannot be had, or ends before or
// after its first connection.
func TestLink(t *testing.T) {
	starts, woken := 0, make(chan int, 10)
	inside := make(chan *wire.Bridge, 10)
	start := func(context.Context) (io.ReadWriteCloser, error) {
		starts++
		if starts == 1 {
			return nil, errors.New("not yet")
		}
		ours, theirs := net.Pipe()
		if starts == 2 {
			theirs.Close()
			return ours, nil
		}
		b, err := wire.NewBridge(theirs, false)
		inside <- b
		return ours, err
	}
	l := New(t.Context(), start, func() { woken <- starts }, slog.New(slog.DiscardHandler))
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run() }()
	for _, want := range []int{3, 4} {
		b := <-inside
		if got := <-woken; got != want {
			t.Errorf("woken at the start %d, want %d", got, want)
		}
		go func() {
			if c, err := b.Open(); err == nil {
				c.Write([]byte("hello"))
			}
		}()
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 5)
		if _, err := io.ReadFull(c, text); err != nil || string(text) != "hello" {
			t.Errorf("%q, %v", text, err)
		}
		if want == 3 {
			b.Close()
		}
	}
	l.Close()
	<-ended
	if _, err := l.Accept(t.Context()); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("after the end: %v", err)
	}
}
