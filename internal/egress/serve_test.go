package egress

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
)

const (
	ok          = wire.NetOK
	no          = wire.NetRefused
	noName      = wire.NetNoName
	unreachable = wire.NetUnreachable
	isBusy      = wire.NetBusy
	isBroken    = wire.NetInvalid
)

func TestRequests(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "a.example:7", "dark.example", "gone.example", "in.example",
		"20.0.0.0/24")})
	r.serve("20.0.0.1:7", echo)
	r.name("a.example", "20.0.0.1")
	r.name("dark.example", "20.0.0.9")
	r.name("in.example", "10.0.0.1")
	c := r.client() // one connection for all that comes to nothing
	c.want(ok, lookup("A.example."))
	c.want(noName, lookup("gone.example"))
	c.want(no, lookup("b.example"))
	c.want(no, lookup("127.1"))
	c.want(no, lookup("10.0.0.1"))
	c.want(ok, lookup("20.0.0.1"))
	c.want(no, toName("a.example", 8))
	c.want(no, toName("b.example", 443))
	c.want(no, toName("in.example", 443))
	c.want(no, toName("localhost", 80))
	c.want(no, toName("0x7f.1", 80))
	c.want(no, toAddr("127.0.0.1", 80))
	c.want(no, toAddr("::ffff:20.0.1.1", 80))
	c.want(unreachable, toName("dark.example", 80))
	c.want(unreachable, toAddr("20.0.0.2", 80))
	if m := c.want(no, toName("b.example", 443)); m != "b.example was refused: no rule allows it" {
		t.Errorf("the sentence: %q", m)
	}
	c.want(ok, toName("A.EXAMPLE.", 7))
	c.roundTrip("hello")

	resolved, dialed := r.asked()
	if want := []string{"a.example", "gone.example", "in.example", "dark.example"}; !slices.Equal(resolved, want) {
		t.Errorf("resolved %v, want %v", resolved, want)
	}
	if want := []string{"20.0.0.9:80", "20.0.0.2:80", "20.0.0.1:7"}; !slices.Equal(dialed, want) {
		t.Errorf("dialed %v, want %v", dialed, want)
	}
	refused := r.outlet.TakeRefusals()
	if len(refused) != maxRefusals-1 || refused[3].Host != "b.example" || refused[3].Port != 443 ||
		refused[3].Times != 2 || slices.ContainsFunc(refused,
		func(x Refusal) bool { return x.Host == "b.example" && x.Port == 0 }) {
		t.Errorf("refusals: %+v", refused)
	}
	if len(r.outlet.TakeRefusals()) != 0 {
		t.Error("refusals are told twice")
	}
	u := r.outlet.Usage()
	if u.Open != 1 || u.Connected != 1 || u.Refused != 11 || u.Unreachable != 3 || u.Lookups != 6 || u.Up != 5 ||
		u.Down != 5 {
		t.Errorf("usage: %+v", u)
	}
	if r.b.Totals() != u {
		t.Errorf("totals: %+v, want %+v", r.b.Totals(), u)
	}
	c.Close()
	<-c.done
	for _, want := range []string{"principal=user:ann", "session=s1", "sandbox=box1", "host=a.example", "port=7",
		"address=20.0.0.1", "up=5", "down=5", "verdict=ok"} {
		if !strings.Contains(last(r.log.String()), want) {
			t.Errorf("the last line lacks %s: %s", want, last(r.log.String()))
		}
	}
}

func last(log string) string {
	log = strings.TrimSpace(log)
	return log[strings.LastIndexByte(log, '\n')+1:]
}

