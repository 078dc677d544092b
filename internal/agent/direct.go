package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// expected is a connection that the sandbox was asked to make.
type expected struct {
	ticket    wire.Ticket
	conn      chan net.Conn // takes one
	forgotten bool          // guarded by the client's mu
}

// expect lets one connection in, until it is forgotten.
func (c *Client) expect() *expected {
	e := &expected{conn: make(chan net.Conn, 1)}
	rand.Read(e.ticket[:]) // does not fail
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expected == nil {
		c.expected = map[wire.Ticket]*expected{}
	}
	c.expected[e.ticket] = e
	return e
}

// claim takes what a ticket is for. Nobody else gets it.
func (c *Client) claim(t wire.Ticket) *expected {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.expected[t]
	delete(c.expected, t)
	return e
}

// deliver gives a connection to whom it is for, or closes it.
func (c *Client) deliver(e *expected, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.forgotten {
		conn.Close()
		return
	}
	e.conn <- conn
}

// forget lets a connection in no more, and closes one that nobody took.
func (c *Client) forget(e *expected) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.expected, e.ticket)
	e.forgotten = true
	select {
	case conn := <-e.conn:
		conn.Close()
	default:
	}
}

// wait returns the connection when it has come.
func (e *expected) wait(ctx context.Context) (net.Conn, error) {
	select {
	case conn := <-e.conn:
		return conn, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for a connection of the sandbox: %w", ctx.Err())
	}
}

// Program is one that runs in the sandbox, whose input and output are
// connections of their own: nothing stands between them and the program.
type Program struct {
	In, Out net.Conn
	// Stream carries the frames of an interactive process but those of the input
	// and the output. Closing it ends the program.
	Stream net.Conn
}

// Close ends the program and lets its output go.
func (p *Program) Close() {
	p.In.Close()
	p.Out.Close()
	p.Stream.Close()
}

// Start starts a program. Ctx bounds the start alone.
func (c *Client) Start(ctx context.Context, cmd *agentv1.Command) (*Program, error) {
	in, out := c.expect(), c.expect()
	defer c.forget(in)
	defer c.forget(out)
	cmd.Tickets = [][]byte{in.ticket[:], out.ticket[:]}
	stream, _, err := c.Stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: cmd}})
	if err != nil {
		return nil, err
	}
	p := &Program{Stream: stream}
	if p.In, err = in.wait(ctx); err != nil {
		stream.Close()
		return nil, err
	}
	if p.Out, err = out.wait(ctx); err != nil {
		stream.Close()
		p.In.Close()
		return nil, err
	}
	return p, nil
}
