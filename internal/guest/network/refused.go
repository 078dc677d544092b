package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

// watchRefused sees which ports of refused names are tried. The kernel refuses
// these connections by itself; the host is told, so that it can say what was
// refused.
func (n *Network) watchRefused(ctx context.Context) error {
	tell := make(chan netip.AddrPort, badNames)
	for i := range badNames {
		f, err := rawSocket(n.names.bad.at(i))
		if err != nil {
			return fmt.Errorf("watching refused connections: %w", err)
		}
		n.stop = append(n.stop, f)
		to := n.names.bad.at(i)
		n.work.Go(func() {
			buf := make([]byte, 128)
			for {
				k, err := f.Read(buf)
				if err != nil {
					return
				}
				if port, ok := opening(buf[:k]); ok {
					select {
					case tell <- netip.AddrPortFrom(to, port):
					default: // a flood: what matters was told
					}
				}
			}
		})
	}
	n.work.Go(func() { n.tellRefused(ctx, tell) })
	return nil
}

// tellRefused asks the host for each, once in a while.
func (n *Network) tellRefused(ctx context.Context, tell <-chan netip.AddrPort) {
	type tried struct {
		name string
		port uint16
	}
	last := map[tried]time.Time{}
	for {
		select {
		case to := <-tell:
			t := tried{n.names.name(to.Addr()), to.Port()}
			if t.name == "" || time.Since(last[t]) < 200*time.Millisecond {
				continue
			}
			if len(last) > 256 {
				clear(last)
			}
			last[t] = time.Now()
			c, _, err := n.host.connect(ctx, &agentv1.NetConnect{Name: t.name, Port: uint32(t.port)})
			if err == nil { // it is allowed by now; the program will try again
				c.Close()
			}
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
