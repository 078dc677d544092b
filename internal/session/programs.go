package session

import (
	"sandlot/internal/agent"
)

// Programs says how the programs of a session are now.
type Programs struct {
	Agent *agent.Client // nil: they do not run now
	Kept  bool          // they run, or go on when the session wakes; else they are gone
	// Life is another number when there are other programs: an agent gives the same ids to them.
	Life uint64
}

// Programs returns how the programs of an owner's session are. It wakes no session, and is no use of one: the session may
// fall asleep at any moment.
func (s *Sessions) Programs(owner, id string) (Programs, error) {
	session := s.owned(owner, id)
	if session == nil {
		return Programs{}, s.notFound(owner, id)
	}
	c := session.current()
	p := Programs{Kept: c.State.KeepsPrograms(), Life: c.life}
	if c.booted != nil {
		p.Agent = c.booted.Agent
	}
	return p, nil
}

// Life returns the Life of the programs that the lease's agent has.
func (l *Lease) Life() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur.booted != l.Booted { // they have ended meanwhile, or are about to
		return l.cur.life - 1
	}
	return l.cur.life
}
