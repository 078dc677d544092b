package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"sandlot/internal/agent/wire"
	"sandlot/internal/event"
)

const (
	// maxWaiting is how many connections from an agent may wait for a request without a
	// timeout. Further ones wait at most extraWaitTimeout, as the agent may have made one for a
	// request that it is about to send. At most Limits.Connections+extraConns connections
	// from one agent are served at all.
	maxWaiting       = 16
	extraWaitTimeout = time.Second
	extraConns       = 256
)

// Owner says whose sandbox it is, for the log and for events.
type Owner struct{ Principal, Session, Sandbox string }

// Outlet is one sandbox's access to the network.
type Outlet struct {
	b     *Broker
	owner Owner
	count counters
	meter *Meter

	terminated atomic.Int64   // connections whose TLS is ended now
	wg         sync.WaitGroup // counts conns

	mu          sync.Mutex
	closed      bool
	policy      *Policy
	conns       map[*conn]bool
	waiting     int // conns that wait for a request
	connecting  int // conns that are connecting or connected to a target
	refusals    refusals
	lastRefused time.Time // when something was refused last
	log         limitedLog

	connectRate,
	lookupRate,
	connRate, // of connections from the agent
	busyRate *rate.Limiter // of replies with the code wire.NetBusy
}

// Outlet returns an outlet for one sandbox. The meter counts its bytes. The caller closes it.
func (b *Broker) Outlet(owner Owner, policy *Policy, meter *Meter) *Outlet {
	per := func(times int) *rate.Limiter {
		return rate.NewLimiter(rate.Limit(times*b.config.Limits.Rate), times*b.config.Limits.Burst)
	}
	e := &Outlet{
		b: b, owner: owner, policy: policy, meter: meter, conns: map[*conn]bool{},
		connectRate: per(1), lookupRate: per(1), busyRate: per(1),
		// An agent needs one for each connection to the network, and makes a spare one
		// with each look-up.
		connRate: per(2),
	}
	e.log = limitedLog{
		log:    b.config.Log.With("principal", owner.Principal, "session", owner.Session, "sandbox", owner.Sandbox),
		events: b.config.Events, owner: owner,
		mu: &e.mu, limiter: rate.NewLimiter(logRate, logRate),
	}
	return e
}

// Pace waits until the rate limit allows one more connection from the agent, or ctx ends.
// So an agent that makes connections as fast as it can, and sends no requests, which have
// limits of their own, does not cost the server more than requests would.
func (e *Outlet) Pace(ctx context.Context) {
	sleep(ctx, reserveDelay(e.connRate))
}

func sleep(ctx context.Context, d time.Duration) {
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

// Serve handles the requests on a connection from the agent until the connection ends, ctx
// ends or the outlet closes. It closes the connection.
func (e *Outlet) Serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &conn{outlet: e, in: c, cancel: cancel}
	if !e.addConn(l) {
		e.countBoth(func(c *counters) { c.busy.Add(1) })
		why := busyError("this sandbox has more connections to the server than it may have")
		e.recordFailure("", 0, failure{wire.NetBusy, why, nil}, wire.Who{})
		return
	}
	defer e.removeConn(l)
	defer context.AfterFunc(ctx, func() { l.cut("closed") })()
	l.serve(ctx)
}

func (e *Outlet) addConn(l *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.conns) >= e.b.config.Limits.Connections+extraConns {
		return false
	}
	e.conns[l] = true
	e.wg.Add(1)
	return true
}

func (e *Outlet) removeConn(l *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, l)
	e.wg.Done()
}

// SetPolicy applies p from now on, and closes connections that p does not allow. The caller
// does not change p after that. A nil p allows nothing.
func (e *Outlet) SetPolicy(p *Policy) {
	own := e.b.config.OwnAddresses()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.policy = p
	for l := range e.conns {
		if l.out == nil {
			continue // admit checks it when it is connected
		}
		err := e.recheck(p, l, l.target, own)
		if err == nil && l.otherName != "" && p.Mode == Allowlist {
			err = wrongServer(l.target.Name)
		}
		if err != nil {
			e.refusals.add(e.owner, l.target.Host(), l.target.Port, err, wire.Who{})
			l.cutLocked("policy")
		}
	}
}

// recheck checks the target of a conn that was allowed before. The caller holds e.mu.
func (e *Outlet) recheck(p *Policy, l *conn, t Target, own []netip.Prefix) error {
	if r := e.b.ruling(e.owner, t, Connected); p.enabled() && r.Verdict == Denied {
		return denied(r)
	}
	if l.granted && p.enabled() {
		p = p.granting(t)
	}
	return p.check(t, own)
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

// Usage returns what this sandbox did with the network.
func (e *Outlet) Usage() Usage { return e.count.usage() }

// countBoth applies f to the counters of this sandbox and to the ones of all sandboxes together.
func (e *Outlet) countBoth(f func(*counters)) {
	f(&e.count)
	f(&e.b.totals)
}

// beginWait counts a conn that begins to wait for a request, and returns how long it may wait;
// 0: for ever. The conn calls waited when it has waited.
func (e *Outlet) beginWait() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting++
	if e.waiting > maxWaiting {
		return extraWaitTimeout
	}
	return 0
}

