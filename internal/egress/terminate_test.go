package egress

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// terminator answers each connection to a.example:443 with what it read, in capitals, and asks the host nothing.
type terminator struct {
	t      *testing.T
	mu     sync.Mutex
	served int
	hold   chan struct{} // connections last until it is closed; nil: they end at once
}

func (f *terminator) Terminates(o Owner, host string, port uint16) bool {
	if o != (Owner{"user:ann", "s1", "box1"}) {
		f.t.Errorf("asked for %+v", o)
	}
	return host == "a.example" && port == 443
}

func (f *terminator) Serve(o Owner, host string, port uint16, in, out net.Conn) {
	defer in.Close()
	defer out.Close()
	f.mu.Lock()
	f.served++
	f.mu.Unlock()
	if f.hold != nil {
		<-f.hold
		return
	}
	hello := clientHello(f.t, "a.example")
	got := make([]byte, len(hello))
	if _, err := io.ReadFull(in, got); err != nil || got[0] != recordHandshake || host != "a.example" || port != 443 {
		f.t.Errorf("Serve has %.20q, %v, %s:%d", got, err, host, port)
	}
	io.WriteString(in, "terminated")
}

func (f *terminator) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served
}

// TLS is ended for a host of the Terminator whose name TLS has, too, and for nothing else; and only after the policy
// has allowed the host, whose checked address was dialed.
func TestTerminate(t *testing.T) {
	hello := clientHello(t, "a.example")
	for what, test := range map[string]struct {
		to    string
		port  uint32
		sent  []byte
		ended bool
	}{
		"its name":            {"a.example", 443, hello, true},
		"in pieces":           {"a.example", 443, fragmented(hello, 9), true},
		"in capitals":         {"A.EXAMPLE.", 443, clientHello(t, "A.Example"), true},
		"another name":        {"a.example", 443, clientHello(t, "b.example"), false},
		"a name below":        {"a.example", 443, clientHello(t, "x.a.example"), false},
		"no name":             {"a.example", 443, clientHello(t, ""), false},
		"no TLS":              {"a.example", 443, []byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), false},
		"another port":        {"a.example", 80, hello, false},
		"another host":        {"b.example", 443, hello, false},
		"an address":          {"20.0.0.1", 443, hello, false},
		"its name, elsewhere": {"b.example", 443, clientHello(t, "a.example"), false},
		"a hello that is none": {"a.example", 443, append([]byte{0x16, 3, 1, 0, 100}, bytes.Repeat([]byte{0xff},
			100)...), false},
	} {
		f := &terminator{t: t}
		r := newRig(t, &Policy{Mode: Public}, func(c *Config) { c.Terminator = f })
		for _, port := range []string{"80", "443"} {
			r.serve("20.0.0.1:"+port, echo)
		}
		r.name("a.example", "20.0.0.1")
		r.name("b.example", "20.0.0.1")
		to := toName(test.to, test.port)
		if test.to == "20.0.0.1" {
			to = toAddr(test.to, test.port)
		}
		c := r.connected(to)
		c.Write(test.sent)
		c.CloseWrite()
		got := c.ended()
		if test.ended != (got == "terminated") || !test.ended && got != string(test.sent) ||
			test.ended != (f.count() == 1) {
			t.Errorf("%s: served %d, %.40q", what, f.count(), got)
		}
		if u := r.outlet.Usage(); u.Up < uint64(len(test.sent)) || u.Open != 0 {
			t.Errorf("%s: counted %+v", what, u)
		}
	}

	f := &terminator{t: t}
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "b.example")}, func(c *Config) { c.Terminator = f })
	r.name("a.example", "20.0.0.1")
	r.client().want(no, toName("a.example", 443))
	r = newRig(t, &Policy{Mode: Public}, func(c *Config) { c.Terminator = f })
	r.name("a.example", "127.0.0.1") // it was another one before
	r.client().want(no, toName("a.example", 443))
	if _, dialed := r.asked(); len(dialed) > 0 || f.count() > 0 {
		t.Errorf("dialed %v, served %d", dialed, f.count())
	}
}

// Connections whose TLS is ended have a limit, are cut like others, and end with their outlet.
func TestTerminatedConnections(t *testing.T) {
	f := &terminator{t: t, hold: make(chan struct{})}
	r := newRig(t, &Policy{Mode: Public}, func(c *Config) { c.Terminator = f })
	r.serve("20.0.0.1:443", func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	r.name("a.example", "20.0.0.1")
	hello := clientHello(t, "a.example")
	var all []*client
	for range maxTerminated {
		c := r.connected(toName("a.example", 443))
		c.Write(hello)
		all = append(all, c)
	}
	eventually(t, "all are served", func() bool { return f.count() == maxTerminated })
	over := r.connected(toName("a.example", 443))
	over.Write(hello)
	if got := over.ended(); got != "" || f.count() != maxTerminated {
		t.Errorf("one more: %q, served %d", got, f.count())
	}
	r.outlet.SetPolicy(nil)
	all[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(all[0]); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("a change of the policy does not end them")
	}
	close(f.hold)
	r.outlet.Close()
}

// flooder is a Terminator that sends the host more than the sandbox has sent, until it fails.
type flooder struct {
	*terminator
	sent chan int
}

func (f flooder) Serve(_ Owner, _ string, _ uint16, in, out net.Conn) {
	defer in.Close()
	defer out.Close()
	sent := 0
	for range 1000 {
		n, err := out.Write(make([]byte, 4<<10))
		if sent += n; err != nil {
			break
		}
	}
	f.sent <- sent
}

// What a host gets counts, not what the sandbox has sent for it.
func TestBytesOfTerminatedConnections(t *testing.T) {
	const limit = 100_000
	f := flooder{&terminator{t: t}, make(chan int, 1)}
	r := newRig(t, &Policy{Mode: Public}, func(c *Config) { c.Terminator = f; c.Limits.Bytes = limit })
	r.serve("20.0.0.1:443", func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	r.name("a.example", "20.0.0.1")
	c := r.connected(toName("a.example", 443))
	c.Write(clientHello(t, "a.example"))
	if sent := <-f.sent; sent == 0 || sent > limit {
		t.Errorf("the host got %d bytes", sent)
	}
	c.ended()
	if u := r.outlet.Usage(); u.Up < limit {
		t.Errorf("counted %+v", u)
	}
}
