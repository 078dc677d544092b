// Package conn bounds the connections of clients, in number and in how long a client may
// take to read, and forwards bytes between connections.
package conn

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// Limiter bounds the connections of listeners, so that no client uses up the server's file
// descriptors, with a token or without. A connection has one of three states:
// unauthenticated, before its first authenticated request; serving, during an
// authenticated request, whose number each principal's limit bounds; and idle, after one.
// When there are too many, a new connection replaces the oldest unauthenticated or idle
// one. So a flood closes its own connections, and a client with a token, which
// authenticates within moments, keeps its connection.
type Limiter struct {
	maxConns, maxPerAddress int                 // connections in all, and unauthenticated ones of one address
	isProxy                 func(net.Addr) bool // addresses that stand for many clients; nil: there are none

	mu              sync.Mutex
	open            int
	unauthenticated map[netip.Prefix]*list.List // of *conn, oldest first
	idle            *list.List                  // of *conn, oldest first
}

const (
	// defaultConns bounds the connections, and defaultPerAddress the unauthenticated ones of one
	// address.
	defaultConns, defaultPerAddress = 8192, 512
	// filesPerConn is how many file descriptors there must be for each connection: each may
	// need more, to its sandbox.
	filesPerConn = 4
)

// NewLimiter returns a limiter that fits this process's limit of file descriptors. isProxy reports whether an address
// is that of a proxy, which may have any number of unauthenticated connections.
func NewLimiter(isProxy func(net.Addr) bool) *Limiter {
	c := NewLimiterOf(int(min(maxFiles()/filesPerConn, defaultConns)), defaultPerAddress)
	c.isProxy = isProxy
	return c
}

// NewLimiterOf returns a limiter of maxConns connections in all, at least 16, and of maxPerAddress
// unauthenticated ones of one address.
func NewLimiterOf(maxConns, maxPerAddress int) *Limiter {
	return &Limiter{maxConns: max(maxConns, 16), maxPerAddress: maxPerAddress,
		unauthenticated: map[netip.Prefix]*list.List{}, idle: list.New()}
}

// Listener returns a listener whose connections the limiter bounds.
func (c *Limiter) Listener(l net.Listener) net.Listener { return &boundedListener{l, c} }

type boundedListener struct {
	net.Listener
	conns *Limiter
}

// Accept implements net.Listener.
func (b *boundedListener) Accept() (net.Conn, error) {
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
	limiter *Limiter
	address netip.Prefix

	// The limiter's mu guards the fields below.
	list    *list.List // its list of unauthenticated or idle ones; nil: it serves a request
	element *list.Element
	closed  bool
}

// addressPrefix returns the prefix that counts as one address: the IPv4 address, or the /64 of an
// IPv6 address, of which a client usually has all addresses.
func addressPrefix(a net.Addr) netip.Prefix {
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
	n := &conn{Conn: raw, limiter: c, address: addressPrefix(raw.RemoteAddr())}
	c.mu.Lock()
	sameAddress := c.unauthenticated[n.address]
	var evicted *conn
	switch {
	case sameAddress != nil && sameAddress.Len() >= c.maxPerAddress &&
		!(c.isProxy != nil && c.isProxy(raw.RemoteAddr())):
		evicted = sameAddress.Front().Value.(*conn)
	case c.open >= c.maxConns:
		if evicted = c.oldest(); evicted == nil {
			c.mu.Unlock()
			return nil
		}
	}
	if evicted != nil {
		c.drop(evicted)
	}
	c.open++
	if sameAddress = c.unauthenticated[n.address]; sameAddress == nil {
		sameAddress = list.New()
		c.unauthenticated[n.address] = sameAddress
	}
	n.list, n.element = sameAddress, sameAddress.PushBack(n)
	c.mu.Unlock()
	if evicted != nil {
		evicted.Conn.Close()
	}
	return n
}

// oldest returns the connection to close: the oldest unauthenticated one of the address that
// has most of them, or the oldest idle one when more than half of all are idle. The caller
// holds mu.
func (c *Limiter) oldest() *conn {
	var longest *list.List
	for _, l := range c.unauthenticated {
		if longest == nil || l.Len() > longest.Len() {
			longest = l
		}
	}
	if longest == nil || c.idle.Len() > c.maxConns/2 {
		longest = c.idle
	}
	if longest.Len() == 0 {
		return nil
	}
	return longest.Front().Value.(*conn)
}

// unlist removes a connection from its list. The caller holds mu.
func (c *Limiter) unlist(n *conn) {
	if n.list == nil {
		return
	}
	n.list.Remove(n.element)
	if n.list != c.idle && n.list.Len() == 0 {
		delete(c.unauthenticated, n.address)
	}
	n.list, n.element = nil, nil
}

// drop stops counting a connection. The caller holds mu.
func (c *Limiter) drop(n *conn) {
	if !n.closed {
		n.closed = true
		c.open--
		c.unlist(n)
	}
}

// Close implements net.Conn.
func (n *conn) Close() error {
	n.limiter.mu.Lock()
	n.limiter.drop(n)
	n.limiter.mu.Unlock()
	return n.Conn.Close()
}

// CloseWrite half-closes the connection: the peer reads the end of the stream.
func (n *conn) CloseWrite() error { return closeWrite(n.Conn) }

type connKey struct{}

// ConnContext is the ConnContext of the http.Server that serves the listener.
func (c *Limiter) ConnContext(ctx context.Context, raw net.Conn) context.Context {
	if secured, ok := raw.(*tls.Conn); ok {
		raw = secured.NetConn()
	}
	return context.WithValue(ctx, connKey{}, raw)
}

// MarkServing marks the connection of an authenticated request as serving, so that it is not
// closed for others, until done is called.
func MarkServing(r *http.Request) (done func()) {
	n, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return func() {}
	}
	c := n.limiter
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist(n)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !n.closed && n.list == nil {
			n.list, n.element = c.idle, c.idle.PushBack(n)
		}
	}
}
