package conn

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// crowdedServer serves over TCP with few connections. It lets in those with the token,
// and anyone to /healthz.
func crowdedServer(t *testing.T, most, each int) (addr string, c *Limiter) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = NewLimiterOf(most, each)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthz":
		case r.Header.Get("Authorization") != "Bearer ann's":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			defer MarkServing(r)()
		}
	})
	srv := &http.Server{Handler: handler, ConnContext: c.ConnContext}
	over := make(chan struct{})
	go func() { defer close(over); _ = srv.Serve(c.Listener(l)) }()
	t.Cleanup(func() { srv.Close(); <-over })
	return l.Addr().String(), c
}

// from dials from an address of loopback.
func from(t *testing.T, ip, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: 10 * time.Second}
	c, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// get sends a request over a connection that is open.
func get(c net.Conn, path, header string) (int, error) {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, header)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}

// Who opens connections without end ends their own, and nobody else's: neither
// those with a token from the same address, nor strangers of another.
func TestConnectionsAreBounded(t *testing.T) {
	const token = "Authorization: Bearer ann's\r\n"
	addr, c := crowdedServer(t, 60, 20)
	ann := from(t, "127.0.0.1", addr)
	if code, err := get(ann, "/v1/tools", token); err != nil || code == 401 {
		t.Fatalf("ann: %d, %v", code, err)
	}
	stranger := from(t, "127.0.0.9", addr)
	for range 200 {
		from(t, "127.0.0.1", addr)
	}
	for a := range 4 { // each has fewer than one address may
		for range 15 {
			from(t, fmt.Sprintf("127.0.0.%d", 2+a), addr)
		}
	}
	if code, err := get(from(t, "127.0.0.1", addr), "/healthz", ""); err != nil || code != 200 {
		t.Errorf("a new one from the flooding address: %d, %v", code, err)
	}
	if code, err := get(stranger, "/healthz", ""); err != nil || code != 200 {
		t.Errorf("a stranger of another address: %d, %v", code, err)
	}
	if code, err := get(ann, "/v1/tools", token); err != nil || code == 401 {
		t.Errorf("ann was thrown out: %d, %v", code, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 60 || c.idle.Len() != 1 {
		t.Errorf("%d are open, %d rest", c.open, c.idle.Len())
	}
	for from, l := range c.unauthenticated {
		if l.Len() > 20 {
			t.Errorf("%d strangers of %s", l.Len(), from)
		}
	}
}

// A token takes no place for good: connections that rest go before others' new
// ones are refused; those that serve a request stay.
func TestRestingConnectionsGiveWay(t *testing.T) {
	const token = "Authorization: Bearer ann's\r\n"
	addr, c := crowdedServer(t, 20, 20)
	for range 60 {
		if code, err := get(from(t, "127.0.0.1", addr), "/v1/tools", token); err != nil || code == 401 {
			t.Fatalf("ann: %d, %v", code, err)
		}
	}
	if code, err := get(from(t, "127.0.0.2", addr), "/healthz", ""); err != nil || code != 200 {
		t.Errorf("another: %d, %v", code, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 20 {
		t.Errorf("%d are open", c.open)
	}
}

// Connections that serve requests stay, and where all do, a new one is refused.
func TestServingConnectionsStay(t *testing.T) {
	c := NewLimiterOf(16, 16)
	pipe := func() net.Conn { a, b := net.Pipe(); t.Cleanup(func() { b.Close() }); return a }
	var rest []func()
	for range 16 {
		n := c.admit(pipe())
		r, _ := http.NewRequestWithContext(context.WithValue(t.Context(), connKey{}, n), "GET", "/", nil)
		rest = append(rest, MarkServing(r))
	}
	if c.admit(pipe()) != nil {
		t.Error("one more than there may be")
	}
	rest[3]()
	n := c.admit(pipe())
	if n == nil || c.open != 16 {
		t.Fatalf("no place where one rests; %d open", c.open)
	}
	n.Close()
	n.Close() // twice is once
	rest[3]() // of one that has gone
	if c.open != 15 || len(c.unauthenticated) != 0 || c.idle.Len() != 0 {
		t.Errorf("%d open, %d addresses, %d rest", c.open, len(c.unauthenticated), c.idle.Len())
	}
}

func TestNetworks(t *testing.T) {
	for a, want := range map[string]string{"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64"} {
		if got := addressPrefix(&net.TCPAddr{IP: net.ParseIP(a)}); got.String() != want {
			t.Errorf("%s counts as %s, not %s", a, got, want)
		}
	}
}

// A proxy may have any number of connections without a token, since many clients share its address; the number of all
// is bounded.
func TestProxiesConnections(t *testing.T) {
	addr, c := crowdedServer(t, 60, 5)
	c.mu.Lock()
	c.isProxy = func(a net.Addr) bool { return a.(*net.TCPAddr).IP.String() == "127.0.0.2" }
	c.mu.Unlock()
	open := func(ip string) (held []net.Conn) {
		for range 40 {
			held = append(held, from(t, ip, addr))
		}
		if code, err := get(held[39], "/healthz", ""); err != nil || code != 200 { // all have been accepted
			t.Errorf("%s: %d, %v", ip, code, err)
		}
		return held
	}
	if code, err := get(open("127.0.0.2")[0], "/healthz", ""); err != nil || code != 200 {
		t.Errorf("the first of the proxy: %d, %v", code, err)
	}
	if code, err := get(open("127.0.0.1")[0], "/healthz", ""); err == nil {
		t.Errorf("the first of a flood: %d", code)
	}
	open("127.0.0.2")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 60 {
		t.Errorf("%d are open", c.open)
	}
}

// A connection with TLS is the one below it.
func TestSecuredConnections(t *testing.T) {
	c := NewLimiterOf(16, 16)
	a, b := net.Pipe()
	defer b.Close()
	n := c.admit(a)
	ctx := c.ConnContext(t.Context(), tls.Server(n, &tls.Config{}))
	r, err := http.NewRequestWithContext(ctx, "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := MarkServing(r)
	if len(c.unauthenticated) != 0 {
		t.Error("a connection that serves a request counts as one without a token")
	}
	if done(); c.idle.Len() != 1 {
		t.Error("the connection is not idle")
	}
	n.Close()
}
