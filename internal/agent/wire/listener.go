package wire

import "net"

// Listener is a net.Listener for an HTTP server whose connections come from a channel: the Call
// streams of a link.
type Listener struct {
	Conns  chan net.Conn
	Closed <-chan struct{} // makes Accept return when it is closed; Close does not close it
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

// Close implements net.Listener. It does nothing.
func (l *Listener) Close() error { return nil }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "agent", Net: "unix"} }