func TestNoneNeverResolves(t *testing.T) {
	for name, p := range map[string]*Policy{"nil": nil, "none": {Mode: None, Allow: rules(t, "a.example", "20.0.0.1")},
		"open": {Mode: Open}, "unknown": {Mode: "all"}} {
		r := newRig(t, p)
		r.name("a.example", "20.0.0.1")
		c := r.client()
		for _, q := range []wire.NetRequest{lookup("a.example"), lookup("20.0.0.1"), lookup("127.1"), lookup("\x00"),
			toName("a.example", 80), toName("127.1", 80), toAddr("20.0.0.1", 80)} {
			if m := c.want(no, q); !strings.Contains(m, "no network") {
				t.Errorf("%s: %v: %q", name, q, m)
			}
		}
		if resolved, dialed := r.asked(); len(resolved)+len(dialed) > 0 {
			t.Errorf("%s: resolved %v, dialed %v", name, resolved, dialed)
		}
	}
}

func TestRebinding(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:80", echo)
	r.name("evil.example", "20.0.0.1")
	c := r.client()
	c.want(ok, lookup("evil.example"))
	r.name("evil.example", "127.0.0.1")
	r.b.names.mu.Lock()
	clear(r.b.names.names) // as if it had expired
	r.b.names.mu.Unlock()
	c.want(no, toName("evil.example", 80))

	// Of a mix only what is allowed is dialed, IPv4 first, each once.
	r.name("mix.example", "2a00::1", "127.0.0.1", "::ffff:10.0.0.1", "20.0.0.2", "fd00::1", "20.0.0.1", "20.0.0.2")
	c.want(ok, toName("mix.example", 80))
	c.roundTrip("x")
	if _, dialed := r.asked(); !slices.Equal(dialed, []string{"20.0.0.2:80", "20.0.0.1:80"}) {
		t.Errorf("dialed %v", dialed)
	}
}

func TestPrivateAndRegistries(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Registries: rules(t, "localhost:4873", "mirror.example"),
		Private: []Private{{rules(t, "db.corp:5432")[0], netip.MustParsePrefix("10.0.0.0/8")}}})
	r.serve("127.0.0.1:4873", echo)
	r.serve("10.1.1.1:5432", echo)
	r.serve("192.168.0.1:80", echo)
	r.name("localhost", "127.0.0.1", "::1")
	r.name("db.corp", "10.1.1.1")
	r.name("mirror.example", "192.168.0.1")
	r.connected(toName("localhost", 4873)).roundTrip("x")
	r.connected(toName("db.corp", 5432)).roundTrip("x")
	r.connected(toName("mirror.example", 80)).roundTrip("x")
	c := r.client()
	c.want(no, toName("localhost", 8000))
	c.want(no, toName("db.corp", 80))
	c.want(no, toAddr("10.1.1.1", 5432))
	c.want(no, toAddr("127.0.0.1", 4873))
	r.name("mirror.example", "169.254.169.254")
	r.b.names.mu.Lock()
	clear(r.b.names.names)
	r.b.names.mu.Unlock()
	c.want(no, toName("mirror.example", 80))
}

func TestHalfClose(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	// A server that answers when the client has ended, and one that ends first.
	r.serve("20.0.0.1:1", func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		io.WriteString(c, strings.ToUpper(string(b)))
	})
	var got []byte
	var heard sync.WaitGroup
	heard.Add(1)
	r.serve("20.0.0.1:2", func(c *net.TCPConn) {
		defer heard.Done()
		io.WriteString(c, "bye")
		c.CloseWrite()
		got, _ = io.ReadAll(c)
	})
	c := r.connected(toAddr("20.0.0.1", 1))
	io.WriteString(c, "hello")
	c.CloseWrite()
	if s := c.ended(); s != "HELLO" {
		t.Errorf("%q", s)
	}
	c = r.connected(toAddr("20.0.0.1", 2))
	if b, err := io.ReadAll(c); string(b) != "bye" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	io.WriteString(c, "still here")
	c.CloseWrite()
	heard.Wait()
	if string(got) != "still here" {
		t.Errorf("%q", got)
	}
	<-c.done
}

