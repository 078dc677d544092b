package egress

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
)

func certificate(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// proxied is a proxy of the test. It echoes instead of connecting, and begins
// with a greeting in the same write as its answer.
type proxied struct {
	mu  sync.Mutex
	got []string
}

func (p *proxied) note(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, s)
}

func (p *proxied) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func (p *proxied) http(c *net.TCPConn) {
	b := bufio.NewReader(c)
	q, err := http.ReadRequest(b)
	if err != nil {
		return
	}
	p.note(q.Method + " " + q.RequestURI + " " + q.Header.Get("Proxy-Authorization"))
	if strings.HasPrefix(q.RequestURI, "forbidden.") {
		io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!")
		return
	}
	if strings.HasPrefix(q.RequestURI, "endless.") {
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := io.WriteString(c, "X: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
				return
			}
		}
	}
	io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\nhi!")
	io.Copy(c, b)
}

func (p *proxied) socks(c *net.TCPConn) {
	b := make([]byte, 300)
	io.ReadFull(c, b[:2])
	io.ReadFull(c, b[:b[1]])
	c.Write([]byte{5, 2})
	io.ReadFull(c, b[:2])
	user := make([]byte, b[1])
	io.ReadFull(c, user)
	io.ReadFull(c, b[:1])
	password := make([]byte, b[0])
	io.ReadFull(c, password)
	c.Write([]byte{1, 0})
	io.ReadFull(c, b[:4])
	var host string
	switch b[3] {
	case 1:
		io.ReadFull(c, b[:4])
		host = net.IP(b[:4]).String()
	case 3:
		io.ReadFull(c, b[:1])
		n := b[0]
		io.ReadFull(c, b[:n])
		host = string(b[:n])
	}
	io.ReadFull(c, b[:2])
	p.note(host + ":" + itoa(binary.BigEndian.Uint16(b)) + " " + string(user) + ":" + string(password))
	if strings.HasPrefix(host, "forbidden.") {
		c.Write([]byte{5, 2, 0, 1, 0, 0, 0, 0, 0, 0})
		return
	}
	c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 'h', 'i', '!'})
	io.Copy(c, c)
}

func itoa(n uint16) string { return strings.TrimPrefix(hostPort("", n), ":") }

func useProxy(s string) func(*Config) {
	return func(c *Config) {
		c.Proxy = func(host string, port uint16) (*url.URL, error) {
			if host == "direct.example" {
				return nil, nil
			}
			return url.Parse(s)
		}
	}
}

func greeted(t *testing.T, c *client) {
	t.Helper()
	b := make([]byte, 3)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hi!" {
		t.Fatalf("%q, %v", b, err)
	}
	c.roundTrip("hello")
	c.CloseWrite()
	c.ended()
}

func TestUpstreamProxy(t *testing.T) {
	for scheme, want := range map[string][]string{
		"http": {"CONNECT named.example:443 Basic dTpwOnc=", "CONNECT 20.0.0.5:443 Basic dTpwOnc=",
			"CONNECT 20.0.0.6:22 Basic dTpwOnc=", "CONNECT forbidden.example:443 Basic dTpwOnc="},
		"socks5": {"named.example:443 u:p:w", "20.0.0.5:443 u:p:w", "20.0.0.6:22 u:p:w", "forbidden.example:443 u:p:w"},
	} {
		t.Run(scheme, func(t *testing.T) {
			var p proxied
			r := newRig(t, &Policy{Mode: Public, Allow: rules(t, "named.example:443", "forbidden.example",
				"direct.example")},
				useProxy(scheme+"://u:p%3Aw@proxy.corp:3128"))
			r.serve("proxy.corp:3128", map[string]func(*net.TCPConn){"http": p.http, "socks5": p.socks}[scheme])
			r.serve("20.0.0.7:443", echo)
			r.name("unlisted.example", "10.0.0.1", "20.0.0.5")
			r.name("inner.example", "10.0.0.1")
			r.name("direct.example", "20.0.0.7")
			greeted(t, r.connected(toName("named.example", 443)))
			greeted(t, r.connected(toName("unlisted.example", 443)))
			greeted(t, r.connected(toAddr("20.0.0.6", 22)))
			r.connected(toName("direct.example", 443)).roundTrip("x")
			c := r.client()
			c.want(no, toName("inner.example", 443))
			c.want(no, toAddr("127.0.0.1", 22))
			c.want(noName, toName("unknown.example", 443))
			c.want(ok, lookup("named.example")) // which has no name here
			c.want(noName, lookup("unknown.example"))
			m := c.want(unreachable, toName("forbidden.example", 443))
			if strings.Contains(m, "corp") || strings.Contains(m, "3128") {
				t.Errorf("the sandbox learns about the proxy: %q", m)
			}
			if got := p.asked(); !slices.Equal(got, want) {
				t.Errorf("the proxy was asked for %q, want %q", got, want)
			}
			if strings.Contains(r.log.String(), "p:w") {
				t.Error("the log has the proxy's password")
			}
			r.outlet.SetPolicy(&Policy{Mode: Allowlist})
			if got, _ := r.asked(); slices.Contains(got, "named.example") {
				t.Error("what the proxy resolves was resolved here")
			}
		})
	}
}

