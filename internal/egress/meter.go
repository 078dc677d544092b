package egress

import (
	"sync/atomic"

	"sandlot/internal/agent/wire"
)

// Usage counts what one sandbox, or all sandboxes, did with the network.
type Usage struct {
	Open        int64  `json:"open"` // connections now
	Connected   uint64 `json:"connected"`
	Refused     uint64 `json:"refused"`     // by policy
	Unreachable uint64 `json:"unreachable"` // allowed, but the connection failed
	Busy        uint64 `json:"busy"`        // over a limit
	Broken      uint64 `json:"broken"`      // requests that could not be read
	Lookups     uint64 `json:"lookups"`     // of names, whatever the result
	Up          uint64 `json:"bytes_up"`    // from the sandbox
	Down        uint64 `json:"bytes_down"`
}

type counters struct {
	open                                          atomic.Int64
	connected, refused, unreachable, busy, broken atomic.Uint64
	lookups                                       atomic.Uint64
	moved                                         Meter
}

// forCode returns the counter of requests that failed with that code.
func (c *counters) forCode(failure wire.NetCode) *atomic.Uint64 {
	switch failure {
	case wire.NetRefused:
		return &c.refused
	case wire.NetBusy:
		return &c.busy
	case wire.NetInvalid:
		return &c.broken
	}
	return &c.unreachable
}

func (c *counters) usage() Usage {
	moved := c.moved.Traffic()
	return Usage{
		Open: c.open.Load(), Connected: c.connected.Load(), Refused: c.refused.Load(),
		Unreachable: c.unreachable.Load(), Busy: c.busy.Load(), Broken: c.broken.Load(),
		Lookups: c.lookups.Load(), Up: moved.Up, Down: moved.Down,
	}
}

// Traffic is how many bytes all sandboxes of a session have sent and received.
type Traffic struct {
	Up   uint64 `json:"bytes_up"` // from the sandbox
	Down uint64 `json:"bytes_down"`
}

// Meter counts traffic. The outlets of all sandboxes of a session share one, so that a
// new sandbox does not begin at zero.
//
// It is stored every two seconds, all that have changed in one write: with one write for each connection a
// sandbox could keep the disk busy, and a crash loses two seconds at most, which no sandbox can cause. A
// meter that is full refuses like a missing rule, so that the next result reports it, and not as a momentary
// limit that is worth a retry.
type Meter struct {
	up, down atomic.Uint64
	day      *DayMeter // counts too; nil: none does
}

// NewMeter returns a meter that begins at t, the traffic that the session has had already. The day's meter is that
// of the session's principal; nil: there is none.
func NewMeter(t Traffic, day *DayMeter) *Meter {
	m := &Meter{day: day}
	m.up.Store(t.Up)
	m.down.Store(t.Down)
	return m
}

// Traffic returns the count.
func (m *Meter) Traffic() Traffic { return Traffic{m.up.Load(), m.down.Load()} }

// Reset makes the meter count from zero.
func (m *Meter) Reset() {
	m.up.Store(0)
	m.down.Store(0)
}

func (m *Meter) add(n int, up bool) {
	m.day.add(n, up)
	if up {
		m.up.Add(uint64(n))
	} else {
		m.down.Add(uint64(n))
	}
}
