package app

import (
	"context"
	"fmt"
	"maps"
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
	a.applying.Lock()
	defer a.applying.Unlock()
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

// follow takes up a change of the settings file's network and mcp sections, and
// of the files that the latter names, for what runs too. A file that is wrong,
// or empty, changes nothing, and is told of once. One that is being written is
// left alone until two looks see the same.
func (a *App) follow(ctx context.Context) {
	held := stamps{a.Config.Stamp, a.stamps().others}
	seen := held
	tick := time.NewTicker(glance / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := a.stamps()
		if now == held || now != seen {
			seen = now
			continue
		}
		file := now.file != held.file
		held = now
		a.reload(ctx, now.file, file)
	}
}

// stamps tell whether any of the files that are followed has changed.
type stamps struct {
	file   config.Stamp
	others string
}

func (a *App) stamps() stamps {
	var s stamps
	if a.Config.File != "" {
		s.file = stampOf(a.Config.File)
	}
	for _, f := range a.latest.Load().MCP.Files {
		st := stampOf(f)
		s.others += fmt.Sprintf("%s %d %d\n", f, st.Modified.UnixNano(), st.Size)
	}
	return s
}

func stampOf(file string) config.Stamp {
	st, err := os.Stat(file)
	if err != nil {
		return config.Stamp{}
	}
	return config.Stamp{Modified: st.ModTime(), Size: st.Size()}
}

// reload takes up what has changed: file says whether the settings file is among
// that.
func (a *App) reload(ctx context.Context, now config.Stamp, file bool) {
	if !file {
		a.configureServers(ctx, a.latest.Load())
		return
	}
	if now.Size == 0 {
		a.log.Error("the settings file is gone, or empty; the settings from before hold", "file", a.Config.File)
		return
	}
	source := a.Config.Source
	source.File = a.Config.File
	c, err := config.Load(source)
	if err != nil {
		a.log.Error("the changed settings are wrong; those from before hold", "error", err)
		return
	}
	if before := a.latest.Load(); !maps.Equal(c.Network.Registries, before.Network.Registries) || (c.Network.Registries == nil) != (before.Network.Registries == nil) {
		set, err := a.ask(ctx, registryKey(c), c)
		if err != nil {
			a.log.Error("the changed registries cannot be used; the settings from before hold", "error", err)
			return
		}
		a.allowRegistries(set)
	}
	a.applyPolicies(c)
	a.configureServers(ctx, c)
	if now := c.Network.Policy.Mode == egress.Open; now != (a.Config.Network.Policy.Mode == egress.Open) {
		a.log.Warn("network.mode open is taken up, or left, at the next start of the server; until then sandboxes with a broker reach nothing", "mode", c.Network.Policy.Mode)
	}
	a.log.Info("the settings file has changed: what sandboxes may reach and the MCP servers hold now, all else (limits too) from the next start on", "mode", c.Network.Policy.Mode)
}
