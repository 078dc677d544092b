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

	"sandlot/proto/agentv1"
)

// proxied serves a program that uses the proxy: SOCKS5 or HTTP, which the first
// byte tells.
func (n *Network) proxied(ctx context.Context, c *net.TCPConn) {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	r := bufio.NewReaderSize(c, 16<<10)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	p := &client{TCPConn: c, r: r}
	if first[0] == 5 {
		n.socks(ctx, p)
	} else {
		n.http(ctx, p)
	}
}

// client is a program's connection with what was read of it already.
type client struct {
	*net.TCPConn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c *client) Read(p []byte) (int, error) { return c.r.Read(p) }

// destination is what a program names: a host and a port.
func destination(host string, port uint64) *agentv1.NetConnect {
	if a, err := netip.ParseAddr(host); err == nil {
		return &agentv1.NetConnect{Address: a.Unmap().AsSlice(), Port: uint32(port)}
	}
	return &agentv1.NetConnect{Name: host, Port: uint32(port)}
}

// known gives the name back when a program looked it up here and names the
// address that it got.
func (n *Network) known(to *agentv1.NetConnect) *agentv1.NetConnect {
	if a, ok := netip.AddrFromSlice(to.Address); ok {
		return n.target(netip.AddrPortFrom(a, uint16(to.Port)))
	}
	return to
}

// socks serves CONNECT of SOCKS version 5 (RFC 1928), without authentication.
func (n *Network) socks(ctx context.Context, c *client) {
	to, err := greetSocks(c)
	if err != nil {
		return
	}
	out, r, err := n.host.connect(ctx, n.known(to))
	code := byte(0)
	switch {
	case err != nil && r == nil:
		code = 1 // general failure
	case r.Code == agentv1.NetReply_REFUSED || r.Code == agentv1.NetReply_BROKEN:
		code = 2 // not allowed by the rules
	case r.Code != agentv1.NetReply_OK:
		code = 4 // host unreachable
	}
	c.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0})
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Time{})
	joined(c, out)
}

func greetSocks(c *client) (*agentv1.NetConnect, error) {
	var b [260]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, b[:b[1]]); err != nil { // the methods that the program knows
		return nil, err
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, b[:4]); err != nil {
		return nil, err
	}
	if b[1] != 1 {
		c.Write([]byte{5, 7, 0, 1, 0, 0, 0, 0, 0, 0})
		return nil, errors.New("only CONNECT is served")
	}
	size, kind := 0, b[3]
	switch kind {
	case 1:
		size = 4
	case 4:
		size = 16
	case 3:
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return nil, err
		}
		size = int(b[0])
	default:
		c.Write([]byte{5, 8, 0, 1, 0, 0, 0, 0, 0, 0})
		return nil, errors.New("unknown kind of address")
	}
	if _, err := io.ReadFull(c, b[:size+2]); err != nil {
		return nil, err
	}
	host := string(b[:size])
	if kind != 3 {
		a, _ := netip.AddrFromSlice(b[:size])
		host = a.String()
	}
	return destination(host, uint64(b[size])<<8|uint64(b[size+1])), nil
}

// http serves CONNECT, or one plain request.
func (n *Network) http(ctx context.Context, c *client) {
	r, err := http.ReadRequest(c.r)
	if err != nil {
		say(c, http.StatusBadRequest, "this is no request to a proxy: "+err.Error())
		return
	}
	c.SetReadDeadline(time.Time{})
	if r.Method == http.MethodConnect {
		n.tunnel(ctx, c, r)
	} else {
		n.pass(ctx, c, r)
	}
}

// where is the destination of a request to a proxy.
func where(hostport, port string) (*agentv1.NetConnect, error) {
	host := hostport
	if h, p, err := net.SplitHostPort(hostport); err == nil {
		host, port = h, p
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || number == 0 {
		return nil, fmt.Errorf("%q is no host with a port", hostport)
	}
	return destination(host, number), nil
}

func (n *Network) tunnel(ctx context.Context, c *client, r *http.Request) {
	to, err := where(r.Host, "")
	if err != nil {
		say(c, http.StatusBadRequest, err.Error())
		return
	}
	out, reply, err := n.host.connect(ctx, n.known(to))
	if err != nil {
		failed(c, reply, err)
		return
	}
	io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	joined(c, out)
}

// joined copies both ways, with what was read ahead of the program.
func joined(c *client, out halfCloser) {
	if k := c.r.Buffered(); k > 0 {
		ahead, _ := c.r.Peek(k)
		if _, err := out.Write(ahead); err != nil {
			out.Close()
			return
		}
	}
	join(c.TCPConn, out)
}

// pass sends a plain request on, and its response back.
func (n *Network) pass(ctx context.Context, c *client, r *http.Request) {
	to, err := where(r.URL.Host, "80")
	if err != nil || r.URL.Scheme != "http" {
		say(c, http.StatusBadRequest, "this is a proxy: it takes CONNECT, and requests whose address begins with http://")
		return
	}
	out, reply, err := n.host.connect(ctx, n.known(to))
	if err != nil {
		failed(c, reply, err)
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
		say(c, http.StatusBadGateway, "the server broke the connection")
	} else {
		resp.Close = true
		resp.Write(c)
		resp.Body.Close()
	}
	out.Close() // ends the sending of a request whose answer is known
	c.CloseRead()
	<-sent
}

// failed tells a program what became of its request.
func failed(c *client, reply *agentv1.NetReply, err error) {
	switch {
	case reply == nil:
		say(c, http.StatusBadGateway, "the sandbox's way out does not answer")
	case reply.Code == agentv1.NetReply_REFUSED:
		say(c, http.StatusForbidden, reply.Message)
	case reply.Code == agentv1.NetReply_BUSY:
		say(c, http.StatusTooManyRequests, reply.Message)
	case reply.Code == agentv1.NetReply_BROKEN:
		say(c, http.StatusBadRequest, reply.Message)
	default:
		say(c, http.StatusBadGateway, err.Error())
	}
}

func say(c *client, status int, text string) {
	fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n", status, http.StatusText(status), len(text)+1, text)
}
