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

// Wake opens the principal's session with that id for something other than a tool call. The
// notice of what was lost is left to the next call.
func (s *Sessions) Wake(ctx context.Context, p auth.Principal, id string) (*Lease, error) {
	return s.Open(ctx, p, OpenRequest{ID: id, KeepNotice: true})
}

// Find returns the id of one of the principal's sessions, and does not wake it. An empty id
// and "home" stand for the home.
func (s *Sessions) Find(p auth.Principal, id string) (string, error) {
	id = cmp.Or(id, "home")
	session := s.ownedSession(p, id)
	if session == nil {
		return "", s.notFound(p.ID, id)
	}
	return session.record().ID, nil
}

// OwnerOf returns the id of the principal who owns the session, or "" if there is no such
// session.
func (s *Sessions) OwnerOf(id string) string {
	if session := s.byID(id); session != nil {
		return session.record().Owner
	}
	return ""
}

// Has reports whether the session with that id exists and belongs to the owner.
func (s *Sessions) Has(owner, id string) bool {
	session := s.byID(id)
	if session == nil {
		return false
	}
	c := session.current()
	return c.rec.Owner == owner && !c.removed()
}

// ErrNotListening is returned by Dial when nothing listens on the port.
var ErrNotListening = errors.New("nothing listens on that port")

// dialTimeout is longer than the agent's own timeout to connect.
const dialTimeout = 15 * time.Second

// Dial connects to a port on the sandbox's loopback interface. After Close nothing more is
// sent, but received bytes can still be read for a while.
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
		return nil, ErrNotListening
	case agent.ReasonOf(err) == agent.TimedOut:
		return nil, context.DeadlineExceeded
	}
	return nil, err
}
