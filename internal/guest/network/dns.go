package network

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"sandlot/internal/agent/wire"
)

const (
	// ttl is how long an answer may be cached, in seconds. It is short, as the policy can change.
	ttl        = 2
	maxLookups = 64   // at once
	maxQueries = 1000 // a second, with bursts of a tenth of that
	maxQuery   = 1232 // bytes
)

// writeResolvConf makes this package the name server that programs use. The file in a template's root file system may
// have another one.
func writeResolvConf(file string) error {
	if text, err := os.ReadFile(file); err == nil && string(text) == wire.ResolvConf {
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(wire.ResolvConf), 0o644)
}

// serveDNS serves the DNS queries of all programs: those to the name server of resolv.conf,
// and, as they are redirected, those to any other name server.
func (n *Network) serveDNS(ctx context.Context) error {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback, Port: dnsPort})
	if err != nil {
		return err
	}
	n.listeners = append(n.listeners, udp)
	slots := semaphore.NewWeighted(maxLookups)
	limiter := rate.NewLimiter(maxQueries, maxQueries/10)
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
			if !limiter.Allow() || !slots.TryAcquire(1) {
				continue // the program asks again
			}
			query := bytes.Clone(buf[:k])
			n.work.Go(func() {
				defer slots.Release(1)
				who := sync.OnceValue(func() wire.Who { return n.whose("udp", net.UDPAddrFromAddrPort(from)) })
				if answer := n.answer(ctx, query, who); answer != nil {
					udp.WriteToUDPAddrPort(answer, from)
				}
			})
		}
	})
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback, Port: dnsPort})
	if err != nil {
		return err
	}
	n.listeners = append(n.listeners, tcp)
	n.serve(ctx, tcp, n.serveDNSOverTCP)
	return nil
}

// serveDNSOverTCP serves the DNS queries of a TCP connection, where each message follows its
// length.
func (n *Network) serveDNSOverTCP(ctx context.Context, c *net.TCPConn) {
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
		answer := n.answer(ctx, query, n.end(c))
		if answer == nil {
			return
		}
		if _, err := out.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer returns the answer to a query; nil: the message is no query, and gets none. Who finds out who has sent it.
func (n *Network) answer(ctx context.Context, query []byte, who func() wire.Who) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	q, err := p.Question()
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode,
		RecursionDesired: h.RecursionDesired, RecursionAvailable: true}}
	if err != nil {
		reply.RCode = dnsmessage.RCodeFormatError
		return pack(reply)
	}
	reply.Questions = []dnsmessage.Question{q}
	if h.OpCode != 0 || q.Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeNotImplemented
		return pack(reply)
	}
	body, code := n.resolve(ctx, q, who)
	reply.RCode = code
	if body != nil {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: ttl}
		reply.Answers = []dnsmessage.Resource{{Header: head, Body: body}}
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

// resolve answers a question. Names have IPv4 addresses only: programs would try an IPv6
// address first, and wait.
func (n *Network) resolve(ctx context.Context, q dnsmessage.Question, who func() wire.Who) (dnsmessage.ResourceBody,
	dnsmessage.RCode) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if q.Type == dnsmessage.TypePTR {
		return n.reverseLookup(name)
	}
	switch {
	case name == "":
		return nil, dnsmessage.RCodeSuccess
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return localhostRecord(q.Type), dnsmessage.RCodeSuccess
	}
	code, err := n.host.lookup(ctx, name, who)
	switch {
	case err != nil || code == wire.NetBusy || code == wire.NetUnreachable:
		return nil, dnsmessage.RCodeServerFailure
	case code == wire.NetNoName || code == wire.NetInvalid:
		return nil, dnsmessage.RCodeNameError
	case q.Type != dnsmessage.TypeA:
		return nil, dnsmessage.RCodeSuccess
	}
	a := n.names.address(name, code == wire.NetOK)
	if code == wire.NetOK {
		n.work.Go(func() { n.host.preconnect(ctx) }) // the program will most likely connect
	} else {
		n.lastRefused.Store(time.Now().UnixNano())
		n.config.OnRefused()
		n.names.setAsker(name, who())
		n.watch(a)
	}
	return &dnsmessage.AResource{A: a.As4()}, dnsmessage.RCodeSuccess
}

func localhostRecord(t dnsmessage.Type) dnsmessage.ResourceBody {
	switch t {
	case dnsmessage.TypeA:
		return &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}
	case dnsmessage.TypeAAAA:
		return &dnsmessage.AAAAResource{AAAA: netip.IPv6Loopback().As16()}
	}
	return nil
}

// reverseLookup answers a PTR question with the name that an address stands for.
func (n *Network) reverseLookup(name string) (dnsmessage.ResourceBody, dnsmessage.RCode) {
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
