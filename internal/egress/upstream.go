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
	proxyFor := c.ProxyFunc()
	return func(host string, port uint16) (*url.URL, error) {
		u := url.URL{Scheme: "https", Host: hostPort(host, port)}
		if port == 80 {
			u.Scheme = "http"
		}
		return proxyFor(&u)
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

// dialThrough connects to target, a host:port, through the proxy at u. The proxy's own address
// is not checked against the policy: the operator set it. Errors do not contain it.
func dialThrough(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
	switch u.Scheme {
	case "http", "https":
		return dialHTTP(ctx, dial, u, target)
	case "socks5", "socks5h":
		return dialSOCKS(ctx, dial, u, target)
	}
	return nil, fmt.Errorf("the server's proxy has the scheme %q; http, https and socks5 are known", u.Scheme)
}

func dialSOCKS(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
	var auth *proxy.Auth
	if u.User != nil {
		password, _ := u.User.Password()
		auth = &proxy.Auth{User: u.User.Username(), Password: password}
	}
	// The connection that the SOCKS dialer returns has no CloseWrite. The one to the proxy,
	// which it wraps, has.
	var proxyConn net.Conn
	d, err := proxy.SOCKS5("tcp", proxyAddress(u, "1080"), auth,
		dialFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			proxyConn = c
			return c, err
		}))
	if err != nil {
		return nil, err
	}
	if _, err := d.(proxy.ContextDialer).DialContext(ctx, "tcp", target); err != nil {
		if proxyConn != nil {
			proxyConn.Close()
		}
		return nil, err
	}
	return proxyConn, nil
}

func proxyAddress(u *url.URL, port string) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

func dialHTTP(ctx context.Context, dial dialFunc, u *url.URL, target string) (net.Conn, error) {
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
	out, err := requestTunnel(ctx, c, u, target)
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

// requestTunnel sends a CONNECT request for target to the proxy at the other end of c.
func requestTunnel(ctx context.Context, c net.Conn, u *url.URL, target string) (net.Conn, error) {
	if u.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: u.Hostname()})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	request := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if u.User != nil {
		password, _ := u.User.Password()
		request += "Proxy-Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, request+"\r\n"); err != nil {
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
		return &bufferedConn{Conn: c, buffered: head}, nil
	}
	return c, nil
}

// proxyError is the HTTP status of a proxy that refused a CONNECT request.
type proxyError int

func (e proxyError) Error() string { return fmt.Sprintf("the server's proxy answered %d", int(e)) }

// bufferedConn is a connection whose first bytes were read already: Read returns head first.
type bufferedConn struct {
	net.Conn
	buffered []byte
}

func (a *bufferedConn) Read(b []byte) (int, error) {
	if len(a.buffered) > 0 {
		n := copy(b, a.buffered)
		a.buffered = a.buffered[n:]
		return n, nil
	}
	return a.Conn.Read(b)
}

func (a *bufferedConn) CloseWrite() error {
	closeWrite(a.Conn)
	return nil
}

func (a *bufferedConn) CloseRead() error {
	closeRead(a.Conn)
	return nil
}

// dialAny tries the addresses in order, and divides the time that is left between them.
func dialAny(ctx context.Context, addrs []netip.Addr, dial func(context.Context, netip.Addr) (net.Conn,
	error)) (net.Conn, netip.Addr, error) {
	var firstErr error
	for i, a := range addrs {
		attemptCtx, cancel := attemptContext(ctx, len(addrs)-i)
		c, err := dial(attemptCtx, a)
		cancel()
		if err == nil {
			return c, a, nil
		}
		firstErr = cmp.Or(firstErr, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, netip.Addr{}, cmp.Or(firstErr, errors.New("no address"))
}

// attemptContext returns a context for the next of n attempts, with an equal share of the time that
// is left, but at least two seconds.
func attemptContext(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || n < 2 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(n), 2*time.Second))
}
