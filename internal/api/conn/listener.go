// Package conn is about clients' connections: how many a listener may have, how long
// a client may take, and passing bytes from one to another.
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

// Limiter bounds the connections of listeners, so that nobody uses up the server's
// descriptors, with a token or without. Three kinds are told apart: strangers, on
// which nobody was let in yet; resting ones, on which somebody was, and nothing is
// on its way; and those that serve a request that was let in, whose number each
// principal's limit bounds. A new connection always has a place, as long as there is
// one of the first two kinds: where there are too many, the oldest of them ends. So
// who floods ends their own, and who comes with a token, which takes a moment, stays.
type Limiter struct {
	most, each int // in all, and strangers of one address

	mu        sync.Mutex
	open      int
	strangers map[netip.Prefix]*list.List // of *conn, the oldest first
	resting   *list.List                  // likewise
}

const (
	// mostConns is the most that there may be, and strangersEach of one address.
	mostConns, strangersEach = 8192, 512
	// ownFiles is the part of a process's descriptors that is for connections: one in
	// so many. Each may need others, to its sandbox.
	ownFiles = 4
)

// NewLimiter returns bounds that suit the descriptors that this process may have.
func NewLimiter() *Limiter {
	most := mostConns
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil && files.Cur/ownFiles < mostConns {
		most = int(files.Cur / ownFiles)
	}
	return Limit(most, strangersEach)
}

// Limit returns a bound of that many connections in all, and of that many strangers of
// one address.
func Limit(most, each int) *Limiter {
	return &Limiter{most: max(most, 16), each: each, strangers: map[netip.Prefix]*list.List{}, resting: list.New()}
}

// Listener returns one whose connections count.
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
		raw.Close() // all others serve requests
	}
}

// conn is a connection that counts.
type conn struct {
	net.Conn
	of   *Limiter
	from netip.Prefix

	// The limiter's mu guards these.
	in     *list.List // strangers or resting; nil: neither
	at     *list.Element
	closed bool
}

// network is what counts as one address: whoever has an IPv6 address has all of
// its network.
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
	p, _ := ip.WithZone("").Prefix(bits) // the length suits
	return p
}

// admit makes room for a connection; nil: there is none.
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

// oldest returns the connection that has to go: of the address with the most
// strangers, or one that rests, where these are the more. The lock is held.
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

// take takes a connection out of its list. The lock is held.
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

// drop counts a connection no more. The lock is held.
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

// CloseWrite ends what is sent.
func (n *conn) CloseWrite() error { return closeWrite(n.Conn) }

type connKey struct{}

// Context is for http.Server's ConnContext.
func (c *Limiter) Context(ctx context.Context, raw net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, raw)
}

// Serve says that a request was let in, until done is called: its connection stays.
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
