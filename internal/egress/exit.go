package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
)

const (
	// maxSpare bounds the connections that wait for a request. One more gets
	// sparePatience, since those that come at once with their requests are not
	// spare; and no more than extraLines, above the connections that are
	// allowed, get anything.
	maxSpare      = 16
	sparePatience = time.Second
	extraLines    = 256
)

// Owner is who a sandbox belongs to, for the log.
type Owner struct{ Principal, Session, Sandbox string }

// Exit is one sandbox's way out.
type Exit struct {
	b       *Broker
	count   counters
	account *Account

	wg sync.WaitGroup // lines

	mu       sync.Mutex
	closed   bool
	policy   *Policy
	lines    map[*line]bool
	spare    int // lines that wait for a request
	connects int // lines that connect or are connected
	connectRate,
	lookupRate,
	lineRate, // connections from the agent
	busyRate bucket // answers that it asks for too much
	refusals refusals
	journal  journal
}

// Exit returns the way out of one sandbox, whose bytes count for the account.
// Close ends it.
func (b *Broker) Exit(owner Owner, policy *Policy, account *Account) *Exit {
	rate := bucket{rate: float64(b.limits.Rate), burst: float64(b.limits.Burst)}
	e := &Exit{
		b: b, policy: policy, account: account, lines: map[*line]bool{},
		connectRate: rate, lookupRate: rate, busyRate: rate,
		// An agent needs one for each connection, and makes one ready with each
		// look-up.
		lineRate: bucket{rate: 2 * rate.rate, burst: 2 * rate.burst},
	}
	e.journal = journal{
		log: b.log.With("principal", owner.Principal, "session", owner.Session, "sandbox", owner.Sandbox),
		mu:  &e.mu, lines: bucket{rate: logRate, burst: logRate},
	}
	return e
}

// Pace returns when one more connection from the agent may come, or ctx ends:
// an agent that makes them as fast as it can, and asks for nothing that counts,
// waits for that, and costs the server no more than what it may do anyway.
func (e *Exit) Pace(ctx context.Context) {
	e.mu.Lock()
	wait := e.lineRate.owe()
	e.mu.Unlock()
	pause(ctx, wait)
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Serve answers what comes on a connection from the agent, until it ends, ctx
// ends or the exit closes. It closes the connection.
func (e *Exit) Serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &line{exit: e, in: c, cancel: cancel}
	if !e.enter(l) {
		e.turnedAway()
		return
	}
	defer e.leave(l)
	defer context.AfterFunc(ctx, func() { l.cut("closed") })()
	l.serve(ctx)
}

func (e *Exit) enter(l *line) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.lines) >= e.b.limits.Connections+extraLines {
		return false
	}
	e.lines[l] = true
	e.wg.Add(1)
	return true
}

// turnedAway takes note of a connection from the agent that had no place.
func (e *Exit) turnedAway() {
	e.both(func(c *counters) { c.busy.Add(1) })
	e.failed("", 0, wire.NetBusy, "this sandbox has more connections to the server than it may have", nil)
}

func (e *Exit) leave(l *line) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.lines, l)
	e.wg.Done()
}

// SetPolicy makes p what holds from now on; connections that it forbids are
// closed. p is not changed after that; nil allows nothing.
func (e *Exit) SetPolicy(p *Policy) {
	own := e.b.own()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.policy = p
	for l := range e.lines {
		if l.out == nil {
			continue // judged when it is connected
		}
		why := p.refuse(l.target, own)
		if why == "" && l.otherName != "" && p.Mode == Allowlist {
			why = differs(l.target.Name)
		}
		if why != "" {
			e.refusals.add(l.target.Host(), l.target.Port, why)
			l.cutLocked("policy")
		}
	}
}

// Close ends all connections and waits for them. It can be called twice.
func (e *Exit) Close() {
	e.mu.Lock()
	e.closed = true
	for l := range e.lines {
		l.cutLocked("closed")
	}
	e.mu.Unlock()
	e.wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.journal.flush()
}

// TakeRefusals returns what was refused since it was last called: the first
// few hosts and ports, each once.
func (e *Exit) TakeRefusals() []Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.refusals
	e.refusals = nil
	return r.distinct()
}

