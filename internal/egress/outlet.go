package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandlot/internal/agent/wire"
	"sandlot/internal/event"
)

const (
	// maxSpare bounds the connections that wait for a request without limit. Further ones
	// wait for spareTimeout, as the agent may have made one for a request that it is about
	// to send; and no more than extraConns, above the connections that are allowed, are
	// served at all.
	maxSpare     = 16
	spareTimeout = time.Second
	extraConns   = 256
)

// Owner is who a sandbox belongs to, for the log.
type Owner struct{ Principal, Session, Sandbox string }

// Outlet is one sandbox's access to the network.
type Outlet struct {
	b     *Broker
	count counters
	meter *Meter

	wg sync.WaitGroup // of conns

	mu       sync.Mutex
	closed   bool
	policy   *Policy
	conns    map[*conn]bool
	spare    int // conns that wait for a request
	connects int // conns that connect or are connected
	refusals refusals
	log      limitedLog

	connectRate,
	lookupRate,
	connRate, // connections from the agent
	busyRate *rate.Limiter // answers that it asks for too much
}

// Outlet returns the outlet of one sandbox, whose bytes count for the meter. Close ends
// it.
func (b *Broker) Outlet(owner Owner, policy *Policy, meter *Meter) *Outlet {
	per := func(times int) *rate.Limiter {
		return rate.NewLimiter(rate.Limit(times*b.config.Limits.Rate), times*b.config.Limits.Burst)
	}
	e := &Outlet{
		b: b, policy: policy, meter: meter, conns: map[*conn]bool{},
		connectRate: per(1), lookupRate: per(1), busyRate: per(1),
		// An agent needs one for each connection, and makes one ready with each
		// look-up.
		connRate: per(2),
	}
	e.log = limitedLog{
		log:    b.config.Log.With("principal", owner.Principal, "session", owner.Session, "sandbox", owner.Sandbox),
		events: b.config.Events, owner: owner,
		mu: &e.mu, lines: rate.NewLimiter(logRate, logRate),
	}
	return e
}

// Pace returns when one more connection from the agent may come, or ctx ends. So an agent
// that makes them as fast as it can, and asks for nothing that counts, costs the server no
// more than what it may do anyway.
func (e *Outlet) Pace(ctx context.Context) {
	pause(ctx, wait(e.connRate))
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
// ends or the outlet closes. It closes the connection.
func (e *Outlet) Serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &conn{outlet: e, in: c, cancel: cancel}
	if !e.acquire(l) {
		e.both(func(c *counters) { c.busy.Add(1) })
		why := busy("this sandbox has more connections to the server than it may have")
		e.failed("", 0, failure{wire.NetBusy, why, nil})
		return
	}
	defer e.release(l)
	defer context.AfterFunc(ctx, func() { l.cut("closed") })()
	l.serve(ctx)
}

func (e *Outlet) acquire(l *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.conns) >= e.b.config.Limits.Connections+extraConns {
		return false
	}
	e.conns[l] = true
	e.wg.Add(1)
	return true
}

func (e *Outlet) release(l *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, l)
	e.wg.Done()
}

// SetPolicy applies p from now on; connections that it forbids are closed. p does not
// change after that; nil allows nothing.
func (e *Outlet) SetPolicy(p *Policy) {
	own := e.b.config.Own()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.policy = p
	for l := range e.conns {
		if l.out == nil {
			continue // judged when it is connected
		}
		err := p.refuse(l.target, own)
		if err == nil && l.otherName != "" && p.Mode == Allowlist {
			err = otherServer(l.target.Name)
		}
		if err != nil {
			e.refusals.add(l.target.Host(), l.target.Port, err)
			l.cutLocked("policy")
		}
	}
}

// Close ends all connections and waits for them. It can be called twice.
func (e *Outlet) Close() {
	e.mu.Lock()
	e.closed = true
	for l := range e.conns {
		l.cutLocked("closed")
	}
	e.mu.Unlock()
	e.wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log.flush()
}

// TakeRefusals returns the refusals since it was last called: the first
// few hosts and ports, each once.
func (e *Outlet) TakeRefusals() []Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.refusals
	e.refusals = nil
	return r.distinct()
}

// Usage counts what this sandbox did.
func (e *Outlet) Usage() Usage { return e.count.usage() }

