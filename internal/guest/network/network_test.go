package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// broker is the host's side: it allows names that begin with "good".
type broker struct {
	t    *testing.T
	work sync.WaitGroup
	// target serves what is connected.
	target func(*net.UnixConn)

	mu    sync.Mutex
	asked []string
	told  []*agentv1.NetWho
	dials int
}

func (b *broker) dial(context.Context) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	b.mu.Lock()
	b.dials++
	b.mu.Unlock()
	b.work.Go(func() {
		defer ends[1].Close()
		b.serve(ends[1])
	})
	return ends[0], nil
}

func (b *broker) serve(c *net.UnixConn) {
	for {
		r := new(agentv1.NetRequest)
		if wire.ReadBounded(c, r, wire.MaxNetMessage) != nil {
			return
		}
		name, reply := r.GetLookup().GetName(), &agentv1.NetReply{}
		if who := r.GetWho(); who != nil {
			name = "good" // it is taken
			b.mu.Lock()
			b.told = append(b.told, who)
			b.mu.Unlock()
		}
		if to := r.GetConnect(); to != nil {
			name = to.Name
			if a, ok := netip.AddrFromSlice(to.Address); ok {
				name = a.String()
			}
			b.mu.Lock()
			b.asked = append(b.asked, fmt.Sprintf("%s:%d", name, to.Port))
			b.mu.Unlock()
		}
		switch {
		case strings.HasPrefix(name, "none"):
			reply.Code, reply.Message = agentv1.NetReply_NO_NAME, "there is no such name"
		case strings.HasPrefix(name, "busy"):
			reply.Code, reply.Message = agentv1.NetReply_BUSY, "too many connections"
		case !strings.HasPrefix(name, "good"):
			reply.Code, reply.Message = agentv1.NetReply_REFUSED, name+" was refused: no rule allows it"
			reply.AsksWho = r.TellsWho
		}
		if wire.WriteMessage(c, reply) != nil {
			return
		}
		if r.GetConnect() != nil && reply.Code == agentv1.NetReply_OK {
			b.target(c)
			return
		}
	}
}

func (b *broker) last() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.asked) == 0 {
		return ""
	}
	return b.asked[len(b.asked)-1]
}

// begin returns a network over the broker, and an address of its proxy. It
// redirects nothing: this is the machine that the test runs on.
func begin(t *testing.T, target func(*net.UnixConn), change ...func(*Config)) (*Network, *broker, string) {
	t.Helper()
	b := &broker{t: t, target: target}
	c := Config{Dial: b.dial, OnRefused: func() {}}
	for _, f := range change {
		f(&c)
	}
	n := New(c)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.serve(ctx, l, n.serveProxy)
	t.Cleanup(func() {
		cancel()
		l.Close()
		n.host.close()
		n.work.Wait()
		b.work.Wait()
	})
	return n, b, l.Addr().String()
}

func nobody() wire.Who { return wire.Who{} }

func TestNames(t *testing.T) {
	n := newNames()
	if a := n.address("a.test", true); a != netip.MustParseAddr("28.18.1.0") || n.name(a) != "a.test" ||
		n.address("a.test", true) != a {
		t.Errorf("%v %q", a, n.name(a))
	}
	bad := n.address("a.test", false)
	if bad != netip.MustParseAddr("198.19.1.0") || n.name(bad) != "a.test" {
		t.Errorf("%v %q", bad, n.name(bad))
	}
	seen := map[netip.Addr]string{}
	for i := range allowedNames + 10 {
		name := fmt.Sprintf("n%d.test", i)
		a := n.address(name, true)
		if !allowedNet.Contains(a) || n.name(a) != name {
			t.Fatalf("%s is at %v, which is %q", name, a, n.name(a))
		}
		seen[a] = name
	}
	if len(seen) != allowedNames || len(n.allowed.byName) != allowedNames {
		t.Errorf("%d addresses, %d names", len(seen), len(n.allowed.byName))
	}
	if a := netip.MustParseAddr("28.18.1.1"); n.name(a) == "n0.test" {
		t.Error("the oldest name has its address still")
	}
	for _, a := range []string{"28.18.0.0", "28.18.255.255", "198.19.1.200", "127.0.0.1", "::1"} {
		if got := n.name(netip.MustParseAddr(a)); got != "" {
			t.Errorf("%s is %q", a, got)
		}
	}
}

