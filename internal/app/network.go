package app

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/hub"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// current are the settings whose network section holds now.
type current struct {
	*config.Config
	policies session.Policies // without the registries
}

// apply makes the network of settings, and the registries that were found last, hold
// from now on.
func (a *App) apply(c *current) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.current.Store(c)
	p := c.policies
	p.Operator.Registries = a.registries.allowed()
	a.sessions.SetPolicies(p)
}

// network is what the operator is shown.
func (a *App) network() hub.NetworkState {
	p := a.sessions.Policies()
	return hub.NetworkState{Policy: p.Operator, Templates: p.Templates, Usage: a.egress.Totals(),
		File: a.current.Load().File}
}

// addresses finds a name's addresses: the operator's own hosts come first.
func (a *App) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	if addr, ok := a.current.Load().Network.Hosts[name]; ok {
		return []netip.Addr{addr}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

// sampleInterval is how often the settings file is looked at.
const sampleInterval = time.Second / 2

// follow takes up a change of the settings file's network and mcp sections, of
// mcp_consent, and of the files that mcp_files names, for what runs too. A file
// that is wrong, or empty, changes nothing, and is logged once. One that is being
// written is left alone until two samples are the same. Where none was read at the
// start, one that appears where it would have been is followed. Once, it asks
// again for the registries, one after the other, as both change the policies.
func (a *App) follow(ctx context.Context) {
	held := stamps{a.Config.File, a.Config.Stamp, a.stamps().others}
	seen := held
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	later := time.NewTimer(a.settled())
	defer later.Stop()
	for {
		select {
		case <-tick.C:
		case <-later.C:
			a.recheck(ctx)
			continue
		case <-ctx.Done():
			return
		}
		now := a.stamps()
		if now == held || now != seen {
			seen = now
			continue
		}
		file := now.path != held.path || now.file != held.file
		held = now
		a.reload(ctx, now, file)
	}
}

// stamps tell whether any of the files that are followed has changed.
type stamps struct {
	path   string // of the settings file, or empty
	file   config.Stamp
	others string
}

func (a *App) stamps() stamps {
	c := a.current.Load()
	s := stamps{path: c.File}
	if s.path == "" {
		s.path = appeared(a.Config.Source)
	}
	if s.path != "" {
		s.file = stampOf(s.path)
	}
	for _, f := range c.MCP.Files {
		st := stampOf(f)
		s.others += fmt.Sprintf("%s %d %d\n", f, st.Modified.UnixNano(), st.Size)
	}
	return s
}

// appeared returns the settings file that a server which starts now would read.
func appeared(s config.Source) string {
	place, _, _ := s.Place()
	if abs, err := filepath.Abs(place); err == nil && stampOf(abs) != (config.Stamp{}) {
		return abs
	}
	return ""
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
func (a *App) reload(ctx context.Context, now stamps, file bool) {
	before := a.current.Load()
	if !file {
		a.configureServers(ctx, before.Config)
		return
	}
	if now.file.Size == 0 {
		if now.path != "" {
			a.log.Error("the settings file is gone, or empty; the settings from before hold", "file", now.path)
		}
		return
	}
	if err := a.Config.Untrusted(now.path, a.Config.Source.Chosen()); err != nil {
		a.log.Error("the settings file is not taken up; the settings from before hold", "file", now.path, "why", err)
		return
	}
	source := a.Config.Source
	source.File = now.path
	c, allowed, err := loadAll(source)
	if err != nil {
		a.log.Error("the changed settings are wrong; those from before hold", "error", err)
		return
	}
	c.Follow(before.Config, a.Config.Volumes)
	if !maps.Equal(c.Network.Registries, before.Network.Registries) ||
		(c.Network.Registries == nil) != (before.Network.Registries == nil) {
		if err := a.registries.detect(ctx, c); err != nil {
			a.log.Error("the changed registries cannot be used; the settings from before hold", "error", err)
			return
		}
	}
	a.apply(&current{c, allowed})
	a.configureServers(ctx, c)
	a.tools.SetConsent(tool.Policy(c.MCP.Consent))
	a.report(c, before.Config)
}

// report logs what of the changed settings holds now, and, once, what does not.
func (a *App) report(c, before *config.Config) {
	taken, _ := c.Changed(before)
	_, waiting := c.Changed(a.Config)
	a.log.Info("the settings file is taken up", "file", c.File, "changed", strings.Join(taken, ", "), "mode",
		c.Network.Mode)
	if open := string(egress.Open); (c.Network.Mode == open) != (a.Config.Network.Mode == open) {
		a.log.Warn("network.mode open is taken up, or left, at the next start of the server; until then sandboxes "+
			"with a broker reach nothing", "mode", c.Network.Mode)
	}
	if !slices.Equal(waiting, a.waiting) && len(waiting) > 0 {
		a.log.Warn("settings of the file hold from the next start of the server on", "settings",
			strings.Join(waiting, ", "))
	}
	a.waiting = waiting
}

// settled is how long after its start a server asks for what can wait: that takes
// a second of a processor, and what an earlier server left is taken over first.
func (a *App) settled() time.Duration {
	if a.sessions.Live() == 0 {
		return 0
	}
	return 5 * time.Second
}

// recheck asks the machine's tools again, while the server serves already.
func (a *App) recheck(ctx context.Context) {
	if changed := a.registries.refresh(ctx, a.Config); !changed {
		return
	}
	a.apply(a.current.Load())
	a.log.Info("the machine's package registries have changed: sandboxes may reach them now, and use them from " +
		"the next start of the server on")
}
