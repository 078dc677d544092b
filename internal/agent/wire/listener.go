package wire

import "net"

// Listener gives an HTTP server the connections that come on a channel: the Call
// streams of a link.
type Listener struct {
	Conns  chan net.Conn
	Closed <-chan struct{} // ends Accept when it is closed; Close does not
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.Conns:
		return c, nil
	case <-l.Closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { return nil }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "agent", Net: "unix"} }