func TestResetReachesTheSandbox(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", func(c *net.TCPConn) {
		c.Read(make([]byte, 1))
		c.SetLinger(0)
	})
	c := r.connected(toAddr("20.0.0.1", 1))
	io.WriteString(c, "x")
	c.ended()
}

func TestSandboxGoesAway(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	gone := make(chan struct{})
	r.serve("20.0.0.1:1", func(c *net.TCPConn) {
		defer close(gone)
		for {
			if _, err := c.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	c := r.connected(toAddr("20.0.0.1", 1))
	c.Read(make([]byte, 1000))
	c.Close()
	<-c.done
	<-gone
}

func TestBigTransfers(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	const size = 32 << 20
	var wg sync.WaitGroup
	for range 4 {
		c := r.connected(toAddr("20.0.0.1", 1))
		sent, got := sha256.New(), sha256.New()
		wg.Go(func() {
			io.CopyN(io.MultiWriter(c, sent), rand.Reader, size)
			c.CloseWrite()
		})
		wg.Go(func() {
			if n, err := io.Copy(got, c); n != size || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			<-c.done
		})
		defer func() {
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Error("other bytes came back")
			}
		}()
	}
	wg.Wait()
	if u := r.outlet.Usage(); u.Up != 4*size || u.Down != 4*size || u.Open != 0 {
		t.Errorf("usage: %+v", u)
	}
}

func TestSetPolicy(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	r.name("a.example", "20.0.0.1")
	r.name("b.example", "20.0.0.1")
	a, b, raw := r.connected(toName("a.example", 1)), r.connected(toName("b.example", 1)),
		r.connected(toAddr("20.0.0.1", 1))
	waiting := r.client()
	waiting.want(ok, lookup("b.example"))
	r.outlet.SetPolicy(&Policy{Mode: Allowlist, Allow: rules(t, "a.example")})
	b.ended()
	raw.ended()
	a.roundTrip("still")
	waiting.want(no, lookup("b.example"))
	waiting.want(ok, lookup("a.example"))
	if got := r.outlet.TakeRefusals(); len(got) < 2 || !strings.Contains(r.log.String(), "verdict=policy") {
		t.Errorf("refusals: %+v", got)
	}
	r.outlet.SetPolicy(nil)
	a.ended()
	waiting.want(no, lookup("a.example"))
}

// A policy that changes while a connection is being made holds for it.
func TestSetPolicyWhileDialing(t *testing.T) {
	var r *rig
	r = newRig(t, &Policy{Mode: Public}, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			out, err := r.dial(ctx, network, addr)
			r.outlet.SetPolicy(&Policy{Mode: None})
			return out, err
		}
	})
	r.serve("20.0.0.1:1", echo)
	r.client().want(no, toAddr("20.0.0.1", 1))
}

func TestClose(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	a, waiting := r.connected(toAddr("20.0.0.1", 1)), r.client()
	waiting.want(no, lookup("127.1"))
	r.outlet.Close()
	r.outlet.Close()
	a.ended()
	waiting.ended()
	if n := r.b.Totals().Open; n != 0 {
		t.Errorf("%d are open", n)
	}
	r.client().ended() // closed at once
}

func TestContextEndsServe(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	ctx, cancel := context.WithCancel(context.Background())
	here, there := socketpair(t)
	defer here.Close()
	done := make(chan struct{})
	go func() { defer close(done); r.outlet.Serve(ctx, there) }()
	cancel()
	<-done
}

