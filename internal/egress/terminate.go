package egress

import (
	"net"
	"strings"
	"sync"
	"time"
)

// Terminator ends TLS for connections to some hosts, and speaks with the host itself (package egress/bound).
type Terminator interface {
	// Terminates reports whether TLS to a host is ended for that owner.
	Terminates(owner Owner, host string, port uint16) bool
	// Serve speaks with the sandbox over in, which begins with a ClientHello whose server name is host, and with the
	// host over out, until one of them ends. It closes both, and returns when nothing uses them any more.
	Serve(owner Owner, host string, port uint16, in, out net.Conn)
}

// maxTerminated bounds the connections of one sandbox whose TLS is ended at the same time: each holds more memory than
// one that is only copied.
const maxTerminated = 64

// terminates reports whether TLS on this connection may be ended. Only a name can be: a program that dials an address
// has not shown which host it means.
func (l *conn) terminates() bool {
	t := l.outlet.b.config.Terminator
	return t != nil && l.target.Name != "" && t.Terminates(l.outlet.owner, l.target.Name, l.target.Port)
}

// terminate reads the first bytes from the sandbox. If they begin TLS with the target's name, the Terminator serves the
// connection, and otherwise its bytes are copied as always.
func (l *conn) terminate(f *flow) {
	e := l.outlet
	idle := e.b.config.Limits.Idle
	stop := f.cutWhenIdle(idle)
	in := &countedConn{Conn: l.in, flow: f, up: true}
	first := make([]byte, 4<<10)
	n, err := in.Read(first)
	if n > 0 {
		if first, err = l.checkServerName(first[:n]); err == nil && !f.recordMoved(len(first)-n, true) {
			err = errCut
		}
	}
	if err != nil {
		stop()
		return
	}
	if !strings.EqualFold(strings.TrimSuffix(l.serverName, "."), l.target.Name) {
		stop()
		if _, err := l.out.Write(first); err == nil {
			f.run(idle)
		}
		return
	}
	defer stop()
	if e.terminated.Add(1) > maxTerminated {
		e.terminated.Add(-1)
		l.cut("busy")
		return
	}
	defer e.terminated.Add(-1)
	in.buffered, in.uncounted = first, true
	e.b.config.Terminator.Serve(e.owner, l.target.Name, l.target.Port, in, &countedConn{Conn: l.out, flow: f})
	in.finish()
}

// countedConn is one side of a connection whose TLS is ended. It counts what passes between this server and the host:
// that can be more than the sandbox sends, whose placeholders become values. Close ends its use by the Terminator; the
// connection itself is closed when it ends.
type countedConn struct {
	net.Conn
	flow      *flow
	up        bool   // the sandbox's side
	uncounted bool   // what is read is not counted: what the host gets is
	buffered  []byte // read already, and counted

	mu     sync.Mutex // held while deadlines are set
	closed bool
}

func (c *countedConn) Read(b []byte) (int, error) {
	if len(c.buffered) > 0 {
		n := copy(b, c.buffered)
		c.buffered = c.buffered[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	switch {
	case n > 0 && c.uncounted:
		c.flow.lastMoved.Store(int64(time.Since(c.flow.began)))
	case n > 0 && !c.flow.recordMoved(n, c.up):
		return 0, errCut
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.up && !c.flow.recordMoved(len(b), true) {
		return 0, errCut
	}
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.flow.lastMoved.Store(int64(time.Since(c.flow.began)))
	}
	return n, err
}

// SetDeadline changes nothing once the connection is closed. Nor do the other two.
func (c *countedConn) SetDeadline(t time.Time) error { return c.setDeadline(c.Conn.SetDeadline, t) }

func (c *countedConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(c.Conn.SetReadDeadline, t)
}

func (c *countedConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(c.Conn.SetWriteDeadline, t)
}

func (c *countedConn) setDeadline(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set(t)
}

// Close ends calls that wait. The sandbox's side is closed for writing only: the agent takes the end of the whole
// connection for a reset, and the program would lose what it has not read.
func (c *countedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if !c.up {
		return c.Conn.Close()
	}
	closeWrite(c.Conn)
	return c.Conn.SetDeadline(time.Unix(1, 0))
}

// lingerTimeout is how long a sandbox may take to end its side of a connection that has ended.
const lingerTimeout = 5 * time.Second

// finish waits until the sandbox has ended its side, and discards what it still sends.
func (c *countedConn) finish() {
	c.Close()
	c.Conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	b := make([]byte, 4<<10)
	for {
		n, err := c.Conn.Read(b)
		if n > 0 && !c.flow.recordMoved(n, c.up) || err != nil {
			return
		}
	}
}
