package network

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"sandlot/internal/agent/wire"
)

// watch starts to report connection attempts to the address of a refused name. The kernel
// refuses the attempts by itself; the host gets the port, so that a tool's result can name it.
// A raw socket receives every packet, so there is none before the first refused name.
func (n *Network) watch(address netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.watchers[address] != nil {
		return
	}
	s, err := rawSocket(address)
	if err != nil {
		return // the attempts are refused all the same, but not reported
	}
	w := &watcher{n: n, socket: s, address: address}
	n.watchers[address] = w
	n.work.Go(w.run)
}

// watcher reads the TCP packets to the address of one refused name.
type watcher struct {
	n       *Network
	socket  *os.File
	address netip.Addr
}

func (w *watcher) run() {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return
	}
	for raw.Read(func(fd uintptr) bool { return w.readPackets(int(fd)) }) == nil {
	}
}

// readPackets reads all packets that wait in the socket, and reports whether there was one.
func (w *watcher) readPackets(fd int) (found bool) {
	var buf [128]byte
	for {
		w.n.unreported.Add(1)
		k, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		port, isSYN := synPort(buf[:max(k, 0)])
		if isSYN {
			select {
			case w.n.attempts <- netip.AddrPortFrom(w.address, port):
			default: // too many attempts wait already: this one is not reported
				isSYN = false
			}
		}
		if !isSYN {
			w.n.unreported.Add(-1)
		}
		if err != nil {
			return found
		}
		found = true
	}
}

// reportLimit bounds how long AwaitReports waits.
const reportLimit = 200 * time.Millisecond

// RefusedRecently reports whether a name was refused in the last ten seconds: programs may
// still try to connect to it.
func (n *Network) RefusedRecently() bool {
	return time.Since(time.Unix(0, n.lastRefused.Load())) <= 10*time.Second
}

// AwaitReports waits until all connections that were refused until now are reported to the
// host, so that a tool's result can name them.
func (n *Network) AwaitReports() {
	if !n.RefusedRecently() {
		return
	}
	n.mu.Lock()
	watchers := slices.Collect(maps.Values(n.watchers))
	n.mu.Unlock()
	for _, w := range watchers {
		if raw, err := w.socket.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { w.readPackets(int(fd)) })
		}
	}
	for until := time.Now().Add(reportLimit); n.unreported.Load() > 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// reportRefused asks the host to connect to each refused name and port, so that the host records
// the refusal; for the same name and port, after the first few, at most five times a second.
func (n *Network) reportRefused(ctx context.Context) {
	type attempt struct {
		name   string
		port   uint16
		server string // whose program it was
	}
	limits := map[attempt]*rate.Limiter{}
	for {
		select {
		case address := <-n.attempts:
			name := n.names.name(address.Addr())
			who := n.names.asker(name)
			t := attempt{name, address.Port(), who.Server}
			if limits[t] == nil {
				if len(limits) > 256 {
					clear(limits)
				}
				limits[t] = rate.NewLimiter(5, 10)
			}
			if t.name != "" && limits[t].Allow() {
				request := wire.NetRequest{Kind: wire.NetConnect, Name: t.name, Port: uint32(t.port)}
				c, err := n.host.connect(ctx, request, func() wire.Who { return who })
				if err == nil { // the policy allows the name now; the program will try again
					c.Close()
				}
			}
			n.unreported.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}

// rawSocket opens a socket that receives the TCP packets to one address.
func rawSocket(a netip.Addr) (*os.File, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(s, &unix.SockaddrInet4{Addr: a.As4()}); err != nil {
		unix.Close(s)
		return nil, err
	}
	return os.NewFile(uintptr(s), "refused"), nil
}

// synPort returns the destination port of an IPv4 packet that opens a TCP connection (SYN
// without ACK), and whether the packet is one.
func synPort(p []byte) (uint16, bool) {
	if len(p) < 20 {
		return 0, false
	}
	head := int(p[0]&15) * 4
	const syn, ack = 2, 16
	if len(p) < head+14 || p[head+13]&(syn|ack) != syn {
		return 0, false
	}
	return uint16(p[head+2])<<8 | uint16(p[head+3]), true
}
