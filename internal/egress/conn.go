package egress

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"sandlot/internal/agent/wire"
)

const (
	// messageTimeout is how long reading the rest of a request may take once its first byte
	// has arrived, and how long writing a reply may take.
	messageTimeout = 10 * time.Second
	// busyPause is the shortest pause after a reply with the code wire.NetBusy. The reply is
	// sent at once; only the next request of the conn is delayed.
	busyPause = 20 * time.Millisecond
	// whoTimeout is how long a refusal waits for the agent to say whose the request was.
	whoTimeout = 2 * time.Second
)

// conn is one connection from the agent. It carries requests and replies; after a request
// to connect, it carries the bytes of that connection to the network.
type conn struct {
	outlet *Outlet
	in     net.Conn // from the agent
	cancel context.CancelFunc

	// Guarded by outlet.mu.
	endReason string // why this server ended it; empty: it did not
	target    Target
	out       net.Conn // to the target; nil before it is connected
	granted   bool     // a person has agreed to the target
	otherName string   // the server name in TLS, if it is not target.Name

	serverName string // in TLS; empty: there is none. checkServerName sets it

	// Of the goroutine that reads requests.
	tellsWho bool     // the agent says whose the present request is, if it is refused
	refused  *refused // the request that was refused last, of which the agent says now whose it was; nil: of none
}

// cut closes both connections and cancels a dial. The reason of the first call stays.
func (l *conn) cut(why string) {
	l.outlet.mu.Lock()
	defer l.outlet.mu.Unlock()
	l.cutLocked(why)
}

// cutLocked is cut for a caller that holds outlet.mu.
func (l *conn) cutLocked(why string) {
	if l.endReason == "" {
		l.endReason = why
	}
	l.cancel()
	l.in.Close()
	if l.out != nil {
		l.out.Close()
	}
}

func (l *conn) verdict() string {
	if l.endReason == "" {
		return "ok"
	}
	return l.endReason
}

func (l *conn) serve(ctx context.Context) {
	defer l.recordRefused(wire.Who{})
	for {
		r, err := l.readRequest()
		if errors.Is(err, wire.ErrMessage) {
			l.replyBroken("this is not a request")
			return
		}
		if err != nil || !l.handle(ctx, r) {
			return
		}
	}
}

// readRequest waits for the first byte of a request, and then reads the rest within
// messageTimeout.
func (l *conn) readRequest() (wire.NetRequest, error) {
	var first [1]byte
	if err := l.readFirst(first[:]); err != nil {
		return wire.NetRequest{}, err
	}
	l.in.SetReadDeadline(time.Now().Add(messageTimeout))
	defer l.in.SetReadDeadline(time.Time{})
	return wire.ReadNetRequest(io.MultiReader(bytes.NewReader(first[:]), l.in))
}

// readFirst reads b, for as long as the outlet lets this conn wait. What the agent was asked about a refusal it has to
// say soon.
func (l *conn) readFirst(b []byte) error {
	limit := l.outlet.beginWait()
	defer l.outlet.endWait()
	if l.refused != nil {
		l.in.SetReadDeadline(time.Now().Add(whoTimeout))
		if _, err := io.ReadFull(l.in, b); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		l.in.SetReadDeadline(time.Time{})
		l.recordRefused(wire.Who{})
	}
	if limit > 0 {
		l.in.SetReadDeadline(time.Now().Add(limit))
	}
	_, err := io.ReadFull(l.in, b)
	return err
}

// handle handles a request, and reports whether the conn can take another one.
func (l *conn) handle(ctx context.Context, r wire.NetRequest) bool {
	if r.Kind == wire.NetWho && l.refused != nil {
		l.recordRefused(r.Who)
		return l.reply(wire.NetOK, "")
	}
	l.recordRefused(wire.Who{})
	l.tellsWho = r.TellsWho
	switch r.Kind {
	case wire.NetLookup:
		return l.lookup(ctx, r.Name)
	case wire.NetConnect:
		return l.connect(ctx, r)
	}
	return l.replyBroken("this is not a request")
}

// refused is a request that was refused, until it is known whose it was.
type refused struct {
	host string
	port uint16
	why  failure
}

// recordRefused records the request that was refused last, if the agent was asked whose it was.
func (l *conn) recordRefused(who wire.Who) {
	if r := l.refused; r != nil {
		l.refused = nil
		l.outlet.recordFailure(r.host, r.port, r.why, who)
	}
}

func (l *conn) reply(code wire.NetCode, message string) bool {
	return l.send(wire.NetReply{Code: code, Message: message})
}

func (l *conn) send(r wire.NetReply) bool {
	l.in.SetWriteDeadline(time.Now().Add(messageTimeout))
	defer l.in.SetWriteDeadline(time.Time{})
	return wire.WriteNetReply(l.in, r) == nil
}

