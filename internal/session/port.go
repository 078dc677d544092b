package session

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
)

// Wake opens the principal's session of that id for something that is no call: the next
// call gets the notice of what was lost.
func (b *Sessions) Wake(ctx context.Context, p auth.Principal, id string) (*Lease, error) {
	return b.Open(ctx, p, Ask{ID: id, quiet: true})
}

// Find returns the id of the principal's session that id means, without waking
// it: empty and "home" are their home.
func (b *Sessions) Find(p auth.Principal, id string) (string, error) {
	id = cmp.Or(id, "home")
	s := b.mine(p, id)
	if s == nil {
		return "", b.unknown(p.ID, id)
	}
	return s.record().ID, nil
}

// OwnerOf returns the id of the session's principal, or "" if there is no such session.
func (b *Sessions) OwnerOf(id string) string {
	if s := b.byID(id); s != nil {
		return s.record().Owner
	}
	return ""
}

// Has says whether the session of that id is there, and the owner's.
func (b *Sessions) Has(owner, id string) bool {
	s := b.byID(id)
	if s == nil {
		return false
	}
	c := s.current()
	return c.rec.Owner == owner && !c.removed
}

// ErrNobody is returned by Dial when nothing listens on the port.
var ErrNobody = errors.New("nothing listens on that port")

// dialTimeout is longer than an agent tries.
const dialTimeout = 15 * time.Second

// Dial connects to a port of the sandbox's loopback. Closing the connection ends
// sending; received bytes can be read for a while after that.
func (l *Lease) Dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := l.Agent().Dial(ctx, port)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case agent.ReasonOf(err) == agent.NotFound:
		return nil, ErrNobody
	case agent.ReasonOf(err) == agent.TimedOut:
		return nil, context.DeadlineExceeded
	}
	return nil, err
}
