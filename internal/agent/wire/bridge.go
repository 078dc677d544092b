package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
)

// A Bridge carries connections over one stream of bytes, such as the standard input and output of
// a process, where the runtime has no folder that both sides see. In the sandbox `sandlot-agent
// connect` has one end, which opens a connection for each that arrives at the agent's socket; the
// host has the other one, and accepts them. The host trusts nothing that arrives.
//
// The bytes of a connection are in chunks, each after its length (uint32, big endian). A chunk
// without bytes says that its sender writes no more. When the yamux stream ends without such a
// chunk, the connection was reset.
type Bridge struct {
	mux   *yamux.Session
	known atomic.Bool // Admit has admitted one of its connections
}

// maxChunk bounds one chunk of a connection's bytes.
const maxChunk = 64 << 10

// backlog bounds the connections that the host has not accepted yet: it holds what arrives for them.
const backlog = 16

// NewBridge returns one end of a bridge. It closes stream when it ends.
func NewBridge(stream io.ReadWriteCloser, host bool) (*Bridge, error) {
	c := HostMuxConfig()
	c.EnableKeepAlive = true // a daemon on another machine may be gone without a word
	c.AcceptBacklog = backlog
	var b Bridge
	var err error
	if host {
		b.mux, err = yamux.Server(stream, c)
	} else {
		c.MaxStreamWindowSize = agentWindow
		b.mux, err = yamux.Client(stream, c)
	}
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// Ping waits until the other end answers.
func (b *Bridge) Ping() error {
	_, err := b.mux.Ping()
	return err
}

// Open opens a connection. It is for the end in the sandbox.
func (b *Bridge) Open() (*BridgeConn, error) {
	s, err := b.mux.OpenStream()
	if err != nil {
		return nil, err
	}
	return &BridgeConn{Stream: s, bridge: b}, nil
}

// Accept waits for the next connection. It is for the host's end.
func (b *Bridge) Accept() (*BridgeConn, error) {
	s, err := b.mux.AcceptStream()
	if err != nil {
		return nil, err
	}
	return &BridgeConn{Stream: s, bridge: b}, nil
}

// Close ends the bridge and all its connections.
func (b *Bridge) Close() error { return b.mux.Close() }

// Known reports whether Admit has admitted one of its connections: the agent is at the other end.
func (b *Bridge) Known() bool { return b.known.Load() }

// Done returns a channel that is closed when the bridge has ended.
func (b *Bridge) Done() <-chan struct{} { return b.mux.CloseChan() }

// BridgeConn is a connection over a bridge. As of a TCP connection, either direction can be closed
// separately. One goroutine may read, and others write.
type BridgeConn struct {
	*yamux.Stream

	bridge *Bridge
	left   uint32 // bytes of the chunk that is being read
	ended  bool   // the peer writes no more

	mu     sync.Mutex // for writes
	closed bool       // this end writes no more
}

// Read implements net.Conn.
func (c *BridgeConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.Stream.Read(p) // tells whether the stream was reset
	}
	for c.left == 0 {
		if c.ended {
			return 0, io.EOF
		}
		var header [4]byte
		if _, err := io.ReadFull(c.Stream, header[:]); err != nil {
			return 0, resetError(err)
		}
		c.left = binary.BigEndian.Uint32(header[:])
		if c.left > maxChunk {
			return 0, ErrMessage
		}
		c.ended = c.left == 0
	}
	n, err := c.Stream.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	return n, resetError(err)
}

// resetError returns the error of a stream that ended before its connection did.
func resetError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return syscall.ECONNRESET
	}
	return err
}

// Write implements net.Conn.
func (c *BridgeConn) Write(p []byte) (written int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, syscall.EPIPE
	}
	buffer := make([]byte, 0, 4+min(len(p), maxChunk))
	for len(p) > 0 {
		k := min(len(p), maxChunk)
		buffer = append(binary.BigEndian.AppendUint32(buffer[:0], uint32(k)), p[:k]...)
		if _, err := c.Stream.Write(buffer); err != nil {
			return written, err
		}
		written, p = written+k, p[k:]
	}
	return written, nil
}

// CloseWrite ends this end's direction. The peer can go on writing.
func (c *BridgeConn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	_, err := c.Stream.Write(make([]byte, 4))
	return err
}

// halfCloser is a connection whose two directions can be closed separately.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// Splice copies in both directions between two connections until both have ended, or one is
// reset; then it closes both.
func Splice(a, b halfCloser) {
	var back sync.WaitGroup
	copyOneWay := func(to, from halfCloser) {
		if _, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from}); err == nil && to.CloseWrite() == nil {
			return
		}
		a.Close()
		b.Close()
		a.SetDeadline(time.Unix(1, 0))
		b.SetDeadline(time.Unix(1, 0))
	}
	back.Go(func() { copyOneWay(a, b) })
	copyOneWay(b, a)
	back.Wait()
	a.Close()
	b.Close()
}
