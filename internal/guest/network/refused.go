package network

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// watch starts to report connection attempts to the address of a refused name. The kernel
// refuses the attempts by itself; the host gets the port, so that a tool's result can name it.
// A raw socket receives every packet, so there is none before the first refused name.
func (n *Network) watch(to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.watchers[to] != nil {
		return
	}
	s, err := rawSocket(to)
	if err != nil {
		return // the attempts are refused all the same, but not reported
	}
	w := &watcher{n: n, socket: s, to: to}
	n.watchers[to] = w
	n.work.Go(w.run)
}

// watcher reads the TCP packets to the address of one refused name.
type watcher struct {
	n      *Network
	socket *os.File
	to     netip.Addr
}

func (w *watcher) run() {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return
	}
	for raw.Read(func(fd uintptr) bool { return w.read(int(fd)) }) == nil {
	}
}

// readPackets reads all packets that wait in the socket, and reports whether there was one.
func (w *watcher) read(fd int) (any bool) {
	var buf [128]byte
	for {
		w.n.unreported.Add(1)
		k, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		port, ok := opening(buf[:max(k, 0)])
		if ok {
			select {
			case w.n.attempts <- netip.AddrPortFrom(w.to, port):
			default: // too many attempts wait already: this one is not reported
				ok = false
			}
		}
		if !ok {
			w.n.unreported.Add(-1)
		}
		if err != nil {
			return any
		}
		any = true
	}
}

// reportLimit bounds how long AwaitReports waits.
const reportLimit = 200 * time.Millisecond

// RefusedRecently reports whether a name was refused in the last ten seconds: programs may
// still try to connect to it.
func (n *Network) RefusedLately() bool {
	return time.Since(time.Unix(0, n.refused.Load())) <= 10*time.Second
}

// AwaitReports waits until all connections that were refused until now are reported to the
// host, so that a tool's result can name them.
func (n *Network) AwaitReports() {
	if !n.RefusedLately() {
		return
	}
	n.mu.Lock()
	watchers := slices.Collect(maps.Values(n.watchers))
	n.mu.Unlock()
	for _, w := range watchers {
		if raw, err := w.socket.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { w.read(int(fd)) })
		}
	}
	for until := time.Now().Add(reportLimit); n.unreported.Load() > 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// reportRefused asks the host to connect to each refused name and port, so that the host records
// the refusal; for the same name and port at most five times a second.
func (n *Network) report(ctx context.Context) {
	type tried struct {
		name string
		port uint16
	}
	last := map[tried]time.Time{}
	for {
		select {
		case to := <-n.attempts:
			t := tried{n.names.name(to.Addr()), to.Port()}
			if t.name != "" && time.Since(last[t]) > 200*time.Millisecond {
				if len(last) > 256 {
					clear(last)
				}
				last[t] = time.Now()
				to := wire.NetRequest{Kind: wire.NetConnect, Name: t.name, Port: uint32(t.port)}
				c, err := n.host.connect(ctx, to)
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
func opening(p []byte) (uint16, bool) {
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