func query(name string, kind dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func TestAnswer(t *testing.T) {
	n, _, _ := begin(t, nil)
	for _, tt := range []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		want string
	}{
		{"good.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "28.18.1.0"},
		{"GOOD.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "28.18.1.0"},
		{"good.test.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, ""},
		{"good.test.", dnsmessage.TypeMX, dnsmessage.RCodeSuccess, ""},
		{"evil.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.19.1.0"},
		{"none.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"busy.test.", dnsmessage.TypeA, dnsmessage.RCodeServerFailure, ""},
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"a.localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"0.1.18.28.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeSuccess, "good.test."},
		{"9.9.18.28.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, ""},
		{"x.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, ""},
		{".", dnsmessage.TypeA, dnsmessage.RCodeSuccess, ""},
	} {
		var m dnsmessage.Message
		if err := m.Unpack(n.answer(t.Context(), query(tt.name, tt.kind), nobody)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := ""
		for _, a := range m.Answers {
			switch b := a.Body.(type) {
			case *dnsmessage.AResource:
				got = netip.AddrFrom4(b.A).String()
			case *dnsmessage.PTRResource:
				got = b.PTR.String()
			}
		}
		if m.RCode != tt.code || got != tt.want || m.ID != 7 || !m.Response {
			t.Errorf("%s %v: %v %q, want %v %q", tt.name, tt.kind, m.RCode, got, tt.code, tt.want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query("good.test.", dnsmessage.TypeA))
	f.Add([]byte{0, 7, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := New(Config{Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("nobody") },
			OnRefused: func() {}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if out := n.answer(ctx, b, nobody); out != nil && new(dnsmessage.Message).Unpack(out) != nil {
			t.Errorf("%x", out)
		}
	})
}

// hello answers one request as a web server does.
func hello(c *net.UnixConn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s %s", len(r.Host)+len(body)+1, r.Host, body)
	c.CloseWrite()
	io.Copy(io.Discard, c)
}

func TestProxy(t *testing.T) {
	_, b, proxy := begin(t, hello)
	u := &url.URL{Scheme: "http", Host: proxy}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	r, err := client.Post("http://good.test/x", "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if string(text) != "good.test body" || b.last() != "good.test:80" {
		t.Errorf("%q, asked %s", text, b.last())
	}
	for _, tt := range []struct{ send, says string }{
		{"CONNECT good.test:99 HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: inner\r\n\r\n",
			"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ninner "},
		{"CONNECT evil.test:99 HTTP/1.1\r\nHost: x\r\n\r\n",
			"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: " +
				"close\r\nContent-Length: 41\r\n\r\nevil.test was refused: no rule allows it\n"},
		{"CONNECT busy.test:99 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 429 "},
		{"CONNECT none.test:99 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 502 "},
		{"CONNECT good.test HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"CONNECT good.test:0 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"CONNECT good.test:65536 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"GET https://good.test/ HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"nonsense\r\n\r\n", "HTTP/1.1 400 "},
		{"\x05\x01\x00\x05\x01\x00\x03\x09good.test\x00\x63GET / HTTP/1.1\r\nHost: s\r\n\r\n",
			"\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\ns "},
		{"\x05\x01\x00\x05\x01\x00\x03\x09evil.test\x00\x63", "\x05\x00\x05\x02"},
		{"\x05\x01\x00\x05\x01\x00\x01\x01\x02\x03\x04\x00\x63", "\x05\x00\x05\x02"},
		{"\x05\x01\x00\x05\x02\x00\x01\x01\x02\x03\x04\x00\x63", "\x05\x00\x05\x07"},
		{"\x05\x01\x00\x05\x01\x00\x09\x01\x02\x03\x04\x00\x63", "\x05\x00\x05\x08"},
	} {
		c, err := net.Dial("tcp", proxy)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, tt.send)
		got := make([]byte, len(tt.says))
		if _, err := io.ReadFull(c, got); string(got) != tt.says {
			t.Errorf("%q: %v %q, want %q", tt.send, err, got, tt.says)
		}
		c.Close()
	}
}

// TestSpares: what was refused or looked up leaves a connection for the next
// request, and a spare one that died with the host is replaced.
func TestSpares(t *testing.T) {
	n, b, _ := begin(t, hello)
	for range 20 {
		if _, err := n.host.lookup(t.Context(), "good.test", nobody); err != nil {
			t.Fatal(err)
		}
	}
	if b.dials != 1 {
		t.Errorf("%d connections for look-ups one after the other", b.dials)
	}
	for _, c := range n.host.idle {
		c.Close()
	}
	if code, err := n.host.lookup(t.Context(), "evil.test", nobody); err != nil || code != wire.NetRefused {
		t.Errorf("after the host was away: %v %v", code, err)
	}
}

// TestEnds: the end of one side is the other's end, a cut is a reset.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		target func(*net.UnixConn)
		reset  bool
	}{
		{"the other end has sent all", func(c *net.UnixConn) {
			io.WriteString(c,
				"data")
			c.CloseWrite()
			io.Copy(io.Discard, c)
		}, false},
		{"the host crashed", func(c *net.UnixConn) { io.WriteString(c, "data") }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, proxy := begin(t, tt.target)
			c, err := net.Dial("tcp", proxy)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			io.WriteString(c, "CONNECT good.test:1 HTTP/1.1\r\nHost: x\r\n\r\n")
			r := bufio.NewReader(c)
			for { // the proxy's answer
				if line, err := r.ReadString('\n'); err != nil || line == "\r\n" {
					break
				}
			}
			got, err := io.ReadAll(r)
			if errors.Is(err, syscall.ECONNRESET) != tt.reset || err != nil && !tt.reset {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	t.Run("the program has sent all", func(t *testing.T) {
		_, _, proxy := begin(t, func(c *net.UnixConn) {
			all, _ := io.ReadAll(c)
			fmt.Fprintf(c, "%d", len(all))
		})
		c, err := net.Dial("tcp", proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, "CONNECT good.test:1 HTTP/1.1\r\nHost: x\r\n\r\n")
		go func() {
			c.Write(make([]byte, 10<<20))
			c.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(got), fmt.Sprint(10<<20)) {
			t.Errorf("%q %v", got, err)
		}
	})
}

func TestPoint(t *testing.T) {
	dir := t.TempDir()
	file, elsewhere := dir+"/resolv.conf", dir+"/other"
	if err := errors.Join(os.WriteFile(elsewhere, []byte("nameserver 192.0.2.1\n"), 0o644), os.Symlink(elsewhere,
		file)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := writeResolvConf(file); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != wire.ResolvConf {
			t.Errorf("%q %v", got, err)
		}
	}
	if got, _ := os.ReadFile(elsewhere); string(got) == wire.ResolvConf {
		t.Error("it wrote through a link")
	}
}

func TestOpening(t *testing.T) {
	packet := make([]byte, 40)
	packet[0], packet[22], packet[23], packet[33] = 0x45, 0x1f, 0x90, 2
	if p, ok := synPort(packet); !ok || p != 8080 {
		t.Errorf("%d %v", p, ok)
	}
	packet[33] = 18 // an answer
	if _, ok := synPort(packet); ok {
		t.Error("an answer opens nothing")
	}
	for n := range 34 {
		if _, ok := synPort(packet[:n]); ok {
			t.Errorf("%d bytes", n)
		}
	}
}
