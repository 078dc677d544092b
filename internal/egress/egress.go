// Package egress is the broker: the host's side of a sandbox's only access to the network.
// It decides what a sandbox may reach, and nothing else dials for a sandbox.
//
// A sandbox's agent makes connections to the broker, which wire.Admit authenticates. The
// broker trusts nothing that the agent sends on them: it resolves names itself, dials
// exactly the address that it checked against the policy, and knows from the connection
// which sandbox sends a request. Every message has a bounded size and every wait a timeout,
// except that a few connections may wait for a request for any time. A target that no rule
// and no mode allows is refused.
package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/event"
)

// Config configures a Broker. With the zero value it uses the resolver, the network and the
// proxy environment of the server's machine.
type Config struct {
	Log *slog.Logger
	// Events receives an event for each connection, and for each failure that is logged.
	Events *event.Stream
	// Resolve returns the addresses of a name, or a *net.DNSError.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to an address, or to the operator's proxy by its name.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy returns the proxy for a host and port, or nil if there is none. When it returns
	// an error, no connection is made: a connection never bypasses a proxy.
	Proxy func(host string, port uint16) (*url.URL, error)
	// OwnAddresses returns the machine's addresses, each with the prefix of its network. As
	// long as it returns none, every connection is refused.
	OwnAddresses func() []netip.Prefix
	// Terminator ends TLS for connections to some hosts; nil: to none.
	Terminator Terminator
	// Reach returns what the operator's rules say about a host, which has a port except in the
	// phase Lookup. It is called with locks held, and does not wait. Nil: there are no rules.
	Reach func(o Owner, host string, phase Phase) Ruling
	// Asker asks a person about hosts that are not allowed; nil: nobody is asked.
	Asker  Asker
	Limits Limits
}

// Limits bound one sandbox; Bytes bounds a session. Zero means the default.
type Limits struct {
	Connections int           // open at once; default 256
	Rate        int           // new connections per second, and look-ups per second; default 200
	Burst       int           // burst of each of the two rates; default 400
	Bytes       int64         // of a Meter, both directions together; 0: no limit
	Idle        time.Duration // a connection without traffic for that long is closed; default 10 minutes
	Dial        time.Duration // timeout to connect; default 15 seconds
}

func (l *Limits) setDefaults() {
	l.Connections = cmp.Or(max(l.Connections, 0), 256)
	l.Rate = cmp.Or(max(l.Rate, 0), 200)
	l.Burst = cmp.Or(max(l.Burst, 0), 2*l.Rate)
	l.Idle = cmp.Or(max(l.Idle, 0), 10*time.Minute)
	l.Dial = cmp.Or(max(l.Dial, 0), 15*time.Second)
}

// Broker makes an Outlet for each sandbox, and has what these share.
type Broker struct {
	config Config // with its defaults filled in
	names  *resolver
	totals counters
}

// maxWindow bounds the TCP receive window, in bytes, and so the data that the kernel buffers
// when the program in the sandbox does not read. It is enough for 20 MB/s from a server with
// a round-trip time of 50 ms.
const maxWindow = 1 << 20

func limitReceiveWindow(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		limitWindow(fd)
	})
}

// New returns a broker.
func New(c Config) *Broker {
	c.Limits.setDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: c.Limits.Dial, Control: limitReceiveWindow}).DialContext
	}
	if c.Proxy == nil {
		c.Proxy = environmentProxy()
	}
	if c.OwnAddresses == nil {
		c.OwnAddresses = interfaceAddresses
	}
	c.OwnAddresses = cacheAddresses(c.OwnAddresses)
	return &Broker{config: c, names: &resolver{lookupIP: c.Resolve, names: map[string]*entry{}}}
}

// MaxBytes is how much a session may transfer, both directions together; 0: no limit.
func (b *Broker) MaxBytes() int64 { return b.config.Limits.Bytes }

// Totals returns the usage of all sandboxes since the server's start.
func (b *Broker) Totals() Usage { return b.totals.usage() }

