package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sandlot/proto/agentv1"
)

const (
	// ttl is short: what may be reached can change.
	ttl = 2
	// maxLookups bounds those at once.
	maxLookups = 64
	maxQuery   = 1232
)

// nameServer is what programs read in resolv.conf; a template's own root may have
// another.
const nameServer = "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n"

// point makes programs look names up here.
func point(file string) error {
	if text, err := os.ReadFile(file); err == nil && string(text) == nameServer {
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(nameServer), 0o644)
}

// resolve serves the look-ups of all programs: those to the name server of
// resolv.conf, and, by the rule, those to any other.
func (n *Network) resolve(ctx context.Context) error {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback, Port: dnsPort})
	if err != nil {
		return err
	}
	n.stop = append(n.stop, udp)
	slots := make(chan struct{}, maxLookups)
	var flood window
	n.work.Go(func() {
		buf := make([]byte, maxQuery)
		for {
			k, from, err := udp.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			if !flood.room() {
				continue // a program asks again
			}
			query := append([]byte(nil), buf[:k]...)
			select {
			case slots <- struct{}{}: // beyond that a program asks again
				n.work.Go(func() {
					defer func() { <-slots }()
					if answer := n.answer(ctx, query); answer != nil {
						udp.WriteToUDPAddrPort(answer, from)
					}
				})
			default:
			}
		}
	})
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback, Port: dnsPort})
	if err != nil {
		return err
	}
	n.stop = append(n.stop, tcp)
	n.serve(ctx, tcp, n.lookups)
	return nil
}

// window bounds how many queries are looked at in a tenth of a second.
type window struct {
	since time.Time
	seen  int
}

const maxQueries = 100

func (w *window) room() bool {
	if w.seen++; w.seen <= maxQueries {
		return true
	}
	if now := time.Now(); now.Sub(w.since) > 100*time.Millisecond {
		w.since, w.seen = now, 0
		return true
	}
	return false
}

// lookups serves look-ups over TCP: each has its length before it.
func (n *Network) lookups(ctx context.Context, c *net.TCPConn) {
	in, out := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		var size [2]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		query := make([]byte, min(binary.BigEndian.Uint16(size[:]), maxQuery))
		if _, err := io.ReadFull(in, query); err != nil {
			return
		}
		answer := n.answer(ctx, query)
		if answer == nil {
			return
		}
		if _, err := out.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer returns nil for what is no query.
func (n *Network) answer(ctx context.Context, query []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	q, err := p.Question()
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}}
	if err != nil {
		reply.RCode = dnsmessage.RCodeFormatError
		return pack(reply)
	}
	reply.Questions = []dnsmessage.Question{q}
	if h.OpCode != 0 || q.Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeNotImplemented
		return pack(reply)
	}
	body, code := n.look(ctx, q)
	reply.RCode = code
	if body != nil {
		reply.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: ttl}, Body: body}}
	}
	return pack(reply)
}

func pack(m dnsmessage.Message) []byte {
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// look answers a question. There are IPv4 addresses alone, so that programs turn
// to them at once.
func (n *Network) look(ctx context.Context, q dnsmessage.Question) (dnsmessage.ResourceBody, dnsmessage.RCode) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if q.Type == dnsmessage.TypePTR {
		return n.reverse(name)
	}
	switch {
	case name == "":
		return nil, dnsmessage.RCodeSuccess
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return local(q.Type), dnsmessage.RCodeSuccess
	}
	code, err := n.host.lookup(ctx, name)
	switch {
	case err != nil || code == agentv1.NetReply_BUSY:
		return nil, dnsmessage.RCodeServerFailure
	case code == agentv1.NetReply_NO_NAME || code == agentv1.NetReply_BROKEN:
		return nil, dnsmessage.RCodeNameError
	case code == agentv1.NetReply_UNREACHABLE:
		return nil, dnsmessage.RCodeServerFailure
	case q.Type != dnsmessage.TypeA:
		return nil, dnsmessage.RCodeSuccess
	}
	a := n.names.address(name, code == agentv1.NetReply_OK)
	if code == agentv1.NetReply_OK {
		n.work.Go(func() { n.host.prepare(ctx) }) // a connection follows
	} else {
		n.refused.Store(time.Now().UnixNano())
		if n.Refused != nil {
			n.Refused()
		}
		n.watch(a)
	}
	return &dnsmessage.AResource{A: a.As4()}, dnsmessage.RCodeSuccess
}

func local(t dnsmessage.Type) dnsmessage.ResourceBody {
	switch t {
	case dnsmessage.TypeA:
		return &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}
	case dnsmessage.TypeAAAA:
		return &dnsmessage.AAAAResource{AAAA: netip.IPv6Loopback().As16()}
	}
	return nil
}

// reverse finds the name of an address that was given to one.
func (n *Network) reverse(name string) (dnsmessage.ResourceBody, dnsmessage.RCode) {
	parts := strings.Split(strings.TrimSuffix(name, ".in-addr.arpa"), ".")
	if len(parts) == 4 {
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		if err == nil {
			if found, err := dnsmessage.NewName(n.names.name(a) + "."); err == nil && found.Length > 1 {
				return &dnsmessage.PTRResource{PTR: found}, dnsmessage.RCodeSuccess
			}
		}
	}
	return nil, dnsmessage.RCodeNameError
}
