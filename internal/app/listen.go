package app

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
)

// Listen opens the network listeners of the settings, and the owner's socket.
func (a *App) Listen(ctx context.Context) (network []net.Listener, owner net.Listener, err error) {
	return a.listen(ctx, nil)
}

// listen is Listen. The sockets, if there are any, are the network's.
func (a *App) listen(ctx context.Context, sockets []*os.File) (network []net.Listener, owner net.Listener, err error) {
	if err := a.checkListen(ctx); err != nil {
		return nil, nil, err
	}
	if err := a.certificate.Check(); err != nil {
		return nil, nil, fault.Wrap(fault.Configuration, err, "the TLS certificate cannot be used: %v", err)
	}
	for _, f := range sockets {
		l, listenErr := net.FileListener(f)
		if listenErr != nil {
			err = errors.Join(err, listenErr)
			continue
		}
		network = append(network, l)
	}
	if len(sockets) == 0 {
		network, err = a.listenNetwork()
	}
	if err == nil {
		owner, err = listenOwner(a.Config.Server.StateDir)
	}
	if err != nil {
		for _, l := range network {
			l.Close()
		}
		return nil, nil, err
	}
	return network, owner, nil
}

// ownAddress returns the MCP address for clients of this machine of a server that listens at an address.
func ownAddress(c config.Server, at net.Addr) string {
	if tcp, ok := at.(*net.TCPAddr); ok {
		c.Port = tcp.Port
	}
	host := c.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return c.LocalURL(host) + "/mcp"
}

// checkListen returns an error for settings and tokens that would let anyone use the server.
func (a *App) checkListen(ctx context.Context) error {
	if egress.Mode(a.Config.Network.Mode) == egress.Open &&
		auth.Mode(a.Config.Server.Auth) != auth.Required {
		return fault.New(fault.Configuration,
			"network.mode=\"open\" (%s): every sandbox could speak to this server as its user, since the machine's "+
				"network is theirs too; set auth: required, or choose public",
			a.Config.Origin["network.mode"])
	}
	c := a.Config.Server
	listed, localPages := origins(c)
	if c.CORS && len(listed) == 0 && !localPages && !a.tokenRequired(ctx) {
		return fault.New(fault.Configuration,
			"cors.enabled=\"true\" (%s): this server asks for no token, so every web page that is opened on this "+
				"machine could use it as its user; list the origins of the pages that may in cors.origins, or leave "+
				"that empty for pages of this machine alone "+
				"(SANDLOT_CORS_ORIGINS), or set auth: required and make tokens with `sandlot token create --user NAME`",
			a.Config.Origin["cors.enabled"])
	}
	return nil
}

// origins returns the origins that the settings name. If they name none, any origin is allowed while a token is required.
// localPages: pages of this machine are allowed while none is, as the server listens on loopback alone, and its operator
// did not ask for any origin.
func origins(c config.Server) (listed []string, localPages bool) {
	for _, o := range c.CORSOrigins {
		if o != config.AnyOrigin {
			listed = append(listed, o)
		}
	}
	return listed, c.CORS && len(c.CORSOrigins) == 0 && auth.Loopback(c.Host)
}

// listenNetwork opens the network listeners.
func (a *App) listenNetwork() (network []net.Listener, err error) {
	c := a.Config.Server
	addrs := []string{c.Host}
	if strings.EqualFold(c.Host, "localhost") {
		addrs = []string{"127.0.0.1", "::1"}
	}
	for _, h := range addrs {
		l, listenErr := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(c.Port)))
		if listenErr == nil {
			network = append(network, l)
			continue
		}
		noIPv6 := lacksFamily(listenErr)
		if h == "::1" && len(addrs) > 1 && noIPv6 {
			continue
		}
		err = fault.Wrap(fault.Configuration, listenErr, "cannot listen on %s port %d: %v; name another with --port", h,
			c.Port, listenErr)
	}
	return network, err
}

// Explain serves one client over MCP's stdio transport in place of a server that could not start. It says why.
func Explain(ctx context.Context, why error, in io.Reader, out io.Writer) {
	_ = gateway.Explain(ctx, Version, why.Error(), io.NopCloser(in), unclosed{out}) // why is returned by the caller
}

// unclosed is a stream that is not closed.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// ListenOwner opens only the owner's socket, in the state folder.
func (a *App) ListenOwner() (net.Listener, error) { return listenOwner(a.Config.Server.StateDir) }
