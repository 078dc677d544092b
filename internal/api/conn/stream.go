package conn

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// Stall is how long a transfer may stand still.
	Stall = time.Minute
	// chunk is what a client has to take within Stall, in bytes.
	chunk = 64 << 10
)

// WriteChunks writes b in parts of which a client can take each within Stall, so that
// a client that reads steadily is not cut off in a long answer. Write sets the deadline.
func WriteChunks(b []byte, write func(part []byte) (int, error)) (n int, err error) {
	for err == nil && (n == 0 || n < len(b)) {
		var k int
		k, err = write(b[n:min(len(b), n+chunk)])
		if n += k; k == 0 {
			break
		}
	}
	return n, err
}

// Buffered is a connection of which the buffer of its reader has the next bytes.
type Buffered struct {
	net.Conn
	From *bufio.Reader
}

// Read implements net.Conn.
func (b *Buffered) Read(p []byte) (int, error) { return b.From.Read(p) }

// CloseWrite ends what is sent.
func (b *Buffered) CloseWrite() error { return closeWrite(b.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Client is the connection of a client that was upgraded. The client has to take what
// is written to it.
type Client struct {
	Buffered
	// HalfClosed is how long the client may send on after CloseWrite; 0: for ever.
	HalfClosed time.Duration
}

// Write implements net.Conn.
func (c *Client) Write(b []byte) (int, error) {
	return WriteChunks(b, func(part []byte) (int, error) {
		c.SetWriteDeadline(time.Now().Add(Stall))
		return c.Conn.Write(part)
	})
}

// CloseWrite ends what is sent.
func (c *Client) CloseWrite() error {
	if c.HalfClosed > 0 {
		c.SetReadDeadline(time.Now().Add(c.HalfClosed))
	}
	return c.Buffered.CloseWrite()
}

// Splice passes bytes both ways, and the end of each side by itself, until both
// have ended or one is lost. It closes both.
func Splice(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	pass(b, a)
	both.Wait()
	a.Close()
	b.Close()
}

func pass(to, from net.Conn) {
	if _, err := Copy(to, from, chunk); err != nil || closeWrite(to) != nil {
		to.Close()
		from.Close()
	}
}

// Copy copies through a buffer of that many bytes. It keeps io.Copy from the ReadFrom
// and WriteTo of both, which would copy in small parts.
func Copy(to io.Writer, from io.Reader, buffer int) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, buffer))
}
