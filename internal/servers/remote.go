package servers

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
)

// client is what a server that runs elsewhere is reached with. What a user
// names is reached as far as policy lets their sandbox. What the operator's
// settings name is reached as it is; where that leads to, such as the place to
// log in, is no more than anyone's public address.
func (servers *Servers) client(s *server, settings spec.Configured) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = callMost
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 30 * time.Second
	reach := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if servers.Reach == nil {
			return nil, errors.New("this server reaches no others for its users")
		}
		return servers.Reach(ctx, s.owner, s.configured, network, addr)
	}
	if !s.configured {
		t.Proxy = nil // the way out knows the operator's
		t.DialContext = reach
		return &http.Client{Transport: t}
	}
	return &http.Client{Transport: ways{named: oauth.Origin(settings.URL), direct: t, reach: reach}}
}

// ways are how a configured server is reached, and what it leads to.
type ways struct {
	named  string
	direct *http.Transport
	reach  func(ctx context.Context, network, addr string) (net.Conn, error)
}

// RoundTrip implements http.RoundTripper.
func (w ways) RoundTrip(r *http.Request) (*http.Response, error) {
	if oauth.Origin(r.URL.String()) == w.named {
		return w.direct.RoundTrip(r)
	}
	t := w.direct.Clone()
	t.Proxy, t.DialContext, t.DisableKeepAlives = nil, w.reach, true
	return t.RoundTrip(r)
}

// CloseIdleConnections is what http.Client calls.
func (w ways) CloseIdleConnections() { w.direct.CloseIdleConnections() }