func (e *Outlet) endWait() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting--
}

// byteLimit returns a refusal if the bytes of this session, or of its principal for this day, are used up.
func (e *Outlet) byteLimit() error {
	n, unit := e.b.config.Limits.Bytes, "bytes"
	if t := e.meter.Traffic(); n == 0 || t.Up+t.Down <= uint64(n) {
		return e.meter.day.refusal()
	}
	if n%(1<<20) == 0 {
		n, unit = n>>20, "MB"
	}
	return refusalError{cause: BytesUsedUp, why: fmt.Sprintf("this session has used all %d %s of network that it may use",
		n, unit)}
}

// beginConnect counts a connection to the network, which the caller ends with end, and returns the
// policy to check it against. If a limit does not allow the connection, it returns a
// busyError or a refusalError.
func (e *Outlet) beginConnect() (*Policy, error) {
	used := e.byteLimit()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.connectRate.Allow(): // before the other checks, so that refused connections count too
		return nil, busyError(fmt.Sprintf("this session opens more than %d connections a second",
			e.b.config.Limits.Rate))
	case used != nil:
		return nil, used
	case e.connecting >= e.b.config.Limits.Connections:
		return nil, busyError(fmt.Sprintf("this session has %d connections open, which is the limit", e.connecting))
	}
	e.connecting++
	return e.policy, nil
}

func (e *Outlet) endConnect() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connecting--
}

// beginLookup is the same for a look-up of a name. Nothing has to be called at its end.
func (e *Outlet) beginLookup() (*Policy, error) {
	used := e.byteLimit()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.lookupRate.Allow():
		return nil, busyError(fmt.Sprintf("this session looks up more than %d names a second", e.b.config.Limits.Rate))
	case used != nil:
		return nil, used
	}
	return e.policy, nil
}

// busyDelay returns how long a conn pauses after a reply with the code wire.NetBusy, so that
// these replies of all conns together keep to busyRate.
func (e *Outlet) busyDelay() time.Duration {
	return max(busyPause, reserveDelay(e.busyRate))
}

// attach sets l's connection to the network, if the policy of this moment allows t: it may
// have changed while the connection was made.
func (e *Outlet) attach(l *conn, t Target, out net.Conn) error {
	own := e.b.config.OwnAddresses()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.endReason != "" {
		return errCut
	}
	if err := e.recheck(e.policy, l, t, own); err != nil {
		return err
	}
	l.target, l.out = t, out
	return nil
}

// recordFailure logs a request of a program that failed, and records it if it was refused.
func (e *Outlet) recordFailure(host string, port uint16, f failure, who wire.Who) {
	host = printable(host)
	outcome, program := verdict(f.code), programOf(who)
	args := []any{"host", host, "port", port, "verdict", outcome, "reason", f.why.Error()}
	if f.detail != nil {
		args = append(args, "error", f.detail)
	}
	failed := egressEvent(host, port, outcome)
	if f.code == wire.NetRefused {
		var why refusalError
		errors.As(f.why, &why)
		failed.Refused = event.Refused{Cause: string(why.cause), Rule: why.rule, Question: why.question,
			Program: program.Name, PID: program.PID}
	}
	if program.PID != 0 {
		args = append(args, "program", program.Name, "pid", program.PID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.code == wire.NetRefused {
		e.refusals.add(e.owner, host, port, f.why, who)
		e.lastRefused = time.Now()
	}
	e.log.logFailure(failed, args...)
}

// recordConnection logs the end of a connection to the network.
func (e *Outlet) recordConnection(l *conn, f *flow) {
	e.mu.Lock()
	verdict, other := l.verdict(), l.otherName
	e.mu.Unlock()
	moved, took := f.traffic.Traffic(), time.Since(f.began)
	args := []any{"host", l.target.Host(), "port", l.target.Port, "address", addressText(l.target.Addr), "up", moved.Up,
		"down", moved.Down, "duration", took.Round(time.Millisecond), "verdict", verdict}
	if other != "" {
		args = append(args, "server_name", other)
	}
	e.log.log.Info("network: connection", args...)
	done := egressEvent(l.target.Host(), l.target.Port, verdict)
	done.Duration = took
	e.log.publish(done)
}

// egressEvent returns the event for a request. Port 0 means that host was looked up; without
// a host and port, the request was broken.
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

func addressText(a netip.Addr) string {
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
	case wire.NetInvalid:
		return "broken"
	}
	return "unreachable"
}
