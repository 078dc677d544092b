package agent

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"sandlot/internal/agent/wire"
)

// broken serves what a sandbox asks for, and panics in the place that it is told.
type broken struct{ in atomic.Value }

func (b *broken) panics(in string) {
	if b.in.Load() == in {
		panic(in)
	}
}

func (b *broken) Pace(context.Context) { b.panics("the pace") }

func (b *broken) Serve(_ context.Context, c net.Conn) { b.panics("the network"); b.answer(c) }

func (b *broken) answer(c net.Conn) {
	_, _ = c.Write([]byte("served"))
	c.Close()
}

// brokenTools is broken for tools.
type brokenTools struct{ *broken }

func (b brokenTools) Serve(_ context.Context, c net.Conn, from func() Caller) {
	b.panics("the tools")
	from()
	b.answer(c)
}

// TestPanics: a panic in what one connection of a sandbox is for ends that connection, and nothing else: however often
// it comes, later connections are served, and the link lives.
func TestPanics(t *testing.T) {
	c, b := client(t, nil)
	br := new(broken)
	c.SetNetwork(br)
	c.SetTools(brokenTools{br})
	// dial makes a connection, and returns all that it gets.
	dial := func(greet func(net.Conn, []byte) error, tools bool) string {
		t.Helper()
		host, guest := socketpair(t)
		defer guest.Close()
		b.dialed <- host
		if greet(guest, key) != nil { // it panics before it answers
			return ""
		}
		if tools {
			if err := wire.WriteToolConn(guest, wire.ToolConn{Tag: "t"}); err != nil {
				t.Fatal(err)
			}
		}
		got, _ := io.ReadAll(guest)
		return string(got)
	}
	for _, in := range []string{"the pace", "the network", "the tools", "admitted"} {
		br.in.Store(in)
		b.panics.Store(in == "admitted")
		greet := wire.GreetNet
		if in == "the tools" {
			greet = wire.GreetTools
		}
		for range maxGreetings + 1 {
			if got := dial(greet, in == "the tools"); got != "" {
				t.Errorf("after a panic in %s it got %q", in, got)
			}
		}
	}
	br.in.Store("")
	b.panics.Store(false)
	if got := dial(wire.GreetNet, false); got != "served" {
		t.Errorf("the network: %q", got)
	}
	if got := dial(wire.GreetTools, true); got != "served" {
		t.Errorf("tools: %q", got)
	}
	b.serve(t, valid{name: "true"}.fake())
	if id, err := hello(t.Context(), c); err != nil || id != "true" {
		t.Errorf("Hello = %q, %v", id, err)
	}
}
