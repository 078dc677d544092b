package instance

import (
	"context"
	"maps"
	"net"
	"net/http"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/policy"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
)

// Dial dials an address for the owner of a server, if the policy of the owner's network allows it.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// dial returns the transport to the server. A second call starts the program again: mcpclient dials
// again when the program did not survive the question for its revision.
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
	l, err := i.Sessions.Wake(ctx, i.Principal, "home")
	if err != nil {
		return nil, err
	}
	defer l.Release()
	i.Sessions.Narrow(l.ID(), policy.Narrow(i.Scope, i.Restarter)) // it may leave something behind
	if err := l.NoteSecrets(i.References); err != nil {
		return nil, err
	}
	if install.IsPython(i.Path) {
		c.Env = withBytecode(c.Env)
	}
	return process.InSandbox(ctx, l, c, i.Output)
}

// withBytecode returns the variables with which the first start of a server in Python stores what it has compiled,
// beside the installed files: later starts take half the time. Elsewhere in sandboxes Python does not store it.
func withBytecode(env map[string]string) map[string]string {
	const name = "PYTHONDONTWRITEBYTECODE"
	if _, isSet := env[name]; isSet {
		return env
	}
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	env[name] = ""
	return env
}

// remote returns the dialer of a remote server.
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

// newClient returns an HTTP client for a remote server. A server that a user added is dialed under
// the network policy of the user's sandbox. A server of the operator's settings is dialed directly;
// other addresses that it refers to, such as an authorization server, are dialed by i.Dial.
func (i *Instance) newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	t.ResponseHeaderTimeout = maxCallTimeout
	t.MaxIdleConnsPerHost = 8
	t.IdleConnTimeout = 30 * time.Second
	if !i.Configured {
		t.Proxy = nil // the broker uses the operator's proxy
		t.DialContext = i.Dial
		return &http.Client{Transport: t}
	}
	return &http.Client{Transport: configuredTransport{origin: oauth.Origin(i.Settings.URL), direct: t, dial: i.Dial}}
}

// configuredTransport sends requests to the origin of a configured server directly, and those to the
// addresses that the server refers to through dial.
type configuredTransport struct {
	origin string
	direct *http.Transport
	dial   Dial
}

// RoundTrip implements http.RoundTripper.
func (c configuredTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if oauth.Origin(r.URL.String()) == c.origin {
		return c.direct.RoundTrip(r)
	}
	t := c.direct.Clone()
	t.Proxy, t.DialContext, t.DisableKeepAlives = nil, c.dial, true
	return t.RoundTrip(r)
}

// CloseIdleConnections is called by http.Client.
func (c configuredTransport) CloseIdleConnections() { c.direct.CloseIdleConnections() }
