package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// environmentProxy returns a function that returns the proxy for a host and port by the
// environment of the server, as other programs do: HTTP_PROXY for port 80, HTTPS_PROXY for
// other ports, ALL_PROXY where these are not set, and none for hosts in NO_PROXY.
func environmentProxy() func(host string, port uint16) (*url.URL, error) {
	c := httpproxy.FromEnvironment()
	all := cmp.Or(os.Getenv("all_proxy"), os.Getenv("ALL_PROXY"))
	c.HTTPProxy, c.HTTPSProxy = cmp.Or(c.HTTPProxy, all), cmp.Or(c.HTTPSProxy, all)
	c.CGI = false
	of := c.ProxyFunc()
	return func(host string, port uint16) (*url.URL, error) {
		u := url.URL{Scheme: "https", Host: hostPort(host, port)}
		if port == 80 {
			u.Scheme = "http"
		}
		return of(&u)
	}
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// DialContext makes dialFunc a proxy.ContextDialer.
func (d dialFunc) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return d(ctx, network, addr)
}

func (d dialFunc) Dial(network, addr string) (net.Conn, error) {
	return d(context.Background(), network, addr)
}

// through connects to target, a host:port, through the proxy at u. The proxy's own address
// is not checked against the policy: the operator set it. Errors do not contain it.
func through(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
	switch u.Scheme {
	case "http", "https":
		return throughHTTP(ctx, dial, u, target)
	case "socks5", "socks5h":
		return throughSOCKS(ctx, dial, u, target)
	}
	return nil, fmt.Errorf("the server's proxy has the scheme %q; http, https and socks5 are known", u.Scheme)
}

func throughSOCKS(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
	var auth *proxy.Auth
	if u.User != nil {
		password, _ := u.User.Password()
		auth = &proxy.Auth{User: u.User.Username(), Password: password}
	}
	// The connection that the SOCKS dialer returns has no CloseWrite. The one to the proxy,
	// which it wraps, has.
	var below net.Conn
	d, err := proxy.SOCKS5("tcp", proxyAddress(u, "1080"), auth,
		dialFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			below = c
			return c, err
		}))
	if err != nil {
		return nil, err
	}
	if _, err := d.(proxy.ContextDialer).DialContext(ctx, "tcp", target); err != nil {
		if below != nil {
			below.Close()
		}
		return nil, err
	}
	return below, nil
}

func proxyAddress(u *url.URL, port string) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

func throughHTTP(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	c, err := dial(ctx, "tcp", proxyAddress(u, port))
	if err != nil {
		return nil, err
	}
	// ctx bounds the connection until it is returned to the caller.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	out, err := connect(ctx, c, u, target)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return out, nil
}

// maxProxyHeader bounds the header of a proxy's response, in bytes.
const maxProxyHeader = 16 << 10

// connect sends a CONNECT request for target to the proxy at the other end of c.
func connect(ctx context.Context, c net.Conn, u *url.URL, target string) (net.Conn, error) {
	if u.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: u.Hostname()})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	ask := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if u.User != nil {
		password, _ := u.User.Password()
		ask += "Proxy-Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, ask+"\r\n"); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(io.LimitReader(c, maxProxyHeader), maxProxyHeader)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, proxyError(resp.StatusCode)
	}
	if n := r.Buffered(); n > 0 { // the target sent its first bytes with the proxy's response
		head, _ := r.Peek(n)
		return &ahead{Conn: c, head: head}, nil
	}
	return c, nil
}

// proxyError is the HTTP status with which a proxy refused a CONNECT request.
type proxyError int

func (e proxyError) Error() string { return fmt.Sprintf("the server's proxy answered %d", int(e)) }

// ahead is a connection whose first bytes were read already: Read returns head first.
type ahead struct {
	net.Conn
	head []byte
}

func (a *ahead) Read(b []byte) (int, error) {
	if len(a.head) > 0 {
		n := copy(b, a.head)
		a.head = a.head[n:]
		return n, nil
	}
	return a.Conn.Read(b)
}

func (a *ahead) CloseWrite() error {
	closeWrite(a.Conn)
	return nil
}

func (a *ahead) CloseRead() error {
	closeRead(a.Conn)
	return nil
}

// dialAny tries the addresses in order, and divides the time that is left between them.
func dialAny(ctx context.Context, addrs []netip.Addr, dial func(context.Context, netip.Addr) (net.Conn,
	error)) (net.Conn, netip.Addr, error) {
	var first error
	for i, a := range addrs {
		try, cancel := share(ctx, len(addrs)-i)
		c, err := dial(try, a)
		cancel()
		if err == nil {
			return c, a, nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, netip.Addr{}, cmp.Or(first, errors.New("no address"))
}

// share returns a context for the next of n attempts, with an equal share of the time that
// is left, but at least two seconds.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n < 2 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, max(time.Until(end)/time.Duration(n), 2*time.Second))
}
