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

// watch watches for connections to the address of a refused name. The kernel refuses
// them by itself; the host gets the port, so that a result can name it. Watching begins
// with the first such name, as a raw socket costs something for every packet.
func (n *Network) watch(to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.watchers[to] != nil {
		return
	}
	s, err := rawSocket(to)
	if err != nil {
		return // a program is refused all the same
	}
	w := &watcher{n: n, socket: s, to: to}
	n.watchers[to] = w
	n.work.Go(w.run)
}

// watcher reads the TCP packets to one address.
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

// read reads the packets that are there, and says whether there was any.
func (w *watcher) read(fd int) (any bool) {
	var buf [128]byte
	for {
		w.n.unreported.Add(1)
		k, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		port, ok := opening(buf[:max(k, 0)])
		if ok {
			select {
			case w.n.attempts <- netip.AddrPortFrom(w.to, port):
			default: // a flood: the host knows enough of it
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

// reportLimit is how long AwaitReports waits at most.
const reportLimit = 200 * time.Millisecond

// RefusedLately says whether a name was refused within ten seconds: programs may still
// try to reach it.
func (n *Network) RefusedLately() bool {
	return time.Since(time.Unix(0, n.refused.Load())) <= 10*time.Second
}

// AwaitReports returns when the host knows which connections were refused until now, so
// that a result can name them.
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

// report asks the host for each refused connection, at most five times a second for
// the same one.
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
				if err == nil { // the policy has changed; the program will try again
					c.Close()
				}
			}
			n.unreported.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}

// rawSocket receives the TCP packets to one address.
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

// opening returns the port to which an IPv4 packet opens a TCP connection.
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
