// Package egress is the broker: the host's side of a sandbox's only access to the network.
// It decides what a sandbox may reach, and it alone dials for one.
//
// A sandbox speaks to it on connections that its agent made and that
// wire.Admit let in. Nothing that comes on them is believed: names are
// resolved here, the address that is dialed is the address that was judged,
// and the connection, not what is sent on it, says which sandbox asks. Every
// message is bounded, every wait but that of a few spare connections ends, and
// a target that no rule or mode allows is refused.
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

// Config is what a Broker is made of. Its zero value is the server's own
// resolver, network and environment.
type Config struct {
	Log *slog.Logger
	// Events are told of each connection, and of what failed as far as the log is.
	Events *event.Stream
	// Resolve returns the addresses of a name, or a *net.DNSError.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to an address, or to the operator's proxy by its name.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy returns the proxy that leads there, or nil. An error refuses the
	// connection: it is never made past a proxy.
	Proxy func(host string, port uint16) (*url.URL, error)
	// Own returns the machine's addresses, each with the range that its network
	// says is beside it. As long as it returns none, nothing is reached.
	Own    func() []netip.Prefix
	Limits Limits
}

// Limits are of one sandbox; Bytes are of a session. Zero is the default.
type Limits struct {
	Connections int           // at once; 256
	Rate        int           // new connections a second, and look-ups; 200
	Burst       int           // the same at once; 400
	Bytes       int64         // of a Meter, both ways together; 0 is no limit
	Idle        time.Duration // of a connection on which nothing moves; 10 minutes
	Dial        time.Duration // to connect; 15 seconds
}

func (l *Limits) fill() {
	l.Connections = cmp.Or(max(l.Connections, 0), 256)
	l.Rate = cmp.Or(max(l.Rate, 0), 200)
	l.Burst = cmp.Or(max(l.Burst, 0), 2*l.Rate)
	l.Idle = cmp.Or(max(l.Idle, 0), 10*time.Minute)
	l.Dial = cmp.Or(max(l.Dial, 0), 15*time.Second)
}

// Broker makes Outlets, and holds what they share.
type Broker struct {
	config Config // with its defaults filled in
	names  *resolver
	totals counters
}

// maxWindow bounds what the kernel holds of one connection that nobody in the
// sandbox reads, in bytes: enough for 20 MB/s from a server that is 50 ms away.
const maxWindow = 1 << 20

func clamp(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP, maxWindow)
	})
}

// New returns a broker.
func New(c Config) *Broker {
	c.Limits.fill()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: c.Limits.Dial, Control: clamp}).DialContext
	}
	if c.Proxy == nil {
		c.Proxy = environmentProxy()
	}
	if c.Own == nil {
		c.Own = interfaceAddresses
	}
	c.Own = cacheAddresses(c.Own)
	return &Broker{config: c, names: &resolver{ask: c.Resolve, names: map[string]*answer{}}}
}

// MaxBytes is how much a session may move, both ways together; 0 is no limit.
func (b *Broker) MaxBytes() int64 { return b.config.Limits.Bytes }

// Totals counts what all sandboxes did since the server's start.
func (b *Broker) Totals() Usage { return b.totals.usage() }

// reach connects to t, whose name or address p allows, as far as that is known
// before its name is resolved. It returns the target with the address that it dialed.
//
// Where the operator's environment names a proxy, a name that the operator
// listed is given to it as it is: often nobody but the proxy can resolve it.
// Any other name is resolved here, and the proxy gets the address that was
// judged: else a name could lead to whatever the proxy reaches. A server that
// cannot resolve names itself thus reaches listed names only.
func (b *Broker) reach(ctx context.Context, p *Policy, t Target) (net.Conn, Target, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Limits.Dial)
	defer cancel()
	proxy, err := b.config.Proxy(t.Host(), t.Port)
	if err != nil {
		return nil, t, err
	}
	if proxy != nil && t.Name != "" && p.listed(t) {
		c, err := through(ctx, b.config.Dial, proxy, hostPort(t.Name, t.Port))
		return c, t, err
	}
	addrs, err := b.addresses(ctx, p, t)
	if err != nil {
		return nil, t, err
	}
	c, a, err := dialAny(ctx, addrs, func(ctx context.Context, a netip.Addr) (net.Conn, error) {
		addr := hostPort(a.String(), t.Port)
		if proxy != nil {
			return through(ctx, b.config.Dial, proxy, addr)
		}
		return b.config.Dial(ctx, "tcp", addr)
	})
	t.Addr = a
	return c, t, err
}

// Dial connects to host:port for a user who may reach what p allows. It is for what the
// server itself does in the user's name, such as speaking to an MCP server that the user
// named. A refusal is an error of type Forbidden.
func (b *Broker) Dial(ctx context.Context, p *Policy, host string, port uint16) (net.Conn, error) {
	t := Target{Name: strings.ToLower(strings.TrimSuffix(host, ".")), Port: port}
	if a, err := netip.ParseAddr(host); err == nil {
		t = Target{Addr: a.Unmap(), Port: port}
	}
	err := p.refuseName(t)
	if err == nil && t.Name == "" {
		err = p.refuseAddress(t, b.config.Own())
	}
	var c net.Conn
	if err == nil {
		c, t, err = b.reach(ctx, p, t)
	}
	if no, ok := errors.AsType[refused](err); ok {
		return nil, Forbidden{printable(t.Host()), port, no.why, no.remedy}
	}
	return c, err
}

// Forbidden is the error for what policy does not let a user reach.
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
	case ARule:
		advice = ". The operator of this server can allow it: network.allow in sandlot.yaml"
	case AnException:
		advice = ". The operator of this server alone can allow it, with name and range: network.allow_private in " +
			"sandlot.yaml"
	case AMode:
		advice = ". The operator of this server can give you a network: network.mode in sandlot.yaml"
	}
	return fmt.Sprintf("%s may not be reached: %s%s", hostPort(f.Host, f.Port), f.Why, advice)
}

// addresses returns those of t that p allows.
func (b *Broker) addresses(ctx context.Context, p *Policy, t Target) ([]netip.Addr, error) {
	all := []netip.Addr{t.Addr}
	if t.Name != "" {
		var err error
		if all, err = b.names.lookup(ctx, t.Name); err != nil {
			return nil, err
		}
	}
	own := b.config.Own()
	var allowed []netip.Addr
	var first error
	for _, a := range all {
		t.Addr = a
		if err := p.refuse(t, own); err == nil {
			allowed = append(allowed, a)
		} else if first == nil {
			first = err
		}
	}
	if len(allowed) == 0 {
		return nil, first
	}
	return allowed[:min(len(allowed), maxAddresses)], nil
}

// exists looks a name up that p allows.
func (b *Broker) exists(ctx context.Context, p *Policy, name string) error {
	// A name that the proxy resolves need not exist here. A look-up has no port: 443 finds
	// the proxy.
	if proxy, err := b.config.Proxy(name, 443); err == nil && proxy != nil && p.listed(Target{Name: name}) {
		return nil
	}
	_, err := b.names.lookup(ctx, name)
	return err
}
