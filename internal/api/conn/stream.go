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
	// Stall is how long a transfer may make no progress.
	Stall = time.Minute
	// chunk is how many bytes a client must read within Stall.
	chunk = 64 << 10
)

// WriteChunks writes b in parts, so that a client that reads slowly but steadily is not cut
// off in a long response. write sets the deadline of each part.
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

// Buffered is a connection whose next bytes are in the buffer of a reader.
type Buffered struct {
	net.Conn
	Reader *bufio.Reader
}

// Read implements net.Conn.
func (b *Buffered) Read(p []byte) (int, error) { return b.Reader.Read(p) }

// CloseWrite half-closes the connection: the peer reads the end of the stream.
func (b *Buffered) CloseWrite() error { return closeWrite(b.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Client is the upgraded connection of a client. A write fails when the client does not read
// for Stall.
type Client struct {
	Buffered
	// HalfClosed is how long the client may send after CloseWrite; 0: without limit.
	HalfClosed time.Duration
}

// Write implements net.Conn.
func (c *Client) Write(b []byte) (int, error) {
	return WriteChunks(b, func(part []byte) (int, error) {
		c.SetWriteDeadline(time.Now().Add(Stall))
		return c.Conn.Write(part)
	})
}

// CloseWrite half-closes the connection: the client reads the end of the stream.
func (c *Client) CloseWrite() error {
	if c.HalfClosed > 0 {
		c.SetReadDeadline(time.Now().Add(c.HalfClosed))
	}
	return c.Buffered.CloseWrite()
}

// Splice forwards bytes and half-closes both ways, until both sides have ended or one fails.
// It closes both connections.
func Splice(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { forward(a, b) })
	forward(b, a)
	both.Wait()
	a.Close()
	b.Close()
}

func forward(to, from net.Conn) {
	if _, err := Copy(to, from, chunk); err != nil || closeWrite(to) != nil {
		to.Close()
		from.Close()
	}
}

// Copy copies through a buffer of that many bytes. It hides ReadFrom and WriteTo from
// io.CopyBuffer, which would copy in smaller parts with them.
func Copy(to io.Writer, from io.Reader, buffer int) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, buffer))
}
