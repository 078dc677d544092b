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
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/app/registries"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/quota"
	"sandlot/internal/session"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// activeSettings has the settings whose network section is in effect.
type activeSettings struct {
	*config.Config
	policies session.Policies // without the registries
}

// effective are the settings in effect that may change while the server runs.
type effective struct {
	applyMu sync.Mutex // held during changes of active
	active  atomic.Pointer[activeSettings]
	rules   policy.Current
	quotas  *quota.Quotas
	views   *toolview.Views
}

// apply puts the network settings of c into effect, together with the registries that were found last.
func (n *effective) apply(c *activeSettings, sessions *session.Sessions, found *registries.Registries) {
	n.applyMu.Lock()
	defer n.applyMu.Unlock()
	n.active.Store(c)
	p := c.policies
	p.Operator.Registries = found.EgressRules()
	sessions.SetPolicies(p)
}

// networkState returns the state of the network for the operator.
func (a *App) networkState() hub.NetworkState {
	p := a.sessions.Policies()
	return hub.NetworkState{Policy: p.Operator, Templates: p.Templates, Usage: a.egress.Totals(),
		File: a.active.Load().File}
}

// resolveHost resolves a host name: by the setting network.hosts, else by DNS.
func (n *effective) resolveHost(ctx context.Context, name string) ([]netip.Addr, error) {
	if addr, ok := n.active.Load().Network.Hosts[name]; ok {
		return []netip.Addr{addr}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
}

// pollInterval is the interval in which watchSettings checks the settings files for changes.
const pollInterval = time.Second / 2

// watchSettings applies changes of the settings file (the sections network, mcp and policy, and mcp_consent), and of
// the files in mcp_files, to the running server, until ctx ends. A file that is invalid or empty changes
// nothing, and is logged once. A file that is being written is not read until two samples are the same.
// If there was no settings file at the start, one that is created at the default path is used. Once
// after the start, watchSettings also checks the package registries again: in the same goroutine, since
// both change the policies.
func (a *App) watchSettings(ctx context.Context) {
	applied := readVersions{a.Config.File, a.Config.FileVersion, a.readVersions().clientFiles}
	previous := applied
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	recheckTimer := time.NewTimer(a.recheckDelay())
	defer recheckTimer.Stop()
	for {
		select {
		case <-tick.C:
		case <-recheckTimer.C:
			a.recheckRegistries(ctx)
			continue
		case <-ctx.Done():
			return
		}
		now := a.readVersions()
		if now == applied || now != previous {
			previous = now
			continue
		}
		settingsChanged := now.path != applied.path || now.settingsChanged != applied.settingsChanged
		applied = now
		a.applyChanges(ctx, now, settingsChanged)
	}
}

// readVersions identifies the versions of all files that watchSettings checks: if it differs, a file has changed.
type readVersions struct {
	path            string // of the settings file, or empty
	settingsChanged config.FileVersion
	clientFiles     string // paths and versions of the files in mcp_files
}

func (a *App) readVersions() readVersions {
	c := a.active.Load()
	s := readVersions{path: c.File}
	if s.path == "" {
		s.path = settingsFile(a.Config.Source)
	}
	if s.path != "" {
		s.settingsChanged = versionOf(s.path)
	}
	for _, f := range c.MCP.Files {
		st := versionOf(f)
		s.clientFiles += fmt.Sprintf("%s %d %d\n", f, st.Modified.UnixNano(), st.Size)
	}
	return s
}

// settingsFile returns the path of the settings file that a server would read if it started now, or empty.
func settingsFile(s config.Source) string {
	path, _, _ := s.SettingsFile()
	if abs, err := filepath.Abs(path); err == nil && versionOf(abs) != (config.FileVersion{}) {
		return abs
	}
	return ""
}

func versionOf(file string) config.FileVersion {
	st, err := os.Stat(file)
	if err != nil {
		return config.FileVersion{}
	}
	return config.FileVersion{Modified: st.ModTime(), Size: st.Size()}
}

// applyChanges applies changed files. settingsChanged: the settings file has changed, not only files in
// mcp_files.
func (a *App) applyChanges(ctx context.Context, now readVersions, settingsChanged bool) {
	before := a.active.Load()
	if !settingsChanged {
		a.configureServers(ctx, before.Config)
		return
	}
	if now.settingsChanged.Size == 0 {
		if now.path != "" {
			a.log.Error("the settings file is gone, or empty; the settings from before hold", "file", now.path)
		}
		return
	}
	if err := a.Config.CheckTrusted(now.path, a.Config.Source.Explicit()); err != nil {
		a.log.Error("the settings file is not used; the previous settings stay in effect", "file", now.path, "why", err)
		return
	}
	source := a.Config.Source
	source.File = now.path
	c, err := config.Load(source)
	var p parsed
	if err == nil {
		p, err = parse(c)
	}
	if err != nil {
		a.log.Error("the changed settings are wrong; those from before hold", "error", err)
		return
	}
	c.Inherit(before.Config, a.Config.Volumes)
	if !maps.Equal(c.Network.Registries, before.Network.Registries) ||
		(c.Network.Registries == nil) != (before.Network.Registries == nil) {
		if err := a.registries.Reload(ctx, c); err != nil {
			a.log.Error("the changed registries cannot be used; the previous settings stay in effect", "error", err)
			return
		}
	}
	a.setRules(c, p.rules, a.log)
	a.quotas.Set(p.quotas)
	a.views.Set(p.views)
	defer a.gateway.SyncViews()
	a.apply(&activeSettings{c, p.policies}, a.sessions, a.registries)
	a.configureServers(ctx, c)
	a.tools.SetConsent(tool.Policy(c.MCP.Consent))
	a.logChanges(c, before.Config)
}

// logChanges logs which of the changed settings are in effect now, and, once, which ones need a restart.
func (a *App) logChanges(c, before *config.Config) {
	reloaded, _ := c.Changed(before)
	_, needRestart := c.Changed(a.Config)
	a.log.Info("the settings file is taken up", "file", c.File, "changed", strings.Join(reloaded, ", "), "mode",
		c.Network.Mode)
	if open := string(egress.Open); (c.Network.Mode == open) != (a.Config.Network.Mode == open) {
		a.log.Warn("a change from or to network.mode open takes effect at the next start of the server; until "+
			"then sandboxes with a broker reach nothing", "mode", c.Network.Mode)
	}
	if !slices.Equal(needRestart, a.needRestart) && len(needRestart) > 0 {
		a.log.Warn("settings of the file hold from the next start of the server on", "settings",
			strings.Join(needRestart, ", "))
	}
	a.needRestart = needRestart
}

// recheckDelay returns the delay after which watchSettings checks the registries again. The check takes a second of
// CPU time; if there are sessions of the previous server, their recovery comes first.
func (a *App) recheckDelay() time.Duration {
	if a.sessions.Live() == 0 {
		return 0
	}
	return 5 * time.Second
}

// recheckRegistries asks the machine's package managers for the registries again, while the server is running.
func (a *App) recheckRegistries(ctx context.Context) {
	if changed := a.registries.ReloadIfCached(ctx, a.Config); !changed {
		return
	}
	a.apply(a.active.Load(), a.sessions, a.registries)
	a.log.Info("the machine's package registries have changed: sandboxes may reach them now, and use them from " +
		"the next start of the server on")
}
