package network

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

// watch sees which ports of a refused name's address are tried. The kernel
// refuses these connections by itself; the host is told, so that it can say what
// was refused. It begins with the first such name, as whatever watches sees all
// packets.
func (n *Network) watch(to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || n.watchers[to] != nil {
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

// watcher sees what goes to one address.
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
	for raw.Read(func(fd uintptr) bool { return w.take(int(fd)) }) == nil {
	}
}

// take takes what is there, and says whether anything was.
func (w *watcher) take(fd int) (any bool) {
	var buf [128]byte
	for {
		w.n.untold.Add(1)
		k, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		port, ok := opening(buf[:max(k, 0)])
		if ok {
			select {
			case w.n.tell <- netip.AddrPortFrom(w.to, port):
			default: // a flood: what matters was told
				ok = false
			}
		}
		if !ok {
			w.n.untold.Add(-1)
		}
		if err != nil {
			return any
		}
		any = true
	}
}

// settled is how long Settle waits at most.
const settled = 200 * time.Millisecond

// Lately says whether a name was refused of late: programs may try to reach it
// still.
func (n *Network) Lately() bool { return time.Since(time.Unix(0, n.refused.Load())) <= 10*time.Second }

// Settle returns when the host knows what programs were refused until now, so
// that a result can say it.
func (n *Network) Settle() {
	if !n.Lately() {
		return
	}
	n.mu.Lock()
	watchers := slices.Collect(maps.Values(n.watchers))
	n.mu.Unlock()
	for _, w := range watchers {
		if raw, err := w.socket.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { w.take(int(fd)) })
		}
	}
	for until := time.Now().Add(settled); n.untold.Load() > 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// tellRefused asks the host for each, once in a while.
func (n *Network) tellRefused(ctx context.Context) {
	type tried struct {
		name string
		port uint16
	}
	last := map[tried]time.Time{}
	for {
		select {
		case to := <-n.tell:
			t := tried{n.names.name(to.Addr()), to.Port()}
			if t.name != "" && time.Since(last[t]) > 200*time.Millisecond {
				if len(last) > 256 {
					clear(last)
				}
				last[t] = time.Now()
				c, _, err := n.host.connect(ctx, &agentv1.NetConnect{Name: t.name, Port: uint32(t.port)})
				if err == nil { // it is allowed by now; the program will try again
					c.Close()
				}
			}
			n.untold.Add(-1)
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
