package hub

import (
	"context"
	"errors"
	"net"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/session"
)

// Why a request for a port gets no further, beside a refusal and a fault.
var (
	ErrNoToken = port.ErrNoToken
	ErrUnknown = port.ErrUnknown
	ErrFull    = port.ErrFull
	ErrNobody  = session.ErrNobody // nothing listens on it
)

// What links to exposed ports have in common.
const (
	PortPrefix   = port.Prefix
	PortParam    = port.Param
	MaxPortConns = port.MaxConns // of one session
)

// PortByPath takes the path of a link by path apart.
func PortByPath(escaped string) (session string, number int, rest string, ok bool) {
	return port.ByPath(escaped)
}

// PortRecord is an exposed port.
type PortRecord = port.Record

// Links says how links to exposed ports look.
func (h *Hub) Links() port.Links { return h.Ports.Links }

// Dialed is a connection to a port of a session. Closing the connection ends what
// is sent; End ends the act.
type Dialed struct {
	net.Conn
	act *Act
}

// End lets go of the session.
func (d *Dialed) End() {
	d.Conn.Close()
	d.act.Close()
}

// DialPort connects to a port of a session of the principal's.
func (h *Hub) DialPort(ctx context.Context, p auth.Principal, id string, number int) (*Dialed, error) {
	begun, err := h.begin(Request{Principal: p, Operation: policy.PortDial, Resource: h.about(p, id)})
	if err != nil {
		return nil, err
	}
	act := &Act{act: begun, outcome: event.OK}
	conn, err := h.dial(ctx, act, id, number)
	if err != nil {
		act.Fail(err)
		act.Close()
		return nil, err
	}
	act.started()
	return &Dialed{conn, act}, nil
}

func (h *Hub) dial(ctx context.Context, act *Act, id string, number int) (net.Conn, error) {
	p := act.request.Principal
	id, err := h.Sessions.Find(p, id)
	if err != nil {
		return nil, err
	}
	act.session = id
	leave, err := h.Ports.Join(id)
	if err != nil {
		return nil, fault.Wrap(fault.ResourceLimit, err, "the session has %d connections from outside", port.MaxConns).
			With("resource_type", "connections").With("current_usage", port.MaxConns).With("limit", port.MaxConns)
	}
	act.release = append(act.release, leave)
	l, err := h.Sessions.Wake(ctx, p, id)
	if err != nil {
		return nil, err
	}
	act.release = append(act.release, l.Release)
	conn, err := l.Dial(ctx, number)
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, session.ErrNobody):
		return nil, fault.New(fault.NotFound, "nothing listens on port %d of session %s", number, id).With("session_id", id).With("port", number)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fault.Wrap(fault.Connection, err, "port %d of session %s takes no connection", number, id)
	}
	return nil, l.Fault(ctx, err, fault.Connection)
}

// Link is what the bearer of a link brings: the session and port that it names, and
// the link's token, which may be empty.
type Link struct {
	Session string
	Port    int
	Token   string
}

// Visit is one request for an exposed port, from VisitPort until Close.
type Visit struct {
	*Act
	*port.Use
	lease *session.Lease
}

// visiting is what the policy is asked of a link.
func visiting(l Link, owner string) Request {
	return Request{Principal: auth.InNameOf(owner), Operation: policy.PortVisit,
		Resource: policy.Resource{Kind: "session", ID: l.Session, Owner: owner}}
}

// CheckLink says whether the bearer of a link may use the port. The errors are
// those of port.Ports, or a refusal.
func (h *Hub) CheckLink(l Link) (port.Record, error) {
	r, err := h.Ports.Check(l.Session, l.Port, l.Token)
	if err != nil {
		return port.Record{}, err
	}
	_, err = h.begin(visiting(l, r.Owner))
	return r, err
}

// VisitPort lets a request in to an exposed port. It takes one of the session's
// connections, and does not wake the session. The errors are those of CheckLink,
// or port.ErrFull.
func (h *Hub) VisitPort(ctx context.Context, l Link) (*Visit, error) {
	use, err := h.Ports.Acquire(ctx, l.Session, l.Port, l.Token)
	if err != nil {
		return nil, err
	}
	begun, err := h.begin(visiting(l, use.Owner))
	if err != nil {
		use.Release()
		return nil, err
	}
	act := &Act{act: begun, session: l.Session, outcome: event.OK, release: []func(){use.Release}}
	return &Visit{Act: act, Use: use}, nil
}

// Wake wakes the session.
func (v *Visit) Wake() error {
	l, err := v.hub.Sessions.Wake(v.Context, auth.InNameOf(v.Owner), v.Session)
	if err != nil {
		return v.Fail(err)
	}
	v.lease = l
	v.release = append(v.release, l.Release)
	return nil
}

// Connect dials the port. Wake went before.
func (v *Visit) Connect() (net.Conn, error) {
	return v.Dial(func(ctx context.Context) (net.Conn, error) { return v.lease.Dial(ctx, v.Port) })
}

// Fault is what a failed Connect is for the one who visits.
func (v *Visit) Fault(ctx context.Context, err error) *fault.Error {
	return fault.From(v.Fail(v.lease.Fault(ctx, err, fault.Connection)))
}
