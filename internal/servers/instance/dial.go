package instance

import (
	"context"
	"net"
	"net/http"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Reach dials for the owner of a server, as far as policy allows.
type Reach func(ctx context.Context, network, addr string) (net.Conn, error)

// dial opens the way to the server. A second call starts the program again: it did not
// survive the question for its revision.
func (i *Instance) dial(ctx context.Context) (transport.Transport, error) {
	if i.Settings.Kind != spec.Stdio {
		return i.remote()(ctx)
	}
	if i.process != nil {
		i.process.Stop()
	}
	c := process.Command{Name: i.Name, Argv: process.WithPath(i.Path, i.Settings.Command, i.Settings.Args),
		Env: i.Values.Env, Cwd: i.Cwd}
	var p *process.Process
	var err error
	if i.Settings.Where == spec.OnHost {
		p, err = process.OnHost(c, i.Settings.User, i.Output)
	} else {
		p, err = i.inSandbox(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	i.process = p
	return p.Transport(i.Output), nil
}

// inSandbox starts a program in the home of the server's owner.
func (i *Instance) inSandbox(ctx context.Context, c process.Command) (*process.Process, error) {
	if i.Sessions == nil {
		return nil, fault.New(fault.Connection, "this server has no sandboxes")
	}
	l, err := i.Sessions.Open(ctx, i.Principal, session.OpenRequest{ID: "home"})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return process.InSandbox(ctx, l, c, i.Output)
}

// remote is the way to a server that runs elsewhere.
func (i *Instance) remote() transport.Dial {
	h := http.Header{}
	for k, v := range i.Values.Headers {
		h.Set(k, v)
	}
	i.client = i.newClient()
	r := transport.Remote{URL: i.Settings.URL, Header: h, Client: i.client,
		OAuth: i.Account.Handler(i.Settings.URL, i.Settings.OAuth, i.newClient)}
	if i.Settings.Kind == spec.SSE {
		return transport.SSE(r)
	}
	return transport.HTTP(r)
}

// newClient returns a client for a server that runs elsewhere. A server that a user
// named is reached as far as policy lets their sandbox. One of the operator's settings is
// reached directly; the addresses that it leads to, such as that of the log-in, only as
// far as anyone may reach them.
func (i *Instance) newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = callMost
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 30 * time.Second
	if !i.Configured {
		t.Proxy = nil // the broker knows the operator's
		t.DialContext = i.Reach
		return &http.Client{Transport: t}
	}
	return &http.Client{Transport: ways{named: oauth.Origin(i.Settings.URL), direct: t, reach: i.Reach}}
}

// ways are those to a configured server, and to the addresses that it leads to.
type ways struct {
	named  string
	direct *http.Transport
	reach  Reach
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

// CloseIdleConnections is called by http.Client.
func (w ways) CloseIdleConnections() { w.direct.CloseIdleConnections() }
