package egress

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// clientHello returns what a TLS client sends first.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		a.Close()
	}()
	var head [5]byte
	io.ReadFull(b, head[:])
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	_, err := io.ReadFull(b, body)
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	return append(head[:], body...)
}

// fragmented puts each few bytes of a hello into a record of their own.
func fragmented(hello []byte, size int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, hello[0], hello[1], hello[2], byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

func TestServerName(t *testing.T) {
	hello := clientHello(t, "a.example")
	other := clientHello(t, "b.example")
	for _, c := range []struct {
		name    string
		sent    []byte
		allowed bool // in an allowlist
	}{
		{"match", hello, true},
		{"other case", clientHello(t, "A.Example"), true},
		{"fragmented", fragmented(hello, 7), true},
		{"absent", clientHello(t, ""), true},
		{"other", other, false},
		{"other, fragmented", fragmented(other, 7), false},
		{"below", clientHello(t, "x.a.example"), false},
		{"garbage", append([]byte{0x16, 3, 1, 0, 100}, bytes.Repeat([]byte{0xff}, 100)...), false},
		{"over the bound", append([]byte{0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff},
			fragmented(make([]byte, 80<<10), 0x4000)...), false},
		{"http", []byte("GET / HTTP/1.1\r\n\r\n"), true},
		{"no TLS", []byte{0x16, 0x04, 1, 2, 3}, true},
		{"one byte", []byte{0x16}, true},
		{"nothing", nil, true},
	} {
		for _, mode := range []Mode{Allowlist, Public} {
			p := &Policy{Mode: mode, Allow: rules(t, "a.example", "20.0.0.1")}
			if got := through443(t, p, c.sent, "a.example"); got != (c.allowed || mode == Public) {
				t.Errorf("%s in %s: came through is %v", c.name, mode, got)
			}
		}
		if !through443(t, &Policy{Mode: Allowlist, Allow: rules(t, "20.0.0.1")}, c.sent, "20.0.0.1") {
			t.Errorf("%s by address did not come through", c.name)
		}
	}
}

// through443 reports whether exactly what was sent comes to the server; else
// nothing may.
func through443(t *testing.T, p *Policy, sent []byte, host string) bool {
	t.Helper()
	r := newRig(t, p)
	got := make(chan string, 1)
	r.serve("20.0.0.1:443", func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	r.name("a.example", "20.0.0.1")
	c := r.connected(toName(host, 443))
	for b := sent; len(b) > 0; b = b[min(len(b), 50<<10):] {
		c.Write(b[:min(len(b), 50<<10)])
	}
	c.CloseWrite()
	c.ended()
	s := <-got
	switch s {
	case string(sent):
		return true
	case "":
		if len(r.outlet.TakeRefusals()) == 0 || !strings.Contains(r.log.String(), `verdict="server name"`) {
			t.Errorf("nobody is told: %s", r.log.String())
		}
		return false
	}
	t.Errorf("a part came through: %d of %d bytes", len(s), len(sent))
	return false
}

// A client that waits after its first byte could go on with any name.
func TestServerNameTooLate(t *testing.T) {
	hello := clientHello(t, "b.example")
	for n := 1; n < len(hello); n += 9 {
		o := &helloReader{Conn: reader{Reader: iotest.ErrReader(os.ErrDeadlineExceeded)}, data: hello[:n]}
		if name, isTLS, err := o.serverName(); name != "" || !isTLS || err == nil {
			t.Errorf("after %d bytes: %q, %v, %v", n, name, isTLS, err)
		}
	}
}

func TestServerNameRefusal(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "a.example")})
	r.serve("20.0.0.1:443", echo)
	r.name("a.example", "20.0.0.1")
	c := r.connected(toName("a.example", 443))
	c.Write(clientHello(t, "b.example"))
	c.ended()
	got := r.outlet.TakeRefusals()
	if len(got) != 1 || got[0].Host != "b.example" || got[0].Port != 443 ||
		!strings.Contains(got[0].Reason, "a.example") {
		t.Errorf("%+v", got)
	}
}

// What was let pass in public is closed when the policy becomes an allowlist.
func TestServerNameThenAllowlist(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:443", echo)
	r.name("a.example", "20.0.0.1")
	c := r.connected(toName("a.example", 443))
	c.roundTrip(string(clientHello(t, "b.example")))
	if !r.has("b.example") {
		t.Error("the other name is not known")
	}
	r.outlet.SetPolicy(&Policy{Mode: Allowlist, Allow: rules(t, "a.example")})
	c.ended()
	if !strings.Contains(r.log.String(), "server_name=b.example") {
		t.Errorf("the log does not say it: %s", r.log.String())
	}
}

func (r *rig) has(other string) bool {
	r.outlet.mu.Lock()
	defer r.outlet.mu.Unlock()
	for l := range r.outlet.conns {
		if l.otherName == other {
			return true
		}
	}
	return false
}

func TestServerSpeaksFirst(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "a.example")})
	r.serve("20.0.0.1:25", func(c *net.TCPConn) {
		io.WriteString(c, "220 hello\r\n")
		io.Copy(c, c)
	})
	r.name("a.example", "20.0.0.1")
	begun := time.Now()
	c := r.connected(toName("a.example", 25))
	b := make([]byte, 11)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "220 hello\r\n" || time.Since(begun) >= helloTimeout {
		t.Errorf("%q, %v after %v", b, err, time.Since(begun))
	}
	c.roundTrip("EHLO\r\n")
}

func TestRealTLS(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "example.com")})
	cert := certificate(t, "example.com")
	r.serve("20.0.0.1:443", func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		io.Copy(s, s)
		s.Close()
	})
	r.name("example.com", "20.0.0.1")
	c := r.connected(toName("example.com", 443))
	s := tls.Client(c, &tls.Config{ServerName: "example.com", InsecureSkipVerify: true})
	if _, err := io.WriteString(s, "hello"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(s, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

type reader struct {
	net.Conn
	io.Reader
}

func (r reader) Read(b []byte) (int, error) { return r.Reader.Read(b) }

func FuzzServerName(f *testing.F) {
	hello := clientHello(f, "a.example")
	f.Add(hello, 3)
	f.Add(fragmented(hello, 9), 100)
	f.Add([]byte{0x16}, 1)
	f.Add([]byte("GET / HTTP/1.1\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, first int) {
		n := max(0, min(first, len(b)))
		o := &helloReader{Conn: reader{Reader: bytes.NewReader(b[n:])}, data: bytes.Clone(b[:n])}
		name, isTLS, err := o.serverName()
		if !bytes.HasPrefix(b, o.data) || len(o.data) < n {
			t.Fatal("what was read is not what was sent")
		}
		if name != "" && (!isTLS || err != nil) {
			t.Fatalf("%q, %v, %v", name, isTLS, err)
		}
		if isTLS && !bytes.HasPrefix(b, []byte{0x16, 3}) {
			t.Fatal("that is no TLS")
		}
	})
}