func TestUpstreamProxyPolicy(t *testing.T) {
	var p proxied
	r := newRig(t, &Policy{Mode: Allowlist, Allow: rules(t, "named.example", "endless.example")},
		useProxy("http://proxy.corp:3128"))
	r.serve("proxy.corp:3128", p.http)
	c := r.connected(toName("named.example", 443))
	c.Read(make([]byte, 3))
	c.roundTrip("x")
	r.outlet.SetPolicy(&Policy{Mode: Public})
	c.ended() // given to the proxy as a name, which is for listed ones
	r.outlet.SetPolicy(&Policy{Mode: Allowlist, Allow: rules(t, "endless.example")})
	r.client().want(unreachable, toName("endless.example", 443))
	r.client().want(no, toName("named.example", 443))
}

func TestProxyOverTLS(t *testing.T) {
	cert := certificate(t, "proxy.corp")
	pool := x509.NewCertPool()
	leaf, _ := x509.ParseCertificate(cert.Certificate[0])
	pool.AddCert(leaf)
	a, b := net.Pipe()
	go func() {
		s := tls.Server(b, &tls.Config{Certificates: []tls.Certificate{cert}})
		s.Handshake()
		s.Close()
	}()
	// Its certificate is not one that this machine trusts.
	u, _ := url.Parse("https://proxy.corp:3128")
	if _, err := requestTunnel(t.Context(), a, u, "a.example:443"); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
	a.Close()
}

func TestProxyError(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"unknown scheme": useProxy("ftp://proxy.corp"),
		"nobody there":   useProxy("http://proxy.corp:1"),
		"no answer": func(c *Config) {
			c.Proxy = func(string, uint16) (*url.URL, error) {
				return nil,
					errors.New("bad")
			}
		},
	} {
		r := newRig(t, &Policy{Mode: Public}, change)
		r.serve("20.0.0.1:1", echo)
		if reply := r.client().ask(toAddr("20.0.0.1", 1)); reply.Code != wire.NetUnreachable {
			t.Errorf("%s: %v", name, reply)
		}
		if _, dialed := r.asked(); slices.Contains(dialed, "20.0.0.1:1") {
			t.Errorf("%s: went past the proxy", name)
		}
	}
}

func TestEnvironmentProxy(t *testing.T) {
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy",
		"no_proxy", "all_proxy"} {
		t.Setenv(k, "")
	}
	check := func(host string, port uint16, want string) {
		t.Helper()
		u, err := environmentProxy()(host, port)
		got := ""
		if u != nil {
			got = u.String()
		}
		if err != nil || got != want {
			t.Errorf("%s:%d: %q, %v; want %q", host, port, got, err, want)
		}
	}
	check("a.example", 443, "")
	t.Setenv("HTTPS_PROXY", "http://s.example:1")
	t.Setenv("HTTP_PROXY", "http://h.example:1")
	t.Setenv("NO_PROXY", "b.example,10.0.0.0/8")
	check("a.example", 443, "http://s.example:1")
	check("a.example", 22, "http://s.example:1")
	check("a.example", 80, "http://h.example:1")
	check("x.b.example", 443, "")
	check("10.1.2.3", 443, "")
	check("2a00::1", 443, "http://s.example:1")
	check("localhost", 443, "")
	t.Setenv("HTTPS_PROXY", "")
	t.Setenv("ALL_PROXY", "socks5://all.example:1")
	check("a.example", 443, "socks5://all.example:1")
	check("a.example", 80, "http://h.example:1")
	check("b.example", 443, "")
}
