package app

import (
	"context"
	"encoding/json"
	"net"
	"strconv"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/finder"
	"sandlot/internal/limit"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/toolcall"
	"sandlot/internal/vault"
)

// openServers creates a.servers. It starts no third-party server.
func (a *App) openServers(ctx context.Context, limits *limit.Limiter) error {
	c := a.Config
	a.servers = servers.New(servers.Config{Events: a.events, Store: a.store, Sessions: a.sessions, Secrets: a.vault,
		Version: Version, Idle: c.MCP.IdleTimeout, InstallTimeout: c.MCP.InstallTimeout, Reserved: a.hub.Owns,
		Dial:       a.dialServer,
		Callback:   callbackURL(c.Server),
		LoginStore: &vault.Logins{Vault: a.vault, Store: a.store},
		OnChange:   a.serversChanged,
		Changing:   a.calls.Changed,
		Settle:     a.calls.Settle,
		OnUpdate:   func(owner, uri string) { a.gateway.ResourceUpdated(owner, uri) },
		OnLog:      func(owner string, params json.RawMessage) { a.gateway.ForwardLog(owner, params) },
		Limits:     limits, Quotas: a.quotas, Log: a.log})
	a.finder = finder.New(a.servers, a.hub.Owns, a.log)
	a.views.Searchable = a.finder.Prepare
	shown, err := views(c)
	a.views.Set(shown)
	a.closers = append(a.closers, func() error { a.servers.Close(); a.finder.Close(); return nil })
	a.calls.Config = toolcall.Config{Door: a.hub, Servers: a.servers, Finder: a.finder, Sessions: a.sessions,
		Limits: limits, Log: a.log} // before a session has a sandbox
	return err
}

// configureServers replaces the operator's MCP servers by those of the settings.
func (a *App) configureServers(ctx context.Context, c *config.Config) {
	list, notes := c.Servers(ctx, auth.ParseID)
	for _, n := range notes {
		a.log.Warn(n)
	}
	for _, s := range list {
		switch {
		case s.Invalid != "":
			a.log.Error("a configured MCP server cannot be used", "name", s.Name, "from", s.Source, "why", s.Invalid)
		case s.Where == spec.OnHost && !s.Disabled:
			a.log.Warn("a configured MCP server runs on this machine, unconfined, for everyone who may use it",
				"name", s.Name, "user", s.User, "from", s.Source)
		}
	}
	a.servers.SetConfigured(list)
}

// dialServer dials addr for a remote MCP server of p. If a user has added the server, the network policy of
// the user's home session applies. If the operator has (operator is set), public and listed hosts are
// allowed.
func (a *App) dialServer(ctx context.Context, p auth.Principal, operator bool, _, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	owner := egress.Owner{Principal: p.ID}
	policy := a.sessions.HomePolicy(p)
	if operator {
		operatorPolicy := a.sessions.Policies().Operator
		operatorPolicy.Mode = egress.Public
		policy, owner = &operatorPolicy, egress.Owner{}
	}
	// With the mode open, sandboxes do without the broker. These connections always use it.
	if policy != nil && policy.Mode == egress.Open {
		public := *policy
		public.Mode = egress.Public
		policy = &public
	}
	return a.egress.Dial(ctx, owner, policy, host, uint16(number))
}

// callbackURL returns the redirect URL of log-ins, or empty if there is none that a browser can open.
func callbackURL(s config.Server) string {
	const path = "/oauth/callback"
	switch {
	case s.PublicURL != "":
		return s.PublicURL + path
	case len(s.TLS.Domains) > 0, auth.Loopback(s.Host):
		return s.LocalURL(s.Host) + path
	}
	return "" // an address such as 0.0.0.0 is none that a browser can open
}

// serversChanged passes on that what a principal's third-party servers offer has changed.
func (a *App) serversChanged(owner string) {
	a.finder.Changed(owner)
	if owner == "" { // else Changing has said so
		a.calls.Changed(owner)
	}
	a.gateway.SyncFeatures(owner)
}
