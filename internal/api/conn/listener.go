// Package conn bounds the connections of clients, in number and in how long a client may
// take to read, and forwards bytes between connections.
package conn

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
)

// Limiter bounds the connections of listeners, so that no client uses up the server's file
// descriptors, with a token or without. A connection has one of three states:
// unauthenticated, before its first authenticated request; serving, during an
// authenticated request, whose number each principal's limit bounds; and idle, after one.
// When there are too many, a new connection replaces the oldest unauthenticated or idle
// one. So a flood closes its own connections, and a client with a token, which
// authenticates within moments, keeps its connection.
type Limiter struct {
	most, each int // connections in all, and unauthenticated ones of one address

	mu        sync.Mutex
	open      int
	strangers map[netip.Prefix]*list.List // of *conn, oldest first
	resting   *list.List                  // of *conn, oldest first
}

const (
	// mostConns bounds the connections, and strangersEach the unauthenticated ones of
	// one address.
	mostConns, strangersEach = 8192, 512
	// ownFiles is how many file descriptors there must be for each connection: each may
	// need more, to its sandbox.
	ownFiles = 4
)

// NewLimiter returns a limiter that fits this process's limit of file descriptors.
func NewLimiter() *Limiter {
	most := mostConns
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil && files.Cur/ownFiles < mostConns {
		most = int(files.Cur / ownFiles)
	}
	return Limit(most, strangersEach)
}

// Limit returns a limiter of most connections in all, at least 16, and of each
// unauthenticated ones of one address.
func Limit(most, each int) *Limiter {
	return &Limiter{most: max(most, 16), each: each, strangers: map[netip.Prefix]*list.List{}, resting: list.New()}
}

// Listener returns a listener whose connections the limiter bounds.
func (c *Limiter) Listener(l net.Listener) net.Listener { return &bounded{l, c} }

type bounded struct {
	net.Listener
	conns *Limiter
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		raw, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := b.conns.admit(raw); c != nil {
			return c, nil
		}
		raw.Close() // all other connections serve requests
	}
}

// conn is a connection of a bounded listener.
type conn struct {
	net.Conn
	of   *Limiter
	from netip.Prefix

	// The limiter's mu guards the fields below.
	in     *list.List // its list of unauthenticated or idle ones; nil: it serves a request
	at     *list.Element
	closed bool
}

// network returns the prefix that counts as one address: the IPv4 address, or the /64 of an
// IPv6 address, of which a client usually has all addresses.
func network(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.WithZone("").Prefix(bits) // bits is valid for ip
	return p
}

// admit counts a new connection, and closes another one when there are too many. It returns
// nil when all connections serve requests.
func (c *Limiter) admit(raw net.Conn) *conn {
	n := &conn{Conn: raw, of: c, from: network(raw.RemoteAddr())}
	c.mu.Lock()
	own := c.strangers[n.from]
	var out *conn
	switch {
	case own != nil && own.Len() >= c.each:
		out = own.Front().Value.(*conn)
	case c.open >= c.most:
		if out = c.oldest(); out == nil {
			c.mu.Unlock()
			return nil
		}
	}
	if out != nil {
		c.drop(out)
	}
	c.open++
	if own = c.strangers[n.from]; own == nil {
		own = list.New()
		c.strangers[n.from] = own
	}
	n.in, n.at = own, own.PushBack(n)
	c.mu.Unlock()
	if out != nil {
		out.Conn.Close()
	}
	return n
}

// oldest returns the connection to close: the oldest unauthenticated one of the address that
// has most of them, or the oldest idle one when more than half of all are idle. The lock
// is held.
func (c *Limiter) oldest() *conn {
	var most *list.List
	for _, l := range c.strangers {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	if most == nil || c.resting.Len() > c.most/2 {
		most = c.resting
	}
	if most.Len() == 0 {
		return nil
	}
	return most.Front().Value.(*conn)
}

// take removes a connection from its list. The lock is held.
func (c *Limiter) take(n *conn) {
	if n.in == nil {
		return
	}
	n.in.Remove(n.at)
	if n.in != c.resting && n.in.Len() == 0 {
		delete(c.strangers, n.from)
	}
	n.in, n.at = nil, nil
}

// drop stops counting a connection. The lock is held.
func (c *Limiter) drop(n *conn) {
	if !n.closed {
		n.closed = true
		c.open--
		c.take(n)
	}
}

// Close implements net.Conn.
func (n *conn) Close() error {
	n.of.mu.Lock()
	n.of.drop(n)
	n.of.mu.Unlock()
	return n.Conn.Close()
}

// CloseWrite half-closes the connection: the peer reads the end of the stream.
func (n *conn) CloseWrite() error { return closeWrite(n.Conn) }

type connKey struct{}

// Context is the ConnContext of the http.Server that serves the listener.
func (c *Limiter) Context(ctx context.Context, raw net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, raw)
}

// Serve marks the connection of an authenticated request as serving, so that it is not
// closed for others, until done is called.
func Serve(r *http.Request) (done func()) {
	n, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return func() {}
	}
	c := n.of
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(n)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !n.closed && n.in == nil {
			n.in, n.at = c.resting, c.resting.PushBack(n)
		}
	}
}
