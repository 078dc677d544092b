package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"sandlot/internal/agent/direct"
	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// expectedConns is a direct connection that the host has asked the sandbox to make.
type expectedConns struct {
	ticket    wire.Ticket
	conn      chan net.Conn // gets the connection, without waiting
	abandoned bool          // nobody waits for it any more; guarded by the client's mu
}

// expect makes a ticket, which admits one direct connection. The caller calls forget in the end.
func (c *Client) expect() *expectedConns {
	e := &expectedConns{conn: make(chan net.Conn, 1)}
	rand.Read(e.ticket[:]) // does not fail
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expectedConns[e.ticket] = e
	return e
}

// claim returns the expected connection of a ticket. A ticket is valid once; nil: it is not valid.
func (c *Client) claim(t wire.Ticket) *expectedConns {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.expectedConns[t]
	delete(c.expectedConns, t)
	return e
}

// deliver passes a connection to wait, or closes it after forget.
func (c *Client) deliver(e *expectedConns, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.abandoned {
		conn.Close()
		return
	}
	e.conn <- conn
}

// forget makes the ticket invalid, and closes the connection if wait has not returned it.
func (c *Client) forget(e *expectedConns) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.expectedConns, e.ticket)
	e.abandoned = true
	select {
	case conn := <-e.conn:
		conn.Close()
	default:
	}
}

// wait waits for the connection, and returns it.
func (e *expectedConns) wait(ctx context.Context) (net.Conn, error) {
	select {
	case conn := <-e.conn:
		return conn, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for a connection of the sandbox: %w", ctx.Err())
	}
}

// Program is a program that runs in the sandbox, with direct connections as its standard input
// and output.
type Program struct {
	In, Out net.Conn
	// Stream carries the frames of an interactive process, without those of the standard input
	// and output. Closing it ends the program.
	Stream net.Conn
}

// Close ends the program and closes its connections.
func (p *Program) Close() {
	p.In.Close()
	p.Out.Close()
	p.Stream.Close()
}

// ErrOldAgent is returned for a request that the agent of a sandbox does not know, because an
// older version of the server created the sandbox.
var ErrOldAgent = errors.New("this sandbox was made by an older version of Sandlot; stop the session, and its next " +
	"call " +
	"makes a new one")

// StartProgram starts a program. Ctx bounds only the start.
func (c *Client) StartProgram(ctx context.Context, command Command) (*Program, error) {
	in, out := c.expect(), c.expect()
	defer c.forget(in)
	defer c.forget(out)
	cmd := command.Message()
	cmd.Tickets = [][]byte{in.ticket[:], out.ticket[:]}
	stream, reply, err := c.stream(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Exec{Exec: cmd}})
	if err != nil {
		return nil, err
	}
	if !reply.Direct {
		stream.Close()
		return nil, ErrOldAgent
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

// transfer opens a connection for the bytes of a file, and returns it with the agent's reply. The
// bytes of a large file go over a direct connection.
func (c *Client) transfer(ctx context.Context, open *agentv1.StreamOpen) (net.Conn, *agentv1.StreamReply, error) {
	e := c.expect()
	defer c.forget(e)
	open.Ticket = e.ticket[:]
	s, reply, err := c.stream(ctx, open)
	if err != nil || !reply.Direct {
		return s, reply, err
	}
	dialCtx, cancel := context.WithTimeout(ctx, direct.SendLimit)
	defer cancel()
	data, err := e.wait(dialCtx)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	enlargeBuffer(data)
	return &fileTransfer{Conn: s, data: data, download: open.GetReadFile() != nil}, reply, nil
}

// fileTransfer is a raw stream with a direct connection for the bytes of the file.
type fileTransfer struct {
	net.Conn          // the stream
	data     net.Conn // the direct connection
	download bool     // a download, and not an upload
}

// Read implements net.Conn: it reads the file of a download, or the agent's reply to an upload.
func (t *fileTransfer) Read(p []byte) (int, error) {
	if t.download {
		return t.data.Read(p)
	}
	return t.Conn.Read(p)
}

// Write implements net.Conn.
func (t *fileTransfer) Write(p []byte) (int, error) { return t.data.Write(p) }

// SetReadDeadline implements net.Conn.
func (t *fileTransfer) SetReadDeadline(d time.Time) error {
	return errors.Join(t.Conn.SetReadDeadline(d), t.data.SetReadDeadline(d))
}

// SetWriteDeadline implements net.Conn.
func (t *fileTransfer) SetWriteDeadline(d time.Time) error { return t.data.SetWriteDeadline(d) }

// SetDeadline implements net.Conn.
func (t *fileTransfer) SetDeadline(d time.Time) error {
	return errors.Join(t.Conn.SetDeadline(d), t.data.SetDeadline(d))
}

// Close implements net.Conn.
func (t *fileTransfer) Close() error { return errors.Join(t.data.Close(), t.Conn.Close()) }
