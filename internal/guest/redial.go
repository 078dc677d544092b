package guest

import (
	"math/rand/v2"
	"time"
)

// linkEnd is how an attempt to link the agent to a host ended.
type linkEnd int

const (
	nobodyThere linkEnd = iota // nothing accepts on the socket
	linkRefused                // a server is there, and did not take the agent
	linkBroke                  // there was a link
)

// redial says when an agent without a link dials again: soon where a server is
// there, seldom where nobody is.
//
// To dial in vain takes some milliseconds of a processor, and all agents of a
// server that dies lose it at once: the next server, which is there within a second
// or two and wakes each agent that it takes over (wire.Wake), needs the processors
// more than they do. So an agent whose link broke tries once, at a moment of its
// own, whether the server lives, and after that seldom.
type redial struct {
	tries int // that found a server, since the last link that held
}

const (
	redialFirst = 10 * time.Millisecond // and up to eight times as long more
	redialMost  = 2 * time.Second       // between attempts at a server that is there
	// briefLink is how long a link holds that counts. The server gives a sandbox up
	// that breaks one brief link after the other.
	briefLink = 2 * time.Second
)

// pause returns how long to wait after an attempt that ended so and took so long,
// by an agent that has had no link for that long.
func (r *redial) pause(end linkEnd, took, alone time.Duration) time.Duration {
	switch {
	case end == nobodyThere:
		r.tries = 0
		return seldomDial(alone)
	case end == linkBroke && took > briefLink:
		r.tries = 0
	default:
		r.tries = min(r.tries+1, 20)
	}
	p := min(redialFirst<<r.tries, redialMost/2)
	return p + rand.N(min(8*redialFirst<<r.tries, redialMost/2))
}

// seldomDial is how long an agent waits that has had no host for that long.
func seldomDial(alone time.Duration) time.Duration {
	p := 4 * time.Second
	if alone < 10*time.Second {
		p = 2 * time.Second
	}
	return p*3/4 + rand.N(p/2)
}
