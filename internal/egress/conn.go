package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sandlot/internal/agent/wire"
)

const (
	// A request that has begun is whole, and an answer taken, within that time.
	messageTimeout = 10 * time.Second
	// busyPause is what a connection waits at least after it was told that it
	// asks for too much: the answer comes at once, the next one does not.
	busyPause = 20 * time.Millisecond
)

// conn is one connection from the agent: requests, and then perhaps the bytes
// of one connection to the network.
type conn struct {
	outlet *Outlet
	in     net.Conn
	cancel context.CancelFunc

	// Guarded by outlet.mu.
	why       string // it was ended
	target    Target
	out       net.Conn
	otherName string // TLS asked for that server, not for target.Name
}

// cut ends both sides, and what is being dialed. The first reason counts.
func (l *conn) cut(why string) {
	l.outlet.mu.Lock()
	defer l.outlet.mu.Unlock()
	l.cutLocked(why)
}

func (l *conn) cutLocked(why string) {
	if l.why == "" {
		l.why = why
	}
	l.cancel()
	l.in.Close()
	if l.out != nil {
		l.out.Close()
	}
}

func (l *conn) verdict() string {
	if l.why == "" {
		return "ok"
	}
	return l.why
}

func (l *conn) serve(ctx context.Context) {
	for {
		r, err := l.request()
		if errors.Is(err, wire.ErrMessage) {
			l.broken("this is no request")
			return
		}
		if err != nil || !l.answer(ctx, r) {
			return
		}
	}
}

// request waits for a request, which has little time once it has begun.
func (l *conn) request() (wire.NetRequest, error) {
	var first [1]byte
	if err := l.wait(first[:]); err != nil {
		return wire.NetRequest{}, err
	}
	l.in.SetReadDeadline(time.Now().Add(messageTimeout))
	defer l.in.SetReadDeadline(time.Time{})
	return wire.ReadNetRequest(io.MultiReader(bytes.NewReader(first[:]), l.in))
}

func (l *conn) wait(b []byte) error {
	patience := l.outlet.wait()
	defer l.outlet.waited()
	if patience > 0 {
		l.in.SetReadDeadline(time.Now().Add(patience))
	}
	_, err := io.ReadFull(l.in, b)
	return err
}

// answer does what r asks, and says whether another request may follow.
func (l *conn) answer(ctx context.Context, r wire.NetRequest) bool {
	switch r.Kind {
	case wire.NetLookup:
		return l.lookup(ctx, r.Name)
	case wire.NetConnect:
		return l.connect(ctx, r)
	}
	return l.broken("this is no request")
}

func (l *conn) reply(code wire.NetCode, message string) bool {
	l.in.SetWriteDeadline(time.Now().Add(messageTimeout))
	defer l.in.SetWriteDeadline(time.Time{})
	return wire.WriteNetReply(l.in, wire.NetReply{Code: code, Message: message}) == nil
}

func (l *conn) broken(message string) bool {
	l.outlet.both(func(c *counters) { c.broken.Add(1) })
	l.outlet.failed("", 0, wire.NetBroken, refused{why: message}, nil)
	l.reply(wire.NetBroken, message)
	return false
}

// fail answers a request that came to nothing. detail is for the log alone.
func (l *conn) fail(ctx context.Context, host string, port uint16, err error) bool {
	code, message, detail := explain(err)
	l.outlet.both(func(c *counters) {
		switch code {
		case wire.NetRefused:
			c.refused.Add(1)
		case wire.NetBusy:
			c.busy.Add(1)
		default:
			c.unreachable.Add(1)
		}
	})
	if code != wire.NetNoName || port != 0 { // a look-up of what is no name is no connection
		why := refused{why: message}
		errors.As(err, &why) // with its remedy
		l.outlet.failed(host, port, code, why, detail)
	}
	if code == wire.NetRefused {
		message = fmt.Sprintf("%s was refused: %s", printable(host), message)
	}
	if !l.reply(code, message) {
		return false
	}
	if code == wire.NetBusy {
		pause(ctx, l.outlet.penalty())
	}
	return true
}

// busy is the error for a limit that was reached: which, for people.
type busy string

func (b busy) Error() string { return string(b) }

// explain says what the sandbox may know of an error.
func explain(err error) (code wire.NetCode, message string, detail error) {
	var (
		r     refused
		b     busy
		p     proxyError
		slow  net.Error
		never *net.DNSError
	)
	switch {
	case errors.As(err, &r):
		return wire.NetRefused, r.why, nil
	case errors.As(err, &b):
		return wire.NetBusy, string(b), nil
	case errors.Is(err, errNoName):
		return wire.NetNoName, "there is no such name", nil
	case errors.As(err, &p):
		return wire.NetUnreachable, p.Error(), nil
	case errors.As(err, &never):
		return wire.NetUnreachable, "the name cannot be looked up now", err
	case errors.Is(err, syscall.ECONNREFUSED):
		return wire.NetUnreachable, "it refused the connection", nil
	case errors.As(err, &slow) && slow.Timeout():
		return wire.NetUnreachable, "it did not answer in time", nil
	}
	return wire.NetUnreachable, "it could not be reached", err
}

