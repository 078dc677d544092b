// Package network is the sandbox's only access to the network. It accepts each TCP connection
// and each DNS query of the programs in the sandbox, and passes it to the host, which applies
// the policy. The host trusts nothing that this package sends, and a program that removes the
// redirection reaches nothing: the sandbox has no network interface but loopback.
//
// After Redirect every IPv4 address is a local one, and a rule redirects TCP connections to
// this package, which learns the destination from the kernel. Each name that a program looks
// up gets an address that stands for it, so that the host gets the name. Where the kernel redirects
// nothing, programs use this package as a proxy.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"sandlot/internal/agent/wire"
)

// Ports on loopback. The kernel chooses the port for redirected connections.
const (
	// ProxyPort is the port of a proxy for HTTP and SOCKS5.
	ProxyPort = 3128
	dnsPort   = 53
)

// maxConns bounds how many connections of the sandbox this package serves at once. The host
// has its own bound.
const maxConns = 4096

// maxSearches bounds in a second for how many refused connections and look-ups the program is looked for.
const maxSearches = 100

// Network serves the programs of one sandbox.
type Network struct {
	config    Config
	host      *host
	names     *names
	connSlots *semaphore.Weighted // one for each connection that is served
	finding   sync.Mutex          // held while a socket's owner is looked for
	searches  *rate.Limiter       // of looking for it: a program may be refused any number of connections
	work      sync.WaitGroup
	listeners []io.Closer   // the listeners, closed by Wait
	port      atomic.Uint32 // where redirected connections arrive; 0 before Start
	access    atomic.Value  // an Access, after Redirect

	lastRefused atomic.Int64        // when a refused name was last looked up, in ns since 1970
	attempts    chan netip.AddrPort // connections to refused names that reportRefused is to report
	unreported  atomic.Int64        // refused connections that the host does not know of yet

	mu       sync.Mutex
	watchers map[netip.Addr]*watcher // by the address of a refused name
	closed   bool
}

// Config is what a Network needs.
type Config struct {
	// Dial makes a connection for requests to the host, after its greeting.
	Dial func(ctx context.Context) (net.Conn, error)
	// OnRefused is called when a name is refused, before the program that looked it up gets the answer.
	OnRefused func()
	// Who returns what is known of the program with a process id; 0: of one that is not found, such as one that has
	// closed its connection already. Nil: nothing is known. As calls a function with the rights of the programs' user.
	Who func(pid int) wire.Who
	As  func(func() error) error
}

// New returns a network that has not started.
func New(c Config) *Network {
	return &Network{config: c, host: &host{dial: c.Dial}, names: newNames(),
		connSlots: semaphore.NewWeighted(maxConns), searches: rate.NewLimiter(maxSearches, maxSearches),
		attempts: make(chan netip.AddrPort, refusedNames),
		watchers: map[netip.Addr]*watcher{}}
}

// Start starts to serve, until ctx ends; Wait waits for that. When the kernel does not allow
// the redirection, only the proxy works, and the error says why. No program starts before Start has returned, as
// Environment is not known earlier.
func (n *Network) Start(ctx context.Context) error {
	redirected, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback})
	if err != nil {
		return err
	}
	n.listeners = append(n.listeners, redirected)
	n.serve(ctx, redirected, n.serveRedirected)
	proxy, perr := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback, Port: ProxyPort})
	if perr == nil {
		n.listeners = append(n.listeners, proxy)
		n.serve(ctx, proxy, n.serveProxy)
	}
	n.work.Go(func() { n.reportRefused(ctx) })
	n.port.Store(uint32(redirected.Addr().(*net.TCPAddr).Port))
	return errors.Join(perr, n.serveDNS(ctx), writeResolvConf("/etc/resolv.conf"), n.Redirect())
}

// Redirect redirects every connection to this package. Start calls it. It is called again in
// a sandbox that was restored from a snapshot, where the kernel's tables are empty.
func (n *Network) Redirect() error {
	access, err := redirect(uint16(n.port.Load()))
	n.access.Store(access)
	return err
}

// Access returns how programs reach the network, after Start.
func (n *Network) Access() Access {
	access, _ := n.access.Load().(Access)
	return access
}

// Environment returns the variables by which programs find the proxy; nil: they need none. All protocols have the
// proxy for HTTP: some programs fail with SOCKS.
func (n *Network) Environment() map[string]string {
	if n.Access() != Proxy {
		return nil
	}
	env := map[string]string{"NODE_USE_ENV_PROXY": "1"} // else Node's own functions use none
	proxy := fmt.Sprintf("http://127.0.0.1:%d", ProxyPort)
	for name, value := range map[string]string{"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy,
		"NO_PROXY": "localhost,127.0.0.1,::1"} {
		env[name], env[strings.ToLower(name)] = value, value
	}
	return env
}

// Wait waits until ctx, which is that of Start, has ended and all goroutines have returned.
func (n *Network) Wait(ctx context.Context) {
	<-ctx.Done()
	for _, c := range n.listeners {
		c.Close()
	}
	n.mu.Lock()
	n.closed = true
	for _, w := range n.watchers {
		w.socket.Close()
	}
	n.mu.Unlock()
	n.host.close()
	n.work.Wait()
}