// replyBroken replies to a request that cannot be read. The conn takes no other one.
func (l *conn) replyBroken(message string) bool {
	l.outlet.countBoth(func(c *counters) { c.broken.Add(1) })
	why := refusalError{why: message, cause: InvalidTarget}
	l.outlet.recordFailure("", 0, failure{wire.NetInvalid, why, nil}, wire.Who{})
	l.reply(wire.NetInvalid, message)
	return false
}

// replyError logs a request that failed, and replies to it. One that was refused is logged as soon as the agent has said
// whose it is, if it says so.
func (l *conn) replyError(ctx context.Context, host string, port uint16, err error) bool {
	f := failureOf(err)
	l.outlet.countBoth(func(c *counters) { c.forCode(f.code).Add(1) })
	reply := wire.NetReply{Code: f.code, Message: f.why.Error(), AsksWho: f.code == wire.NetRefused && l.tellsWho}
	switch {
	case reply.AsksWho:
		l.refused = &refused{host, port, f}
	case f.code != wire.NetNoName || port != 0: // that a name does not exist is no failure worth logging
		l.outlet.recordFailure(host, port, f, wire.Who{})
	}
	if f.code == wire.NetRefused {
		reply.Message = fmt.Sprintf("%s was refused: %s", printable(host), reply.Message)
	}
	if !l.send(reply) {
		return false
	}
	if f.code == wire.NetBusy {
		sleep(ctx, l.outlet.busyDelay())
	}
	return true
}

// busyError is the error for a limit that was reached. It says which one, for the user.
type busyError string

func (b busyError) Error() string { return string(b) }

// failure is why a request failed. The sandbox is told why; detail is only logged.
type failure struct {
	code   wire.NetCode
	why    error
	detail error
}

// failureOf turns an error into a failure: it decides what the sandbox may know of it.
func failureOf(err error) failure {
	var (
		r       refusalError
		b       busyError
		p       proxyError
		timeout net.Error
		dns     *net.DNSError
	)
	unreachable := func(why string, detail error) failure {
		return failure{wire.NetUnreachable, errors.New(why), detail}
	}
	switch {
	case errors.As(err, &r):
		return failure{wire.NetRefused, r, nil}
	case errors.As(err, &b):
		return failure{wire.NetBusy, b, nil}
	case errors.Is(err, errNoName):
		return failure{wire.NetNoName, errNoName, nil}
	case errors.As(err, &p):
		return failure{wire.NetUnreachable, p, nil}
	case errors.As(err, &dns):
		return unreachable("the name cannot be looked up now", err)
	case errors.Is(err, errConnRefused):
		return unreachable("it refused the connection", nil)
	case errors.As(err, &timeout) && timeout.Timeout():
		return unreachable("it did not answer in time", nil)
	}
	return unreachable("it could not be reached", err)
}

func (l *conn) lookup(ctx context.Context, name string) bool {
	l.outlet.countBoth(func(c *counters) { c.lookups.Add(1) })
	p, err := l.outlet.beginLookup()
	if err == nil {
		err = l.outlet.lookup(ctx, p, name)
	}
	if err != nil {
		return l.replyError(ctx, name, 0, err)
	}
	return l.reply(wire.NetOK, "")
}

func (e *Outlet) lookup(ctx context.Context, p *Policy, name string) error {
	if !p.enabled() { // checked first, so that an invalid name gets the same answer
		return p.checkName(Target{})
	}
	t, err := parseTarget(name, 0)
	if err != nil {
		return err
	}
	if t.Name == "" {
		return p.check(t, e.b.config.OwnAddresses())
	}
	p, v, err := e.b.decide(e.owner, p, t, Lookup)
	if v == Asked { // the name is not looked up, and the connection asks
		return nil
	}
	if err == nil {
		err = p.checkName(t)
	}
	if err != nil && e.holdsLookup(t, err) {
		return nil
	}
	if err != nil {
		return err
	}
	return e.b.checkExists(ctx, p, t.Name)
}

// parseTarget parses the host of a request. The error is a refusalError.
func parseTarget(host string, port uint16) (t Target, err error) {
	t.Port = port
	if t.Name, t.Addr, err = parseHost(host); err != nil {
		return t, refusalError{why: err.Error(), cause: InvalidTarget}
	}
	return t, nil
}

// parseConnect returns the target of a request to connect. ok is false when the request is
// broken; err is the refusal of an invalid name.
func parseConnect(r wire.NetRequest) (t Target, err error, ok bool) {
	if (r.Name == "") == (len(r.Address) == 0) || r.Port == 0 || r.Port > 65535 {
		return t, nil, false
	}
	port := uint16(r.Port)
	if r.Name != "" {
		t, err = parseTarget(r.Name, port)
		return t, err, true
	}
	a, ok := netip.AddrFromSlice(r.Address)
	return Target{Addr: a.Unmap(), Port: port}, nil, ok
}