func (l *conn) lookup(ctx context.Context, name string) bool {
	l.outlet.both(func(c *counters) { c.lookups.Add(1) })
	p, err := l.outlet.beginLookup()
	if err == nil {
		err = l.outlet.lookup(ctx, p, name)
	}
	if err != nil {
		return l.fail(ctx, name, 0, err)
	}
	return l.reply(wire.NetOK, "")
}

func (e *Outlet) lookup(ctx context.Context, p *Policy, name string) error {
	if !p.on() { // also for what is no name
		return p.refuseName(Target{})
	}
	host, addr, err := parseHost(name)
	if err != nil {
		return refused{why: err.Error()}
	}
	t := Target{Name: host, Addr: addr}
	if host == "" {
		if no := p.refuse(t, e.b.own()); no != (refused{}) {
			return no
		}
		return nil
	}
	if no := p.refuseName(t); no != (refused{}) {
		return no
	}
	return e.b.exists(ctx, p, host)
}

// target reads where a connection shall go. ok is false when that makes no
// sense; an error is why it is refused.
func target(r wire.NetRequest) (t Target, err error, ok bool) {
	name, raw := r.Name, r.Address
	if (name == "") == (len(raw) == 0) || r.Port == 0 || r.Port > 65535 {
		return t, nil, false
	}
	t.Port = uint16(r.Port)
	if name != "" {
		t.Name, t.Addr, err = parseHost(name)
		if err != nil {
			err = refused{why: err.Error()}
		}
		return t, err, true
	}
	t.Addr, ok = netip.AddrFromSlice(raw)
	t.Addr = t.Addr.Unmap()
	return t, nil, ok
}

func (l *conn) connect(ctx context.Context, r wire.NetRequest) bool {
	t, err, ok := target(r)
	if !ok {
		return l.broken("a connection goes to a name or an address, and to a port")
	}
	host := r.Name
	if host == "" {
		host = t.Addr.String()
	}
	p, full := l.outlet.begin()
	if full != nil {
		return l.fail(ctx, host, t.Port, full)
	}
	defer l.outlet.end()
	if err == nil || !p.on() {
		err = l.open(ctx, p, t)
	}
	if err != nil {
		return l.fail(ctx, host, t.Port, err)
	}
	l.carry()
	return false
}

// open connects the conn to t, if p and the policy of the moment when it is
// connected allow that.
func (l *conn) open(ctx context.Context, p *Policy, t Target) error {
	if no := p.refuseName(t); no != (refused{}) {
		return no
	}
	out, t, err := l.outlet.b.reach(ctx, p, t)
	if err != nil {
		return err
	}
	if err := l.outlet.admit(l, t, out); err != nil {
		out.Close()
		return err
	}
	return nil
}

// carry tells the sandbox that it is connected, and carries its bytes.
func (l *conn) carry() {
	defer l.out.Close()
	e := l.outlet
	e.both(func(c *counters) { c.connected.Add(1); c.open.Add(1) })
	defer e.both(func(c *counters) { c.open.Add(-1) })
	f := &flow{in: l.in, out: l.out, count: l.count, cut: l.cut, begun: time.Now()}
	if l.target.Name != "" {
		f.inspect = l.inspect
	}
	if l.reply(wire.NetOK, "") {
		f.carry(e.b.limits.Idle)
	}
	e.finished(l, f)
}

// count takes note of bytes that came, and ends everything when there were too
// many.
func (l *conn) count(n int, up bool) bool {
	l.outlet.both(func(c *counters) {
		if up {
			c.up.Add(uint64(n))
		} else {
			c.down.Add(uint64(n))
		}
	})
	l.outlet.meter.add(n, up)
	if l.outlet.limitReached() {
		l.outlet.exhaust()
		return false
	}
	return true
}

// exhaust ends all connections, as no more bytes may pass.
func (e *Outlet) exhaust() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.conns {
		if l.out != nil && l.why == "" {
			e.refusals.add(l.target.Host(), l.target.Port, e.allUsed())
			l.cutLocked("limit")
		}
	}
}

// inspect looks at the first bytes from the sandbox: if they begin TLS, the
// server that TLS asks for shall be the one that was connected to.
func (l *conn) inspect(first []byte) ([]byte, error) {
	o := &opening{Conn: l.in, seen: bytes.Clone(first)}
	l.in.SetReadDeadline(time.Now().Add(helloTimeout))
	defer l.in.SetReadDeadline(time.Time{})
	name, isTLS, err := o.serverName()
	if !isTLS {
		return o.seen, nil
	}
	no, host := refused{}, l.target.Name
	if err != nil {
		no.why = "what its TLS asks for cannot be read"
	} else if name != "" {
		if n, _, err := parseHost(name); err != nil || n != l.target.Name {
			no, host = differs(l.target.Name), printable(name)
		}
	}
	if no != (refused{}) && l.outlet.strict(l, host) {
		l.outlet.both(func(c *counters) { c.refused.Add(1) })
		l.outlet.failed(host, l.target.Port, wire.NetRefused, no, nil)
		l.cut("server name")
		return nil, errCut
	}
	return o.seen, nil
}

func differs(name string) refused {
	return refused{why: "TLS asked for this server on a connection to " + name}
}

// strict takes note of another name in TLS, and says whether policy forbids it.
func (e *Outlet) strict(l *conn, other string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.otherName = other
	return !e.policy.on() || e.policy.Mode == Allowlist
}
