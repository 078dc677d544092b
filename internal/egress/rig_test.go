package egress

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, "sandlot/internal/egress.") }

// rig is a broker whose whole network is made of loopback servers: what is not
// in it cannot be reached, and nothing else is ever dialed.
type rig struct {
	t      testing.TB
	b      *Broker
	outlet *Outlet
	log    safeBuffer

	mu       sync.Mutex
	names    map[string][]netip.Addr
	places   map[string]string // address and port, or a proxy's name: where it really is
	resolved []string
	dialed   []string
}

func newRig(t testing.TB, p *Policy, change ...func(*Config)) *rig {
	r := &rig{t: t, names: map[string][]netip.Addr{}, places: map[string]string{}}
	c := Config{
		Log: slog.New(slog.NewTextHandler(&r.log, nil)), Resolve: r.resolve, Dial: r.dial,
		Proxy: noProxy, OwnAddresses: func() []netip.Prefix { return ownForTest },
		Limits: Limits{Rate: 1e6, Burst: 1e6},
	}
	for _, f := range change {
		f(&c)
	}
	r.b = New(c)
	r.outlet = r.b.Outlet(Owner{"user:ann", "s1", "box1"}, p, new(Meter))
	t.Cleanup(r.outlet.Close)
	return r
}

func (r *rig) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resolved = append(r.resolved, name)
	a, ok := r.names[name]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return a, nil
}

func (r *rig) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	r.dialed = append(r.dialed, addr)
	place, ok := r.places[addr]
	r.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", place)
}

// name makes a name that resolves so, from now on.
func (r *rig) name(name string, addrs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name] = nil
	for _, a := range addrs {
		r.names[name] = append(r.names[name], addr(a))
	}
}

func (r *rig) asked() (resolved, dialed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.resolved...), append([]string(nil), r.dialed...)
}

// serve starts a server on loopback that is reached at addr.
func (r *rig) serve(addr string, handle func(*net.TCPConn)) {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.places[addr] = l.Addr().String()
	r.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			})
		}
	})
	r.t.Cleanup(func() { l.Close(); r.outlet.Close(); wg.Wait() })
}

func echo(c *net.TCPConn) { io.Copy(c, c) }

// client is the agent's end of a connection.
type client struct {
	t testing.TB
	*net.UnixConn
	done chan struct{} // closed when Serve returned
}

func (r *rig) client() *client {
	r.t.Helper()
	here, there := socketpair(r.t)
	c := &client{r.t, here, make(chan struct{})}
	go func() {
		defer close(c.done)
		r.outlet.Serve(context.Background(), there)
	}()
	r.t.Cleanup(func() { here.Close(); <-c.done })
	return c
}

func socketpair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = c.(*net.UnixConn)
	}
	return out[0], out[1]
}

func (c *client) ask(r wire.NetRequest) wire.NetReply {
	c.t.Helper()
	reply, err := c.try(r)
	if err != nil {
		c.t.Fatalf("no reply: %v", err)
	}
	return reply
}

func (c *client) try(r wire.NetRequest) (wire.NetReply, error) {
	if err := wire.WriteNetRequest(c, r); err != nil {
		return wire.NetReply{}, err
	}
	return c.reply()
}

func (c *client) reply() (wire.NetReply, error) {
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	defer c.SetReadDeadline(time.Time{})
	return wire.ReadNetReply(c)
}

func toName(name string, port uint32) wire.NetRequest {
	return wire.NetRequest{Kind: wire.NetConnect, Name: name, Port: port}
}

func toAddr(a string, port uint32) wire.NetRequest {
	return wire.NetRequest{Kind: wire.NetConnect, Address: addr(a).AsSlice(), Port: port}
}

func lookup(name string) wire.NetRequest {
	return wire.NetRequest{Kind: wire.NetLookup, Name: name}
}

// want asks and checks the code of the reply.
func (c *client) want(code wire.NetCode, r wire.NetRequest) string {
	c.t.Helper()
	reply := c.ask(r)
	if reply.Code != code {
		c.t.Fatalf("%v: %v %q, want %v", r, reply.Code, reply.Message, code)
	}
	return reply.Message
}

// connected returns a client that is connected to there.
func (r *rig) connected(to wire.NetRequest) *client {
	r.t.Helper()
	c := r.client()
	c.want(wire.NetOK, to)
	return c
}

// roundTrip sends and expects the same back.
func (c *client) roundTrip(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	defer c.SetReadDeadline(time.Time{})
	b := make([]byte, len(s))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != s {
		c.t.Fatalf("%q, %v; want %q", b, err, s)
	}
}

// ended checks that the connection ends soon, and returns what came before.
func (c *client) ended() string {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		c.t.Fatal("the connection does not end")
	}
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		c.t.Fatal("Serve does not return")
	}
	return string(b)
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for range 1000 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it never came to: " + what)
}

func noProxy(string, uint16) (*url.URL, error) { return nil, nil }