var loopback = net.IPv4(127, 0, 0, 1)

// serve calls handle with each connection of l, and closes the connection afterwards.
func (n *Network) serve(ctx context.Context, l net.Listener, handle func(context.Context, *net.TCPConn)) {
	n.work.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			if err != nil { // such as too many open files
				time.Sleep(5 * time.Millisecond)
				continue
			}
			tcp := c.(*net.TCPConn)
			if !n.connSlots.TryAcquire(1) {
				reset(tcp)
				continue
			}
			n.work.Go(func() {
				defer n.connSlots.Release(1)
				stop := context.AfterFunc(ctx, func() { tcp.Close() })
				defer stop()
				handle(ctx, tcp)
				tcp.Close()
			})
		}
	})
}

// reset closes a connection with a RST, as if it had been refused.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// serveRedirected serves a connection that the kernel redirected.
func (n *Network) serveRedirected(ctx context.Context, c *net.TCPConn) {
	destination, err := originalDestination(c)
	if err != nil || destination.Addr().IsLoopback() { // a program connected to this port itself
		reset(c)
		return
	}
	if destination.Port() == dnsPort && !allowedNet.Contains(destination.Addr()) {
		n.serveDNSOverTCP(ctx, c) // the program connected to some name server
		return
	}
	n.relay(ctx, c, n.request(destination))
}

// request returns the request for a destination: for the name that the address stands for,
// or, without one, for the address.
func (n *Network) request(destination netip.AddrPort) wire.NetRequest {
	if name := n.names.name(destination.Addr()); name != "" {
		return wire.NetRequest{Kind: wire.NetConnect, Name: name, Port: uint32(destination.Port())}
	}
	return wire.NetRequest{Kind: wire.NetConnect, Address: destination.Addr().AsSlice(),
		Port: uint32(destination.Port())}
}

// relay connects c to a destination through the host.
func (n *Network) relay(ctx context.Context, c *net.TCPConn, request wire.NetRequest) {
	if n.host.isBusy() {
		reset(c)
		return
	}
	out, err := n.host.connect(ctx, request, n.end(c))
	if err != nil {
		reset(c)
		return
	}
	copyBoth(c, out)
}

// end returns the function that finds out which program has the other end of a connection.
func (n *Network) end(c net.Conn) func() wire.Who {
	return func() wire.Who { return n.whose("tcp", c.RemoteAddr()) }
}

// halfCloser is a connection whose two directions can be closed separately.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// chunkSize is how many bytes are copied at once.
const chunkSize = 128 << 10

var chunkPool = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// copyBoth copies in both directions until both have ended, and closes out. After an error it
// resets both connections.
func copyBoth(c *net.TCPConn, out halfCloser) {
	defer out.Close()
	resetBoth := func() {
		c.SetLinger(0)
		c.Close()
		out.Close()
	}
	var upDone atomic.Bool // the program has closed its side
	var up sync.WaitGroup
	up.Go(func() {
		err := copyOneWay(out, c)
		upDone.Store(true)
		if err != nil || out.CloseWrite() != nil {
			resetBoth()
		}
	})
	if copyOneWay(c, out) != nil || !upDone.Load() && hungUp(out) || c.CloseWrite() != nil {
		resetBoth()
	}
	up.Wait()
}

// hungUp reports whether the host has closed both directions: it crashed, or cut the
// connection. When one direction has ended normally the host still reads the other.
func hungUp(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		for {
			_, perr := unix.Poll(p, 0)
			if perr != unix.EINTR {
				break
			}
		}
		hup = p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return hup || err != nil
}

// copyOneWay copies one direction. It uses a large buffer only while much data comes, so that
// idle connections need little memory.
func copyOneWay(to, from halfCloser) error {
	var small [2 << 10]byte
	for {
		n, err := from.Read(small[:])
		if n > 0 {
			if _, werr := to.Write(small[:n]); werr != nil {
				return werr
			}
		}
		if n == len(small) && err == nil {
			err = copyChunks(to, from)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copyChunks copies with a large buffer, until a read returns little data.
func copyChunks(to, from halfCloser) error {
	b := chunkPool.Get().(*[chunkSize]byte)
	defer chunkPool.Put(b)
	for {
		n, err := from.Read(b[:])
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				return werr
			}
		}
		if err != nil || n < 16<<10 {
			return err
		}
	}
}

// originalDestination returns the destination that a connection had before its redirection.
func originalDestination(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	cerr := raw.Control(func(fd uintptr) {
		// The option's value is a sockaddr_in, which has the size of this type.
		var m *unix.IPv6Mreq
		if m, err = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, soOriginalDst); err == nil {
			b := m.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return to, errors.Join(err, cerr)
}

// soOriginalDst is SO_ORIGINAL_DST of linux/netfilter_ipv4.h.
const soOriginalDst = 80
