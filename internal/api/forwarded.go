package api

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the addresses of the proxies whose X-Forwarded-… headers count.
type Proxies []netip.Prefix

// Contains reports whether an address is that of a trusted proxy.
func (p Proxies) Contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(p, func(n netip.Prefix) bool { return n.Contains(a) })
}

// ContainsAddr is Contains for the address of a connection.
func (p Proxies) ContainsAddr(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && p.Contains(t.AddrPort().Addr())
}

type forwardedKey struct{}

// forwarded is what a trusted proxy says of the client's request; empty: it says nothing.
type forwarded struct {
	scheme string // http or https
	host   string // with the port, if there is one
}

// forwardedHeaders are the headers that proxies set. Anyone can send them.
var forwardedHeaders = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port",
	"X-Forwarded-Proto", "X-Forwarded-Scheme", "X-Forwarded-Server", "X-Real-Ip"}

// forwarded removes the headers that proxies set. If the request comes from a trusted proxy, the client's address
// becomes that of the request, and baseURL knows the client's host and scheme. The Host of the request stays, since
// a page in a browser on the proxy's machine could send the other headers.
func (p Proxies) forwarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		trusted := err == nil && p.Contains(peer.Addr())
		var f forwarded
		client := peer.Addr().Unmap()
		if trusted {
			client = p.client(client, r.Header.Values("X-Forwarded-For"))
			switch scheme := strings.ToLower(last(r.Header.Values("X-Forwarded-Proto"))); scheme {
			case "http", "https":
				f.scheme = scheme
			}
			if host := last(r.Header.Values("X-Forwarded-Host")); hostPattern().MatchString(host) {
				f.host = host
			}
		}
		for _, name := range forwardedHeaders {
			delete(r.Header, name)
		}
		if trusted {
			r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, f))
			r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
			if f.scheme == "https" {
				r.Header.Set("X-Forwarded-Proto", "https") // for the links of exposed ports
			}
		}
		next.ServeHTTP(w, r)
	})
}

// client returns the address of the client: the last one in the headers X-Forwarded-For that is not a trusted
// proxy's. Each proxy appends the address of its peer, so what stands before it may be anyone's invention.
func (p Proxies) client(peer netip.Addr, headers []string) netip.Addr {
	list := strings.Split(strings.Join(headers, ","), ",")
	for _, text := range slices.Backward(list) {
		text = strings.TrimSpace(text)
		a, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if at, errPort := netip.ParseAddrPort(text); err != nil && errPort == nil {
			a, err = at.Addr(), nil
		}
		if err != nil {
			return peer
		}
		if peer = a.Unmap().WithZone(""); !p.Contains(peer) {
			return peer
		}
	}
	return peer
}

// last returns the last member of a header's list.
func last(headers []string) string {
	if len(headers) == 0 {
		return ""
	}
	h := headers[len(headers)-1]
	return strings.TrimSpace(h[strings.LastIndex(h, ",")+1:])
}
