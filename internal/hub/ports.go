package hub

import (
	"context"
	"errors"
	"net"
	"strconv"

	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/session"
)

// Errors of requests for a port. Other errors are refusals by policy and faults.
var (
	ErrNoToken      = port.ErrNoToken
	ErrUnknownPort  = port.ErrUnknown
	ErrTooManyConns = port.ErrFull
	ErrNotListening = session.ErrNotListening // nothing listens on the port
)

// The parts of links to exposed ports.
const (
	PortPrefix   = port.PathPrefix
	PortParam    = port.TokenParam
	MaxPortConns = port.MaxConns // limit for each session
)

// PortByPath parses the path of a link that names the port in its path.
var PortByPath = port.ParsePath

// PortRecord is an exposed port.
type PortRecord = port.Record

// IsPortHost reports whether a host name has the form of an exposed port's.
func (h *Hub) IsPortHost(host string) bool { return h.Ports.Links.IsPortHost(host) }

// PortByHost parses the host name of a link.
func (h *Hub) PortByHost(host string) (session string, port int, ok bool) {
	return h.Ports.Links.ParseHost(host)
}

// PortConn is a connection to a port of a session. End ends the connection and its request.
type PortConn struct {
	net.Conn
	request *ActiveRequest
}

// HalfCloseTimeout is how long a client may continue to send to a port after the program in
// the sandbox has closed its side. Then the connection to the sandbox ends the stream.
var HalfCloseTimeout = wire.HostMuxConfig().StreamCloseTimeout

// DrainTimeout is how long connections to ports may go on when the server stops.
const DrainTimeout = port.DrainTimeout

// CloseWrite closes the direction to the port. Close of a stream to the sandbox does only
// that; the other direction stays open.
func (c *PortConn) CloseWrite() error { return c.Close() }

// End closes the connection, and ends the request, which releases the session.
func (c *PortConn) End() {
	c.Conn.Close()
	c.request.Close()
}

// DialPort connects to a port of one of the principal's sessions.
func (h *Hub) DialPort(ctx context.Context, p auth.Principal, id string, number int) (*PortConn, error) {
	r := h.sessionRequest(policy.PortDial, p, SessionID(id))
	r.Detail = strconv.Itoa(number)
	return begin(ctx, h, r, func(a *ActiveRequest) (*PortConn, error) {
		conn, err := h.dial(ctx, a, id, number)
		return &PortConn{conn, a}, err
	})
}

func (h *Hub) dial(ctx context.Context, a *ActiveRequest, id string, number int) (net.Conn, error) {
	p := a.request.Principal
	id, err := h.Sessions.Find(p, id)
	if err != nil {
		return nil, err
	}
	a.session = id
	release, err := h.Ports.AcquireForOwner(id)
	if err != nil {
		return nil, fault.Limit("connections", port.MaxConns, port.MaxConns,
			"the session has %d connections from outside", port.MaxConns)
	}
	a.cleanups = append(a.cleanups, release)
	l, err := h.Sessions.Wake(ctx, p, id)
	if err != nil {
		return nil, err
	}
	a.holdLease(l)
	h.Sessions.Narrow(id, p.Scope) // a program may do what comes to its port, as it does what write_process gives it
	conn, err := l.Dial(ctx, number)
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, session.ErrNotListening):
		return nil, fault.New(fault.NotFound, "nothing listens on port %d of session %s", number, id).
			With("session_id", id).With("port", number)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fault.Wrap(fault.Connection, err, "port %d of session %s accepts no connection", number, id)
	}
	return nil, l.Fault(ctx, err, fault.Connection)
}

// Link is a link to an exposed port: a session, a port, and the link's token, which may be
// empty. Whoever has the link may use it.
type Link struct {
	Session string
	Port    int
	Token   string
}

// Visit is one HTTP request for an exposed port, from VisitPort until Close.
type Visit struct {
	*ActiveRequest
	*port.Conn
	lease *session.Lease
}

// request returns the request of a visitor, in the name of the session's owner.
func (l Link) request(owner string) Request {
	return Request{Principal: auth.OnBehalfOf(owner), Operation: policy.PortVisit,
		Resource: policy.Resource{Kind: sessionKind, ID: l.Session, Owner: owner}, Detail: strconv.Itoa(l.Port)}
}

// HasTokenOf reports whether the link has the port's token. A port can be open to links without one.
func (l Link) HasTokenOf(r PortRecord) bool { return r.HasToken(l.Token) }

// CheckLink returns the port of a link if the link may be used. The errors are those of
// port.Ports, or a refusal by policy.
func (h *Hub) CheckLink(ctx context.Context, l Link) (port.Record, error) {
	r, err := h.Ports.Check(l.Session, l.Port, l.Token)
	if err != nil {
		return port.Record{}, err
	}
	_, err = h.authorize(ctx, l.request(r.Owner))
	return r, err
}

// VisitPort authorizes a request for an exposed port. It counts as one of the session's
// connections, and does not wake the session. The errors are those of CheckLink, or
// port.ErrFull.
func (h *Hub) VisitPort(ctx context.Context, l Link) (*Visit, error) {
	use, err := h.Ports.Acquire(ctx, l.Session, l.Port, l.Token)
	if err != nil {
		return nil, err
	}
	a, err := h.authorize(ctx, l.request(use.Owner))
	if err != nil {
		use.Release()
		return nil, err
	}
	a.outcome, a.cleanups = event.OK, []func(){use.Release}
	return &Visit{ActiveRequest: a, Conn: use}, nil
}

// Wake wakes the session.
func (v *Visit) Wake() error {
	l, err := v.hub.Sessions.Wake(v.Context, auth.OnBehalfOf(v.Owner), v.Session)
	if err != nil {
		return v.Fail(err)
	}
	v.lease = l
	v.ActiveRequest.holdLease(l)
	return nil
}

// Connect dials the port, after Wake.
func (v *Visit) Connect() (net.Conn, error) {
	return v.Dial(func(ctx context.Context) (net.Conn, error) { return v.lease.Dial(ctx, v.Port) })
}

// Fault returns the fault that the visitor gets for a failed Connect, and makes it the outcome of the
// event.
func (v *Visit) Fault(ctx context.Context, err error) *fault.Error {
	return fault.From(v.Fail(v.lease.Fault(ctx, err, fault.Connection)))
}