// Usage counts what this sandbox did.
func (e *Exit) Usage() Usage { return e.count.usage() }

// both counts in this sandbox's numbers and in those of all.
func (e *Exit) both(f func(*counters)) {
	f(&e.count)
	f(&e.b.totals)
}

// wait is called by a line that is about to wait for a request. It says for how
// long it may: 0 is for ever.
func (e *Exit) wait() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare++
	if e.spare > maxSpare {
		return sparePatience
	}
	return 0
}

func (e *Exit) waited() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare--
}

// limitReached says whether the bytes of this session are used up.
func (e *Exit) limitReached() bool {
	t := e.account.Traffic()
	return e.b.limits.Bytes > 0 && t.Up+t.Down > uint64(e.b.limits.Bytes)
}

// allUsed begins the reason of what is refused when limitReached.
const allUsed = "this session has used all "

func (e *Exit) allUsed() string {
	n, unit := e.b.limits.Bytes, "bytes"
	if n%(1<<20) == 0 {
		n, unit = n>>20, "MB"
	}
	return fmt.Sprintf(allUsed+"%d %s of network that it may use", n, unit)
}

// begin takes a place for a connection and returns the policy to judge it by;
// the error, busy or refused, says why there is none.
func (e *Exit) begin() (*Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.connectRate.take(): // first: what is refused counts too
		return nil, busy(fmt.Sprintf("this session opens more than %d connections a second", e.b.limits.Rate))
	case e.limitReached():
		return nil, refused(e.allUsed())
	case e.connects >= e.b.limits.Connections:
		return nil, busy(fmt.Sprintf("this session has %d connections open, which is the limit", e.connects))
	}
	e.connects++
	return e.policy, nil
}

func (e *Exit) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connects--
}

// beginLookup is begin for a look-up, which takes no place.
func (e *Exit) beginLookup() (*Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.lookupRate.take():
		return nil, busy(fmt.Sprintf("this session looks up more than %d names a second", e.b.limits.Rate))
	case e.limitReached():
		return nil, refused(e.allUsed())
	}
	return e.policy, nil
}

// penalty is what a line waits that was told that it asks for too much: all of
// them together do not hear that more often than they may ask.
func (e *Exit) penalty() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(busyPause, e.busyRate.owe())
}

// admit makes out the line's connection, if the policy of this moment still
// allows it.
func (e *Exit) admit(l *line, t Target, out net.Conn) error {
	own := e.b.own()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.why != "" {
		return errCut
	}
	if why := e.policy.refuse(t, own); why != "" {
		return refused(why)
	}
	l.target, l.out = t, out
	return nil
}

// failed takes note of a request that came to nothing.
func (e *Exit) failed(host string, port uint16, code wire.NetCode, why string, detail error) {
	host = printable(host)
	outcome := verdict(code)
	args := []any{"host", host, "port", port, "verdict", outcome, "reason", why}
	if detail != nil {
		args = append(args, "error", detail)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if code == wire.NetRefused {
		e.refusals.add(host, port, why)
	}
	e.journal.failure(outcome, args...)
}

// finished takes note of a connection that was made.
func (e *Exit) finished(l *line, f *flow) {
	e.mu.Lock()
	verdict, other := l.verdict(), l.otherName
	e.mu.Unlock()
	args := []any{"host", l.target.Host(), "port", l.target.Port, "address", address(l.target.Addr),
		"up", f.up.Load(), "down", f.down.Load(), "duration", time.Since(f.begun).Round(time.Millisecond), "verdict",
		verdict}
	if other != "" {
		args = append(args, "server_name", other)
	}
	e.journal.log.Info("network: connection", args...)
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return "by proxy"
	}
	return a.String()
}

func verdict(c wire.NetCode) string {
	switch c {
	case wire.NetOK:
		return "ok"
	case wire.NetRefused:
		return "refused"
	case wire.NetNoName:
		return "no name"
	case wire.NetBusy:
		return "busy"
	case wire.NetBroken:
		return "broken"
	}
	return "unreachable"
}
