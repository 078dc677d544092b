// Package network is the sandbox's only way to the network: it accepts every TCP
// connection and every look-up of every program in the sandbox, and passes it to the
// host, which decides. The host trusts nothing here, and a program that undoes the
// redirection reaches nothing: the sandbox has no other interface.
//
// After Redirect every IPv4 address is one of the sandbox's own, and a rule redirects
// TCP to this package, which learns the destination from the kernel. Each name that a
// program looks up gets an address of its own, so that the host sees names.
package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// Ports on loopback, beside that of the redirected connections, which is any.
const (
	// ProxyPort is an explicit proxy's, for HTTP and SOCKS5.
	ProxyPort = 3128
	dnsPort   = 53
)

// maxConns bounds the connections of the sandbox at once, here; the host has its
// own bound.
const maxConns = 4096

// Network serves the programs of one sandbox.
type Network struct {
	onRefused func() // called when a name is refused, before the program has the answer
	host      *host
	names     *names
	slots     *semaphore.Weighted // of connections
	work      sync.WaitGroup
	stop      []io.Closer
	port      atomic.Uint32 // of the redirected connections; 0 before Start

	refused    atomic.Int64 // when a refused name was looked up, in ns since 1970
	attempts   chan netip.AddrPort
	unreported atomic.Int64 // refused connections of which the host does not know yet

	mu       sync.Mutex
	watchers map[netip.Addr]*watcher
	closed   bool
}

// New returns a network whose requests go over connections that dial makes: each
// has been greeted. OnRefused is called when a name is refused, before the program that
// looked it up has the answer.
func New(dial func(ctx context.Context) (net.Conn, error), onRefused func()) *Network {
	return &Network{onRefused: onRefused, host: &host{dial: dial}, names: newNames(),
		slots: semaphore.NewWeighted(maxConns), attempts: make(chan netip.AddrPort, badNames),
		watchers: map[netip.Addr]*watcher{}}
}

// Start serves until ctx ends; Wait returns then. Where the kernel does not let it
// redirect, the explicit proxy is what is left, and the error says why.
func (n *Network) Start(ctx context.Context) error {
	transparent, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback})
	if err != nil {
		return err
	}
	n.stop = append(n.stop, transparent)
	n.serve(ctx, transparent, n.redirected)
	proxy, perr := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback, Port: ProxyPort})
	if perr == nil {
		n.stop = append(n.stop, proxy)
		n.serve(ctx, proxy, n.proxied)
	}
	n.work.Go(func() { n.report(ctx) })
	n.port.Store(uint32(transparent.Addr().(*net.TCPAddr).Port))
	return errors.Join(perr, n.resolve(ctx), writeResolvConf("/etc/resolv.conf"), n.Redirect())
}

// Redirect redirects every connection to this package. Start does so; it is called
// again where the kernel's tables are empty after that, in a sandbox that was restored.
func (n *Network) Redirect() error { return redirect(uint16(n.port.Load())) }

// Wait returns when ctx of Start has ended and nothing is left.
func (n *Network) Wait(ctx context.Context) {
	<-ctx.Done()
	for _, c := range n.stop {
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

// serve gives each connection of l to handle, and closes it after.
func (n *Network) serve(ctx context.Context, l net.Listener, handle func(context.Context, *net.TCPConn)) {
	n.work.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			if err != nil { // no file descriptors, at a flood
				time.Sleep(5 * time.Millisecond)
				continue
			}
			tcp := c.(*net.TCPConn)
			if !n.slots.TryAcquire(1) {
				reset(tcp)
				continue
			}
			n.work.Go(func() {
				defer n.slots.Release(1)
				stop := context.AfterFunc(ctx, func() { tcp.Close() })
				defer stop()
				handle(ctx, tcp)
				tcp.Close()
			})
		}
	})
}

// reset ends a connection as one that was refused.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// redirected serves a connection that the kernel redirected.
func (n *Network) redirected(ctx context.Context, c *net.TCPConn) {
	to, err := originalDestination(c)
	if err != nil || to.Addr().IsLoopback() { // it was made to this port
		reset(c)
		return
	}
	if to.Port() == dnsPort && !goodNet.Contains(to.Addr()) {
		n.lookups(ctx, c) // to any name server
		return
	}
	n.carry(ctx, c, n.target(to))
}

// target is the request for a destination: for the name that has the address, or for
// the address.
func (n *Network) target(to netip.AddrPort) wire.NetRequest {
	if name := n.names.name(to.Addr()); name != "" {
		return wire.NetRequest{Kind: wire.NetConnect, Name: name, Port: uint32(to.Port())}
	}
	return wire.NetRequest{Kind: wire.NetConnect, Address: to.Addr().AsSlice(), Port: uint32(to.Port())}
}

// carry connects c to a target through the host.
func (n *Network) carry(ctx context.Context, c *net.TCPConn, to wire.NetRequest) {
	if n.host.isBusy() {
		reset(c)
		return
	}
	out, err := n.host.connect(ctx, to)
	if err != nil {
		reset(c)
		return
	}
	join(c, out)
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// chunk is how much is copied at once, in bytes.
const chunk = 128 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// join copies both ways until both have ended, and closes out. What broke is
// reset for both.
func join(c *net.TCPConn, out halfCloser) {
	defer out.Close()
	broken := func() {
		c.SetLinger(0)
		c.Close()
		out.Close()
	}
	var sent atomic.Bool // the program has closed its side
	var up sync.WaitGroup
	up.Go(func() {
		err := flow(out, c)
		sent.Store(true)
		if err != nil || out.CloseWrite() != nil {
			broken()
		}
	})
	if flow(c, out) != nil || !sent.Load() && hungUp(out) || c.CloseWrite() != nil {
		broken()
	}
	up.Wait()
}

// hungUp says whether the host has closed both directions: it crashed, or cut the
// connection. After the normal end of one direction the host still reads.
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

// flow copies one direction. It holds a large buffer only while much comes, so that
// idle connections cost little.
func flow(to, from halfCloser) error {
	var small [2 << 10]byte
	for {
		n, err := from.Read(small[:])
		if n > 0 {
			if _, werr := to.Write(small[:n]); werr != nil {
				return werr
			}
		}
		if n == len(small) && err == nil {
			err = burst(to, from)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// burst copies in large parts while they come.
func burst(to, from halfCloser) error {
	b := chunks.Get().(*[chunk]byte)
	defer chunks.Put(b)
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

// originalDestination is the destination of a connection before its redirection.
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
