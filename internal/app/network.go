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

// current has the settings whose network section is in effect.
type current struct {
	*config.Config
	policies session.Policies // without the registries
}

// apply puts the network settings of c into effect, together with the registries that were found last.
func (a *App) apply(c *current) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.current.Store(c)
	p := c.policies
	p.Operator.Registries = a.registries.allowed()
	a.sessions.SetPolicies(p)
}

// network returns the state of the network for the operator.
func (a *App) network() hub.NetworkState {
	p := a.sessions.Policies()
	return hub.NetworkState{Policy: p.Operator, Templates: p.Templates, Usage: a.egress.Totals(),
		File: a.current.Load().File}
}

// addresses resolves a host name: by the setting network.hosts, else by DNS.
func (a *App) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	if addr, ok := a.current.Load().Network.Hosts[name]; ok {
		return []netip.Addr{addr}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

// sampleInterval is the interval in which follow checks the settings files for changes.
const sampleInterval = time.Second / 2

// follow applies changes of the settings file (the sections network and mcp, and mcp_consent), and of the
// files in mcp_files, to the running server, until ctx ends. A file that is invalid or empty changes
// nothing, and is logged once. A file that is being written is not read until two samples are the same.
// If there was no settings file at the start, one that is created at the default path is used. Once
// after the start, follow also checks the package registries again: in the same goroutine, since both
// change the policies.
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

// stamps identifies the versions of all files that follow checks: if it differs, a file has changed.
type stamps struct {
	path   string // of the settings file, or empty
	file   config.Stamp
	others string // paths and stamps of the files in mcp_files
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

// appeared returns the path of the settings file that a server would read if it started now, or empty.
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

// reload applies changed files. file: the settings file has changed, not only files in mcp_files.
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
		a.log.Error("the settings file is not used; the previous settings stay in effect", "file", now.path, "why", err)
		return
	}
	source := a.Config.Source
	source.File = now.path
	c, err := config.Load(source)
	var allowed session.Policies
	if err == nil {
		allowed, err = policies(c)
	}
	if err != nil {
		a.log.Error("the changed settings are wrong; those from before hold", "error", err)
		return
	}
	c.Follow(before.Config, a.Config.Volumes)
	if !maps.Equal(c.Network.Registries, before.Network.Registries) ||
		(c.Network.Registries == nil) != (before.Network.Registries == nil) {
		if err := a.registries.detect(ctx, c); err != nil {
			a.log.Error("the changed registries cannot be used; the previous settings stay in effect", "error", err)
			return
		}
	}
	a.apply(&current{c, allowed})
	a.configureServers(ctx, c)
	a.tools.SetConsent(tool.Policy(c.MCP.Consent))
	a.report(c, before.Config)
}

// report logs which of the changed settings are in effect now, and, once, which ones need a restart.
func (a *App) report(c, before *config.Config) {
	taken, _ := c.Changed(before)
	_, waiting := c.Changed(a.Config)
	a.log.Info("the settings file is taken up", "file", c.File, "changed", strings.Join(taken, ", "), "mode",
		c.Network.Mode)
	if open := string(egress.Open); (c.Network.Mode == open) != (a.Config.Network.Mode == open) {
		a.log.Warn("a change from or to network.mode open takes effect at the next start of the server; until "+
			"then sandboxes with a broker reach nothing", "mode", c.Network.Mode)
	}
	if !slices.Equal(waiting, a.waiting) && len(waiting) > 0 {
		a.log.Warn("settings of the file hold from the next start of the server on", "settings",
			strings.Join(waiting, ", "))
	}
	a.waiting = waiting
}

// settled returns the delay after which follow checks the registries again. The check takes a second of
// CPU time; if there are sessions of the previous server, their recovery comes first.
func (a *App) settled() time.Duration {
	if a.sessions.Live() == 0 {
		return 0
	}
	return 5 * time.Second
}

// recheck asks the machine's package managers for the registries again, while the server is running.
func (a *App) recheck(ctx context.Context) {
	if changed := a.registries.refresh(ctx, a.Config); !changed {
		return
	}
	a.apply(a.current.Load())
	a.log.Info("the machine's package registries have changed: sandboxes may reach them now, and use them from " +
		"the next start of the server on")
}
