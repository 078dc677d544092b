package app

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"sandlot/internal/api"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/session"
)

// applyPolicies makes the settings of the network what holds from now on.
func (a *App) applyPolicies(c *config.Config) {
	p := c.Network.Policy
	p.Registries = *a.found.Load()
	a.latest.Store(c)
	a.hosts.Store(&c.Network.Hosts)
	a.Book.SetPolicies(session.Policies{Operator: p, Templates: c.Network.Templates})
}

// network is what the operator is shown.
func (a *App) network() api.NetworkState {
	p := a.Book.Policies()
	return api.NetworkState{Policy: p.Operator, Templates: p.Templates, Usage: a.egress.Totals(), File: a.Config.File}
}

// addresses finds a name's addresses: the operator's own hosts come first.
func (a *App) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	if hosts := a.hosts.Load(); hosts != nil {
		if addr, ok := (*hosts)[name]; ok {
			return []netip.Addr{addr}, nil
		}
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

// glance is how often the settings file is looked at.
const glance = time.Second

// follow takes up a change of the settings file's network section, for running
// sandboxes too. A file that is wrong changes nothing, and is told of once.
func (a *App) follow(ctx context.Context) {
	file := a.Config.File
	if file == "" {
		return
	}
	last := stampOf(file)
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := stampOf(file)
		if now == last {
			continue
		}
		last = now
		a.reload()
	}
}

// stamp tells one content of a file from the next.
type stamp struct {
	modified time.Time
	size     int64
}

func stampOf(file string) stamp {
	st, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{st.ModTime(), st.Size()}
}

func (a *App) reload() {
	source := a.Config.Source
	source.File = a.Config.File
	c, err := config.Load(source)
	if err != nil {
		a.log.Error("the changed settings are wrong; those from before hold", "error", err)
		return
	}
	a.applyPolicies(c)
	if now := c.Network.Policy.Mode == egress.Open; now != (a.Config.Network.Policy.Mode == egress.Open) {
		a.log.Warn("network.mode open is taken up, or left, at the next start of the server; until then sandboxes with a broker reach nothing", "mode", c.Network.Policy.Mode)
	}
	a.log.Info("the settings file has changed; its network section holds now, all else from the next start on", "mode", c.Network.Policy.Mode)
}
