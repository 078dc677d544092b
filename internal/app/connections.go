package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/limit"
	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/vault"
)

// connections takes over the third-party MCP servers that an earlier server
// had, and those of the settings.
func (a *App) connections(ctx context.Context, limits *limit.Limiter) error {
	c := a.Config
	a.vault = keeper(c, a.store)
	if err := a.vault.Settle(ctx, a.store); err != nil {
		return err
	}
	if err := a.vault.Check(); err != nil {
		return err
	}
	a.third = servers.New(servers.Config{Events: a.events, Store: a.store, Sessions: a.Book, Secrets: a.vault, Version: Version, Idle: c.MCP.Idle, InstallTimeout: c.MCP.Install,
		Reach: a.reach, Callback: callback(c.Server.PublicURL, c.Server.Host, c.Server.Port), Logins: &vault.Logins{Vault: a.vault, Store: a.store},
		Limits: limits, Log: a.log})
	a.closers = append(a.closers, func() error { a.third.Close(); return nil })
	if err := a.third.Recover(ctx); err != nil {
		return fmt.Errorf("reading the connections: %w", err)
	}
	a.configureServers(ctx, c)
	return nil
}

// configureServers makes the MCP servers of the settings what runs from now on.
func (a *App) configureServers(ctx context.Context, c *config.Config) {
	list, notes := c.Servers(ctx)
	for _, n := range notes {
		a.log.Warn(n)
	}
	for _, s := range list {
		switch {
		case s.Broken != "":
			a.log.Error("a configured MCP server cannot be used", "name", s.Name, "from", s.From, "why", s.Broken)
		case s.Where == spec.OnHost && !s.Disabled:
			a.log.Warn("a configured MCP server runs on this machine, unconfined, for everyone who may use it", "name", s.Name, "user", s.User, "from", s.From)
		}
	}
	a.third.SetConfigured(list)
}

// reach dials for a server that a user named: as far as their home may. For what
// one that the operator named leads to, it is what is public, or listed.
func (a *App) reach(ctx context.Context, p auth.Principal, operator bool, _, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	policy := a.Book.HomePolicy(p)
	if operator {
		o := a.Book.Policies().Operator
		o.Mode = egress.Public
		policy = &o
	}
	if policy != nil && policy.Mode == egress.Open { // past the broker in a sandbox; here nothing is
		public := *policy
		public.Mode = egress.Public
		policy = &public
	}
	return a.egress.Dial(ctx, policy, host, uint16(number))
}

// callback is where browsers come back to from a log-in.
func callback(public, host string, port int) string {
	if public != "" {
		return public + "/oauth/callback"
	}
	if !auth.Loopback(host) {
		return "" // no browser comes back to what all addresses are called
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/oauth/callback"}
	return u.String()
}

// key returns the key of this state folder, and makes it when it is not there.
func (a *App) key() ([]byte, error) {
	path := filepath.Join(a.Config.Server.StateDir, "key")
	b, err := os.ReadFile(path)
	if err == nil && len(b) == 32 {
		return b, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b = secret.Bytes(32)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return nil, err
	}
	return b, os.Rename(path+".new", path)
}
