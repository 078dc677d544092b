package guest

import (
	"math/rand/v2"
	"time"
)

// linkResult is how an attempt to link the agent to a host ended.
type linkResult int

const (
	noServer   linkResult = iota // no server accepts connections
	linkFailed                   // a server is there, but there was no link
	linkBroken                   // there was a link, and it broke
)

// redialBackoff decides when an agent without a link dials again: soon when there is a server, and
// rarely when there is none.
//
// An attempt without a server takes some milliseconds of a processor, and all agents of a
// server that dies lose their links at the same time. The next server is there within a second
// or two, needs the processors then, and wakes each agent whose sandbox it takes over
// (wire.WakeSignal). So an agent whose link broke dials once, after a random pause, since
// the server may still run, and rarely after that.
type redialBackoff struct {
	attempts int // attempts that found a server, since the last link that was not brief
}

const (
	minPause = 10 * time.Millisecond // a random time of up to eight times as much is added
	maxPause = 2 * time.Second       // while there is a server
	// briefLink is how long a link lasts at most to be a brief one. The server gives up a
	// sandbox after some brief links in a row.
	briefLink = 2 * time.Second
)

// pause returns how long to wait before the next attempt. Result and took are of the last one,
// unlinked is how long the agent has had no link.
func (r *redialBackoff) pause(result linkResult, took, unlinked time.Duration) time.Duration {
	switch {
	case result == noServer:
		r.attempts = 0
		return pauseWithoutServer(unlinked)
	case result == linkBroken && took > briefLink:
		r.attempts = 0
	default:
		r.attempts = min(r.attempts+1, 20)
	}
	p := min(minPause<<r.attempts, maxPause/2)
	return p + rand.N(min(8*minPause<<r.attempts, maxPause/2))
}

// pauseWithoutServer returns how long to wait while there is no server.
func pauseWithoutServer(unlinked time.Duration) time.Duration {
	p := 4 * time.Second
	if unlinked < 10*time.Second {
		p = 2 * time.Second
	}
	return p*3/4 + rand.N(p/2)
}
