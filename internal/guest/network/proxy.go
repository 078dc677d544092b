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
	"strconv"
	"time"

	"sandlot/internal/agent/wire"
)

// serveProxy serves a program that connected to the proxy. The first byte shows whether the
// program speaks SOCKS5 or HTTP.
func (n *Network) serveProxy(ctx context.Context, c *net.TCPConn) {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	r := bufio.NewReaderSize(c, 16<<10)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	p := &client{TCPConn: c, r: r}
	if first[0] == 5 {
		n.serveSOCKS(ctx, p)
	} else {
		n.serveHTTP(ctx, p)
	}
}

// client is the connection of a program to the proxy. The reader may have read ahead.
type client struct {
	*net.TCPConn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c *client) Read(p []byte) (int, error) { return c.r.Read(p) }

// requestFor returns the request for a host and port that a program gave to the proxy. When
// the program gave an address that stands for a name, the request is for the name.
func (n *Network) requestFor(host string, port uint64) wire.NetRequest {
	if a, err := netip.ParseAddr(host); err == nil {
		return n.request(netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return wire.NetRequest{Kind: wire.NetConnect, Name: host, Port: uint32(port)}
}

// serveSOCKS serves CONNECT of SOCKS version 5 (RFC 1928), without authentication.
func (n *Network) serveSOCKS(ctx context.Context, c *client) {
	request, err := n.readSOCKS(c)
	if err != nil {
		return
	}
	out, err := n.host.connect(ctx, request, n.end(c))
	code := byte(0)
	switch refused, ok := errors.AsType[refusal](err); {
	case err != nil && !ok:
		code = 1 // general failure
	case refused.Code == wire.NetRefused || refused.Code == wire.NetInvalid:
		code = 2 // not allowed by the rules
	case err != nil:
		code = 4 // host unreachable
	}
	c.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0})
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Time{})
	copyBuffered(c, out)
}

// readSOCKS reads the request of a SOCKS client.
func (n *Network) readSOCKS(c *client) (request wire.NetRequest, err error) {
	var b [260]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return request, err
	}
	if _, err := io.ReadFull(c, b[:b[1]]); err != nil { // authentication methods
		return request, err
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return request, err
	}
	if _, err := io.ReadFull(c, b[:4]); err != nil {
		return request, err
	}
	if b[1] != 1 {
		c.Write([]byte{5, 7, 0, 1, 0, 0, 0, 0, 0, 0})
		return request, errors.New("only CONNECT is served")
	}
	size, kind := 0, b[3]
	switch kind {
	case 1:
		size = 4
	case 4:
		size = 16
	case 3:
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return request, err
		}
		size = int(b[0])
	default:
		c.Write([]byte{5, 8, 0, 1, 0, 0, 0, 0, 0, 0})
		return request, errors.New("unknown kind of address")
	}
	if _, err := io.ReadFull(c, b[:size+2]); err != nil {
		return request, err
	}
	host := string(b[:size])
	if kind != 3 {
		a, _ := netip.AddrFromSlice(b[:size])
		host = a.String()
	}
	return n.requestFor(host, uint64(b[size])<<8|uint64(b[size+1])), nil
}

// serveHTTP serves CONNECT, or one plain HTTP request.
func (n *Network) serveHTTP(ctx context.Context, c *client) {
	r, err := http.ReadRequest(c.r)
	if err != nil {
		answerHTTP(c, http.StatusBadRequest, "this is not a request to a proxy: "+err.Error())
		return
	}
	c.SetReadDeadline(time.Time{})
	if r.Method == http.MethodConnect {
		n.tunnel(ctx, c, r)
	} else {
		n.forward(ctx, c, r)
	}
}

// parseHostPort returns the request for the host and port of an HTTP request; port is used where
// hostport has none.
func (n *Network) parseHostPort(hostport, port string) (request wire.NetRequest, err error) {
	host := hostport
	if h, p, err := net.SplitHostPort(hostport); err == nil {
		host, port = h, p
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || number == 0 {
		return request, fmt.Errorf("%q is not a host with a port", hostport)
	}
	return n.requestFor(host, number), nil
}

// tunnel serves a CONNECT request.
func (n *Network) tunnel(ctx context.Context, c *client, r *http.Request) {
	request, err := n.parseHostPort(r.Host, "")
	if err != nil {
		answerHTTP(c, http.StatusBadRequest, err.Error())
		return
	}
	out, err := n.host.connect(ctx, request, n.end(c))
	if err != nil {
		answerError(c, err)
		return
	}
	io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	copyBuffered(c, out)
}

// copyBuffered sends what the reader of c has read ahead, and then copies in both directions.
func copyBuffered(c *client, out halfCloser) {
	if k := c.r.Buffered(); k > 0 {
		data, _ := c.r.Peek(k)
		if _, err := out.Write(data); err != nil {
			out.Close()
			return
		}
	}
	copyBoth(c.TCPConn, out)
}

// forward sends a plain HTTP request through the host, and returns the response to the program.
func (n *Network) forward(ctx context.Context, c *client, r *http.Request) {
	request, err := n.parseHostPort(r.URL.Host, "80")
	if err != nil || r.URL.Scheme != "http" {
		answerHTTP(c, http.StatusBadRequest,
			"this is a proxy: it takes CONNECT, and requests whose address begins with http://")
		return
	}
	out, err := n.host.connect(ctx, request, n.end(c))
	if err != nil {
		answerError(c, err)
		return
	}
	defer out.Close()
	r.Header.Del("Proxy-Connection")
	r.Header.Del("Proxy-Authorization")
	r.Close = true
	sent := make(chan error, 1)
	go func() { sent <- r.Write(out) }()
	resp, err := http.ReadResponse(bufio.NewReader(out), r)
	if err != nil {
		answerHTTP(c, http.StatusBadGateway, "the server broke the connection")
	} else {
		resp.Close = true
		resp.Write(c)
		resp.Body.Close()
	}
	out.Close() // the response is complete: the rest of the request is not sent
	c.CloseRead()
	<-sent
}

// answerError answers a program whose request the host refused, or did not answer.
func answerError(c *client, err error) {
	refused, ok := errors.AsType[refusal](err)
	if !ok {
		answerHTTP(c, http.StatusBadGateway, "the sandbox's access to the network does not answer")
		return
	}
	status, known := map[wire.NetCode]int{wire.NetRefused: http.StatusForbidden,
		wire.NetBusy: http.StatusTooManyRequests, wire.NetInvalid: http.StatusBadRequest}[refused.Code]
	if !known {
		status = http.StatusBadGateway
	}
	answerHTTP(c, status, refused.Message)
}

func answerHTTP(c *client, status int, text string) {
	const response = "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n" +
		"Content-Length: %d\r\n\r\n%s\n"
	fmt.Fprintf(c, response, status, http.StatusText(status), len(text)+1, text)
}