func TestHostileRequests(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	// What is no message, and what makes no sense, ends the connection.
	for name, b := range map[string]string{
		"huge":      "\xff\xff\xff\xff",
		"over":      "\x00\x00\x10\x01" + strings.Repeat("x", 4097),
		"garbage":   "\x00\x00\x00\x05\xff\xff\xff\xff\xff",
		"http":      "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"empty":     "\x00\x00\x00\x00",
		"truncated": "\x00\x00\x00\x04\x0a\x7fab",
		"not utf-8": "\x00\x00\x00\x05\x12\x03\x0a\x01\xff",
	} {
		c := r.client()
		io.WriteString(c, b)
		if reply, err := c.reply(); err == nil && reply.Code != isBroken {
			t.Errorf("%s: %v", name, reply)
		}
		c.ended()
	}
	for _, q := range []wire.NetRequest{{}, {Name: "a.example"}, {Port: 80}, {Name: "a.example", Port: 65536},
		{Name: "a.example", Address: []byte{1, 2, 3, 4}, Port: 1},
		{Address: []byte{1, 2, 3}, Port: 1}, {Address: make([]byte, 17), Port: 1}} {
		c := r.client()
		q.Kind = wire.NetConnect
		c.want(isBroken, q)
		c.ended()
	}
	// One that ends in the middle.
	c := r.client()
	io.WriteString(c, "\x00\x00\x00\x10abc")
	c.CloseWrite()
	c.ended()
	// Names that are none are refused, and shown without what they hide.
	c = r.client()
	for _, name := range []string{"\n\x1b[31m", "a b", strings.Repeat("a", 4000), "\u202e.example", "", "a..b",
		"fe80::1%\n"} {
		if m := c.want(no, lookup(name)); strings.ContainsFunc(m, func(c rune) bool { return c < ' ' || c > '~' }) ||
			len(m) > 300 {
			t.Errorf("%q: %q", name, m)
		}
	}
	for _, x := range r.outlet.TakeRefusals() {
		if len(x.Host) > 100 || strings.ContainsAny(x.Host, "\n\x1b ") {
			t.Errorf("a refusal says %q", x.Host)
		}
	}
	if resolved, dialed := r.asked(); len(resolved)+len(dialed) > 0 {
		t.Errorf("resolved %v, dialed %v", resolved, dialed)
	}
}

func TestManyClients(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "*.good.example")})
	r.serve("20.0.0.1:1", echo)
	for _, n := range []string{"a", "b", "c", "d"} {
		r.name(n+".good.example", "20.0.0.1")
	}
	var wg sync.WaitGroup
	for i := range 200 {
		c := r.client()
		wg.Go(func() {
			defer func() { c.Close() }()
			host := string(rune('a'+i%4)) + ".good.example"
			ask := func(q wire.NetRequest) (wire.NetReply, error) {
				a, err := c.try(q)
				if err != nil { // it had waited for longer than the outlet lets so many connections wait
					c.Close()
					c = r.client()
					a, err = c.try(q)
				}
				return a, err
			}
			for range 3 {
				if a, err := ask(lookup("x" + host + ".bad.example")); err != nil || a.Code != no {
					t.Errorf("%v, %v", a, err)
					return
				}
			}
			if a, err := ask(toName(host, 1)); err != nil || a.Code != ok {
				t.Errorf("%v, %v", a, err)
				return
			}
			b := make([]byte, 100<<10)
			rand.Read(b)
			go func() { c.Write(b); c.CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, b) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	go func() { // others look on, and change what stays the same
		for range 50 {
			r.outlet.TakeRefusals()
			r.outlet.Usage()
			r.outlet.SetPolicy(&Policy{Mode: Allowlist, Allow: rules(t, "*.good.example")})
			time.Sleep(time.Millisecond)
		}
	}()
	wg.Wait()
	if u := r.outlet.Usage(); u.Connected != 200 || u.Refused != 600 {
		t.Errorf("usage: %+v", u)
	}
	if resolved, _ := r.asked(); len(resolved) != 4 {
		t.Errorf("%d look-ups went out", len(resolved))
	}
}

func TestPipelinedBytesAreKept(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	c := r.client()
	wire.WriteNetRequest(c, toAddr("20.0.0.1", 1))
	io.WriteString(c, "early")
	if reply, err := c.reply(); err != nil || reply.Code != ok {
		t.Fatal(reply, err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "early" {
		t.Errorf("%q %v", b, err)
	}
}