func (l *conn) connect(ctx context.Context, r wire.NetRequest) bool {
	t, err, ok := parseConnect(r)
	if !ok {
		return l.replyBroken("a connection goes to a name or an address, and to a port")
	}
	host := cmp.Or(r.Name, t.Addr.String())
	p, limitErr := l.outlet.beginConnect()
	if limitErr != nil {
		return l.replyError(ctx, host, t.Port, limitErr)
	}
	defer l.outlet.endConnect()
	if err == nil || !p.enabled() {
		err = l.dial(ctx, p, t)
	}
	if err != nil {
		return l.replyError(ctx, host, t.Port, err)
	}
	l.relay()
	return false
}

// dial connects the conn to t, if p allows it, and the policy at the moment when it is
// connected, too.
func (l *conn) dial(ctx context.Context, p *Policy, t Target) error {
	p, v, err := l.outlet.b.decide(l.outlet.owner, p, t, Connecting)
	if err == nil {
		err = p.checkName(t)
	}
	if err != nil {
		p, v, err = l.hold(ctx, p, v, t, err)
	}
	if err != nil {
		return err
	}
	l.granted = v == Granted
	out, t, err := l.outlet.b.dialAllowed(ctx, p, t)
	if err != nil {
		return err
	}
	if err := l.outlet.attach(l, t, out); err != nil {
		out.Close()
		return err
	}
	return nil
}

// relay replies that the conn is connected, and copies bytes both ways until the connection
// ends.
func (l *conn) relay() {
	defer l.out.Close()
	e := l.outlet
	e.countBoth(func(c *counters) { c.connected.Add(1); c.open.Add(1) })
	defer e.countBoth(func(c *counters) { c.open.Add(-1) })
	f := &flow{in: l.in, out: l.out, count: l.countBytes, cut: l.cut, began: time.Now()}
	if l.terminates() {
		if l.reply(wire.NetOK, "") {
			l.terminate(f)
		}
		e.recordConnection(l, f)
		return
	}
	if l.target.Name != "" {
		f.inspect = l.checkServerName
	}
	if l.reply(wire.NetOK, "") {
		f.run(e.b.config.Limits.Idle)
	}
	e.recordConnection(l, f)
}

// countBytes counts bytes that were received. When the session, or its principal for this day, has reached the limit,
// it cuts all connections of the sandbox and returns false.
func (l *conn) countBytes(n int, up bool) bool {
	l.outlet.countBoth(func(c *counters) { c.moved.add(n, up) })
	l.outlet.meter.add(n, up)
	if why := l.outlet.byteLimit(); why != nil {
		l.outlet.cutAll(why)
		return false
	}
	return true
}

// cutAll cuts all connections to the network, as a limit of bytes is reached.
func (e *Outlet) cutAll(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.conns {
		if l.out != nil && l.endReason == "" {
			e.refusals.add(e.owner, l.target.Host(), l.target.Port, why, wire.Who{})
			l.cutLocked("limit")
		}
	}
}

// checkServerName checks the first bytes from the sandbox: if they are a TLS ClientHello, its server
// name must be the name of the target. It returns all bytes that it read.
func (l *conn) checkServerName(first []byte) ([]byte, error) {
	o := &helloReader{Conn: l.in, data: bytes.Clone(first)}
	l.in.SetReadDeadline(time.Now().Add(helloTimeout))
	defer l.in.SetReadDeadline(time.Time{})
	name, isTLS, err := o.serverName()
	if !isTLS {
		return o.data, nil
	}
	var refusal error
	host := l.target.Name
	if err != nil {
		refusal = refusalError{why: "its TLS request cannot be read", cause: OtherTLSName}
	} else if name != "" {
		l.serverName = name
		if n, _, err := parseHost(name); err != nil || n != l.target.Name {
			refusal, host = wrongServer(l.target.Name), printable(name)
		}
	}
	if refusal != nil && l.outlet.recordServerName(l, host) {
		l.outlet.countBoth(func(c *counters) { c.refused.Add(1) })
		l.outlet.recordFailure(host, l.target.Port, failure{wire.NetRefused, refusal, nil}, wire.Who{})
		l.cut("server name")
		return nil, errCut
	}
	return o.data, nil
}

// wrongServer is the refusal of a TLS server name other than name, the target's.
func wrongServer(name string) error {
	return refusalError{why: "TLS asked for this server on a connection to " + name, cause: OtherTLSName}
}

// recordServerName records that TLS asked for another server than the target, and reports whether the
// policy forbids that.
func (e *Outlet) recordServerName(l *conn, other string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.otherName = other
	return !e.policy.enabled() || e.policy.Mode == Allowlist
}