// both counts for this sandbox and for all of them.
func (e *Outlet) both(f func(*counters)) {
	f(&e.count)
	f(&e.b.totals)
}

// wait counts a conn that waits for a request, until waited. It returns for how long the
// conn may wait: 0 is for ever.
func (e *Outlet) wait() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare++
	if e.spare > maxSpare {
		return spareTimeout
	}
	return 0
}

func (e *Outlet) waited() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare--
}

// limitReached says whether the bytes of this session are used up.
func (e *Outlet) limitReached() bool {
	t := e.meter.Traffic()
	return e.b.config.Limits.Bytes > 0 && t.Up+t.Down > uint64(e.b.config.Limits.Bytes)
}

// allUsed is why something is refused when limitReached.
func (e *Outlet) allUsed() error {
	n, unit := e.b.config.Limits.Bytes, "bytes"
	if n%(1<<20) == 0 {
		n, unit = n>>20, "MB"
	}
	return refused{fmt.Sprintf("this session has used all %d %s of network that it may use", n, unit), MoreBytes}
}

// begin counts a connection until end, and returns the policy to judge it by; the error,
// busy or refused, says why it is not made.
func (e *Outlet) begin() (*Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.connectRate.Allow(): // first: refused connections count too
		return nil, busy(fmt.Sprintf("this session opens more than %d connections a second", e.b.config.Limits.Rate))
	case e.limitReached():
		return nil, e.allUsed()
	case e.connects >= e.b.config.Limits.Connections:
		return nil, busy(fmt.Sprintf("this session has %d connections open, which is the limit", e.connects))
	}
	e.connects++
	return e.policy, nil
}

func (e *Outlet) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connects--
}

// beginLookup is begin for a look-up, which is not counted.
func (e *Outlet) beginLookup() (*Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.lookupRate.Allow():
		return nil, busy(fmt.Sprintf("this session looks up more than %d names a second", e.b.config.Limits.Rate))
	case e.limitReached():
		return nil, e.allUsed()
	}
	return e.policy, nil
}

// penalty is how long a conn waits that was told that it asks for too much: all of them
// together are not told so more often than they may ask.
func (e *Outlet) penalty() time.Duration {
	return max(busyPause, wait(e.busyRate))
}

// admit gives l its connection out, if the present policy still allows it.
func (e *Outlet) admit(l *conn, t Target, out net.Conn) error {
	own := e.b.config.Own()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.why != "" {
		return errCut
	}
	if err := e.policy.refuse(t, own); err != nil {
		return err
	}
	l.target, l.out = t, out
	return nil
}

// failed notes a request that failed.
func (e *Outlet) failed(host string, port uint16, f failure) {
	host = printable(host)
	outcome := verdict(f.code)
	args := []any{"host", host, "port", port, "verdict", outcome, "reason", f.why.Error()}
	if f.detail != nil {
		args = append(args, "error", f.detail)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.code == wire.NetRefused {
		e.refusals.add(host, port, f.why)
	}
	e.log.failure(egressEvent(host, port, outcome), args...)
}

// finished notes the end of a connection that was made.
func (e *Outlet) finished(l *conn, f *flow) {
	e.mu.Lock()
	verdict, other := l.verdict(), l.otherName
	e.mu.Unlock()
	moved, took := f.traffic.Traffic(), time.Since(f.begun)
	args := []any{"host", l.target.Host(), "port", l.target.Port, "address", address(l.target.Addr), "up", moved.Up,
		"down", moved.Down, "duration", took.Round(time.Millisecond), "verdict", verdict}
	if other != "" {
		args = append(args, "server_name", other)
	}
	e.log.log.Info("network: connection", args...)
	done := egressEvent(l.target.Host(), l.target.Port, verdict)
	done.Duration = took
	e.log.publish(done)
}

// egressEvent is the event of a request for that host. Port 0 is a look-up.
func egressEvent(host string, port uint16, verdict string) event.Event {
	e := event.Event{Kind: event.Egress, Operation: event.NetworkConnect, Name: host, Outcome: verdict}
	switch {
	case port != 0:
		e.Name = net.JoinHostPort(host, strconv.Itoa(int(port)))
	case host != "":
		e.Operation = event.NetworkLookup
	}
	return e
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
