package app

import (
	"context"
	"net"
	"path/filepath"
	"strconv"

	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/finder"
	"sandlot/internal/gateway"
	"sandlot/internal/registry"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
	"sandlot/internal/toolcall"
	"sandlot/internal/vault"
)

// tooling is what clients call: third-party servers, and Sandlot's own tools.
type tooling struct {
	servers *servers.Servers
	finder  *finder.Finder
	calls   *toolcall.Calls
	tools   *builtin.Tools
	// serverRegistries are those of third-party servers; nil: there are none.
	serverRegistries *registry.Registries
}

// openTools creates the sources of tools. It starts no third-party server.
func (m maker) openTools(r records, t templating, s sandboxes, ac access, g *gateway.Gateway) (x tooling, err error) {
	c := m.c
	if x.serverRegistries, err = m.openRegistries(s); err != nil {
		return x, err
	}
	x.servers = servers.New(servers.Config{Events: r.events, Store: r.store, Sessions: s.sessions, Secrets: s.vault,
		Version: Version, Idle: c.MCP.IdleTimeout, InstallTimeout: c.MCP.InstallTimeout, Reserved: m.hub.Owns,
		Dial:       s.dialServer,
		Callback:   callbackURL(c.Server),
		LoginStore: &vault.Logins{Vault: s.vault, Store: r.store},
		OnUpdate:   g.ResourceUpdated,
		OnLog:      g.ForwardLog,
		Limits:     ac.limits, Quotas: m.now.quotas, Log: m.log})
	x.finder = finder.New(x.servers, m.hub.Owns, m.log)
	m.closing.add(func() error { x.servers.Close(); x.finder.Close(); return nil })
	m.now.views.Searchable = x.finder.Prepare
	m.now.views.Set(m.parsed.views)
	x.calls = toolcall.New(toolcall.Config{Door: m.hub, Servers: x.servers, Finder: x.finder, Sessions: s.sessions,
		Clients: g, Limits: ac.limits, Log: m.log})
	sessionFlavors, _ := flavors(c)
	x.tools = builtin.New(builtin.Config{Events: r.events, Sessions: s.sessions, Snapshots: s.snapshots, Ports: s.ports,
		Calls: x.calls, Connections: x.servers,
		Connected:  func(ctx context.Context, p auth.Principal) bool { return len(x.servers.Tools(ctx, p)) > 0 },
		Registries: x.serverRegistries,
		Consent:    tool.Policy(c.MCP.Consent), Templates: t.templates.Offered, Flavors: sessionFlavors,
		Volumes: s.volumes.Usage,
		Timeout: c.Sessions.CallTimeout, MaxTimeout: c.Sessions.MaxCallTimeout, MaxOutput: c.Output.MaxCharacters,
		Labeled: c.Output.Style == "labeled", TokenContext: ac.watch.TokenContext, Log: m.log})
	// What stands lower is told last of who wants to know: no sandbox is attached, and no server runs yet.
	s.sessions.OnSandbox = x.calls.AttachClient
	x.servers.Changing, x.servers.Settle = x.calls.Changed, x.calls.Settle
	x.servers.OnChange = func(owner string) {
		x.finder.Changed(owner)
		if owner == "" { // else Changing has said so
			x.calls.Changed(owner)
		}
		g.SyncFeatures(owner)
	}
	return x, nil
}

// configureServers replaces the operator's MCP servers by the settings'.
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
func (s sandboxes) dialServer(ctx context.Context, p auth.Principal, operator bool, _, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	owner := egress.Owner{Principal: p.ID}
	policy := s.sessions.HomePolicy(p)
	if operator {
		operatorPolicy := s.sessions.Policies().Operator
		operatorPolicy.Mode = egress.Public
		policy, owner = &operatorPolicy, egress.Owner{}
	}
	// With the mode open, sandboxes do without the broker. These connections always use it.
	if policy != nil && policy.Mode == egress.Open {
		public := *policy
		public.Mode = egress.Public
		policy = &public
	}
	return s.egress.Dial(ctx, owner, policy, host, uint16(number))
}

// openRegistries returns the registries of third-party servers in the settings.
func (m maker) openRegistries(s sandboxes) (*registry.Registries, error) {
	folder := filepath.Join(m.c.Server.StateDir, "registries")
	var sources []registry.Source
	for _, r := range m.c.MCP.Registries {
		sources = append(sources, registry.Source(r))
	}
	registry.RemoveOthers(folder, sources, m.log)
	if len(sources) == 0 {
		return nil, nil
	}
	c := registry.Config{Folder: folder, Sources: sources, Age: m.c.MCP.RegistryAge, Version: Version,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return s.dialServer(ctx, auth.Principal{}, true, network, addr)
		},
		Allowed: func(host, port string) bool {
			operator := s.sessions.Policies().Operator
			number, err := strconv.ParseUint(port, 10, 16)
			return err == nil && operator.Excepts(host, uint16(number))
		}, Log: m.log}
	rs, err := registry.New(c)
	if err == nil {
		m.closing.add(func() error { rs.Close(); return nil })
	}
	return rs, err
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
