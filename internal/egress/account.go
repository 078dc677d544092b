package egress

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Usage counts what a sandbox, or all of them, did with the network.
type Usage struct {
	Open        int64  `json:"open"` // connections now
	Connected   uint64 `json:"connected"`
	Refused     uint64 `json:"refused"`     // by policy
	Unreachable uint64 `json:"unreachable"` // allowed, but nobody answered
	Busy        uint64 `json:"busy"`        // over a limit
	Broken      uint64 `json:"broken"`      // no request at all
	Lookups     uint64 `json:"lookups"`     // of names, with any answer
	Up          uint64 `json:"bytes_up"`    // from the sandbox
	Down        uint64 `json:"bytes_down"`
}

type counters struct {
	open                                          atomic.Int64
	connected, refused, unreachable, busy, broken atomic.Uint64
	lookups, up, down                             atomic.Uint64
}

func (c *counters) usage() Usage {
	return Usage{
		Open: c.open.Load(), Connected: c.connected.Load(), Refused: c.refused.Load(),
		Unreachable: c.unreachable.Load(), Busy: c.busy.Load(), Broken: c.broken.Load(),
		Lookups: c.lookups.Load(), Up: c.up.Load(), Down: c.down.Load(),
	}
}

// Refusal is what a sandbox was not allowed to reach.
type Refusal struct {
	Host   string    `json:"host"`
	Port   uint16    `json:"port,omitempty"` // 0: the name was looked up only
	Reason string    `json:"reason"`         // completes "HOST was refused: …"
	At     time.Time `json:"at"`             // the last time
	Times  int       `json:"times"`
}

// Remedy is what the operator can do about a refusal.
type Remedy int

const (
	Nothing     Remedy = iota
	ARule              // a rule that names the host
	AMode              // another mode
	AnException        // the name with the range of its address
)

// Remedy says what the operator can do about it.
func (r Refusal) Remedy() Remedy {
	switch {
	case r.Reason == noRule, r.Reason == otherPorts:
		return ARule
	case r.Reason == noNetwork:
		return AMode
	case strings.HasPrefix(r.Reason, atAddress):
		return AnException
	}
	return Nothing
}

// distinct leaves out names that were looked up where their ports are there too.
func (r refusals) distinct() []Refusal {
	return slices.DeleteFunc(r, func(x Refusal) bool {
		return x.Port == 0 && slices.ContainsFunc(r, func(y Refusal) bool { return y.Host == x.Host && y.Port != 0 })
	})
}

// maxRefusals bounds what is kept until somebody asks.
const maxRefusals = 8

// refusals are the first few that nobody has asked for yet. Their user guards
// them.
type refusals []Refusal

func (r *refusals) add(host string, port uint16, reason string) {
	now := time.Now()
	for i := range *r {
		if x := &(*r)[i]; x.Host == host && x.Port == port {
			x.Reason, x.At, x.Times = reason, now, x.Times+1
			return
		}
	}
	if len(*r) < maxRefusals {
		*r = append(*r, Refusal{host, port, reason, now, 1})
	}
}

// bucket allows rate events a second, and burst of them at once. Its user
// guards it.
type bucket struct {
	rate, burst float64
	used        float64
	at          time.Time
}

func (b *bucket) take() bool {
	now := time.Now()
	b.used = max(0, b.used-b.rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.used+1 > b.burst {
		return false
	}
	b.used++
	return true
}

// logRate bounds the lines about what did not become a connection.
const logRate = 10

// journal writes one sandbox's lines. Those that a flood could make are
// bounded, apart from the others, so that no flood hides a connection.
type journal struct {
	log     *slog.Logger
	lines   bucket
	omitted int
}

func (j *journal) failure(msg string, args ...any) {
	if !j.lines.take() {
		j.omitted++
		return
	}
	j.flush()
	j.log.Info(msg, args...)
}

func (j *journal) flush() {
	if j.omitted > 0 {
		j.log.Info("network: lines left out", "lines", j.omitted)
		j.omitted = 0
	}
}
