package carrier

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

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

// TestStranger: a program in the sandbox that dials before the agent, and speaks the protocol without the secret, does
// not keep the agent out. An agent whose connection nobody asks for is not taken for one.
func TestStranger(t *testing.T) {
	t.Run("strangers", func(t *testing.T) {
		key := make([]byte, wire.SecretLen)
		inside, starts := make(chan *wire.Bridge, 10), 0
		l := New(t.Context(), func(ctx context.Context) (io.ReadWriteCloser, error) {
			starts++
			ours, theirs := net.Pipe()
			b, err := wire.NewBridge(theirs, false)
			inside <- b
			return ours, err
		}, func() {}, slog.New(slog.DiscardHandler))
		l.Patience = 200 * time.Millisecond
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run() }()
		go func() { // the server
			for {
				c, err := l.Accept(t.Context())
				if err != nil {
					return
				}
				if _, err := wire.Admit(c, key, nil); err != nil {
					c.Close()
				}
			}
		}()
		silent := <-inside
		<-silent.Done()
		guessing := <-inside
		for {
			c, err := guessing.Open()
			if err != nil {
				break
			}
			_ = wire.Greet(c, append(make([]byte, wire.SecretLen-1), 1))
			c.Close()
			time.Sleep(50 * time.Millisecond)
		}
		agent := <-inside
		c, err := agent.Open()
		if err != nil || wire.Greet(c, key) != nil {
			t.Fatalf("the agent is kept out: %v", err)
		}
		time.Sleep(500 * time.Millisecond)
		if starts != 3 {
			t.Errorf("%d streams", starts)
		}
		l.Close()
		<-ended
	})
	t.Run("nobody asks", func(t *testing.T) {
		inside := make(chan *wire.Bridge, 1)
		l := New(t.Context(), func(ctx context.Context) (io.ReadWriteCloser, error) {
			ours, theirs := net.Pipe()
			b, err := wire.NewBridge(theirs, false)
			inside <- b
			return ours, err
		}, func() {}, slog.New(slog.DiscardHandler))
		l.Patience = 200 * time.Millisecond
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run() }()
		agent, key := <-inside, make([]byte, wire.SecretLen)
		c, err := agent.Open()
		if err != nil {
			t.Fatal(err)
		}
		greeted := make(chan error, 1)
		go func() { greeted <- wire.Greet(c, key) }()
		time.Sleep(500 * time.Millisecond) // nobody asks for the connection
		ours, err := l.Accept(t.Context())
		if err == nil {
			_, err = wire.Admit(ours, key, nil)
		}
		if err != nil {
			t.Errorf("the agent's connection: %v", err)
		}
		<-greeted
		l.Close()
		<-ended
		agent.Close()
	})
}
