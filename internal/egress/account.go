package egress

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
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

// Traffic is what a session moved, in bytes, over all its sandboxes.
type Traffic struct {
	Up   uint64 `json:"bytes_up"` // from the sandbox
	Down uint64 `json:"bytes_down"`
}

// Account counts the traffic of one session. The exits of all its sandboxes
// have the same one, so that none begins at nothing.
type Account struct{ up, down atomic.Uint64 }

// NewAccount returns an account of a session that has moved t already.
func NewAccount(t Traffic) *Account {
	a := new(Account)
	a.up.Store(t.Up)
	a.down.Store(t.Down)
	return a
}

// Traffic returns what was counted until now.
func (a *Account) Traffic() Traffic { return Traffic{a.up.Load(), a.down.Load()} }

// Clear makes the account count from nothing.
func (a *Account) Clear() {
	a.up.Store(0)
	a.down.Store(0)
}

func (a *Account) add(n int, up bool) {
	if up {
		a.up.Add(uint64(n))
	} else {
		a.down.Add(uint64(n))
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
	MoreBytes          // a higher limit, or to count anew
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
	case strings.HasPrefix(r.Reason, allUsed):
		return MoreBytes
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
	b.drain()
	if b.used+1 > b.burst {
		return false
	}
	b.used++
	return true
}

// owe takes one in any case, and returns how long to wait so that the rate is
// kept: a second at most.
func (b *bucket) owe() time.Duration {
	b.drain()
	b.used = min(b.used+1, b.burst+b.rate)
	return time.Duration(max(0, b.used-b.burst) / b.rate * float64(time.Second))
}

func (b *bucket) drain() {
	now := time.Now()
	b.used = max(0, b.used-b.rate*now.Sub(b.at).Seconds())
	b.at = now
}

// logRate bounds the lines about what did not become a connection.
const logRate = 10

// journal writes one sandbox's lines. Those that a flood could make are
// bounded, apart from the others, so that no flood hides a connection; what is
// left out is told a second later, by verdict. Its user guards it, with mu.
type journal struct {
	log     *slog.Logger
	mu      *sync.Mutex
	lines   bucket
	omitted map[string]int // by verdict
	timer   *time.Timer    // flushes; nil when there is nothing to
}

// summary is how long lines that are left out are added up.
const summary = time.Second

func (j *journal) failure(verdict string, args ...any) {
	if j.lines.take() {
		j.log.Info("network: failed", args...)
		return
	}
	if j.omitted == nil {
		j.omitted = map[string]int{}
	}
	j.omitted[verdict]++
	if j.timer == nil {
		j.timer = time.AfterFunc(summary, func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.flush()
		})
	}
}

func (j *journal) flush() {
	if j.timer == nil {
		return
	}
	j.timer.Stop()
	lines := 0
	var args []any
	for _, v := range slices.Sorted(maps.Keys(j.omitted)) {
		lines += j.omitted[v]
		args = append(args, v, j.omitted[v])
	}
	j.log.Info("network: lines left out", append([]any{"lines", lines}, args...)...)
	j.timer, j.omitted = nil, nil
}