// dialAllowed connects to t. The caller has checked t with checkName; reach resolves the name and
// checks the addresses. It returns the target with the address that it dialed.
//
// Where the operator's environment has a proxy, the proxy gets a name as it is if the
// operator's rules list that name: often only the proxy can resolve it. Any other name is
// resolved here, and the proxy gets the address that was checked: a name could lead to
// anything that the proxy can reach. So a server that cannot resolve names itself reaches
// listed names only.
func (b *Broker) dialAllowed(ctx context.Context, p *Policy, t Target) (net.Conn, Target, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Limits.Dial)
	defer cancel()
	proxy, err := b.config.Proxy(t.Host(), t.Port)
	if err != nil {
		return nil, t, err
	}
	if proxy != nil && t.Name != "" && p.listed(t) {
		c, err := dialThrough(ctx, b.config.Dial, proxy, hostPort(t.Name, t.Port))
		return c, t, err
	}
	addrs, err := b.allowedAddresses(ctx, p, t)
	if err != nil {
		return nil, t, err
	}
	c, a, err := dialAny(ctx, addrs, func(ctx context.Context, a netip.Addr) (net.Conn, error) {
		addr := hostPort(a.String(), t.Port)
		if proxy != nil {
			return dialThrough(ctx, b.config.Dial, proxy, addr)
		}
		return b.config.Dial(ctx, "tcp", addr)
	})
	t.Addr = a
	return c, t, err
}

// Dial connects to host:port for a user who may reach what p allows. The server uses it for
// what it does on the user's behalf, such as connecting to an MCP server that the user
// added; without an owner, the operator's rules do not apply. If p does not allow the host, the error is a Forbidden.
func (b *Broker) Dial(ctx context.Context, o Owner, p *Policy, host string, port uint16) (net.Conn, error) {
	t := Target{Name: strings.ToLower(strings.TrimSuffix(host, ".")), Port: port}
	if a, err := netip.ParseAddr(host); err == nil {
		t = Target{Addr: a.Unmap(), Port: port}
	}
	var err error
	if o.Principal != "" {
		p, _, err = b.decide(o, p, t, Connecting)
	}
	if err == nil {
		err = p.checkName(t)
	}
	if err == nil && t.Name == "" {
		err = p.checkAddress(t, b.config.OwnAddresses())
	}
	var c net.Conn
	if err == nil {
		c, t, err = b.dialAllowed(ctx, p, t)
	}
	if refusal, ok := errors.AsType[refusalError](err); ok {
		return nil, Forbidden{printable(t.Host()), port, refusal.why, refusal.cause.remedy()}
	}
	return c, err
}

// Forbidden is the error for a host that the policy does not allow.
type Forbidden struct {
	Host string
	Port uint16
	Why  string

	remedy Remedy
}

// Error implements error.
func (f Forbidden) Error() string {
	advice := ""
	switch f.remedy {
	case AddRule:
		advice = ". The operator of this server can allow it: network.allow in sandlot.yaml"
	case AddException:
		advice = ". Only the operator of this server can allow it, with name and range: network.allow_private in " +
			"sandlot.yaml"
	case ChangeMode:
		advice = ". The operator of this server can give you a network: network.mode in sandlot.yaml"
	}
	return fmt.Sprintf("%s may not be reached: %s%s", hostPort(f.Host, f.Port), f.Why, advice)
}

// allowedAddresses resolves t and returns those of its addresses that p allows, or the reason why
// the first one is refused.
func (b *Broker) allowedAddresses(ctx context.Context, p *Policy, t Target) ([]netip.Addr, error) {
	all := []netip.Addr{t.Addr}
	if t.Name != "" {
		var err error
		if all, err = b.names.lookup(ctx, t.Name); err != nil {
			return nil, err
		}
	}
	own := b.config.OwnAddresses()
	var allowed []netip.Addr
	var firstErr error
	for _, a := range all {
		t.Addr = a
		if err := p.check(t, own); err == nil {
			allowed = append(allowed, a)
		} else if firstErr == nil {
			firstErr = err
		}
	}
	if len(allowed) == 0 {
		return nil, firstErr
	}
	return allowed[:min(len(allowed), maxAddresses)], nil
}

// checkExists returns an error if a name, which p allows, does not exist.
func (b *Broker) checkExists(ctx context.Context, p *Policy, name string) error {
	// A name that the proxy resolves need not exist for this machine's resolver. A look-up
	// has no port, so the proxy for 443 is used.
	if proxy, err := b.config.Proxy(name, 443); err == nil && proxy != nil && p.listed(Target{Name: name}) {
		return nil
	}
	_, err := b.names.lookup(ctx, name)
	return err
}
