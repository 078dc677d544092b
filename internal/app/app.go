// Package app creates a server from its settings. It is the only place that connects the packages with
// each other.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sandlot/internal/api"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/forward"
	"sandlot/internal/api/metric"
	"sandlot/internal/app/registries"
	"sandlot/internal/auth"
	"sandlot/internal/certificate"
	"sandlot/internal/config"
	"sandlot/internal/console"
	"sandlot/internal/egress"
	"sandlot/internal/egress/bound"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/inventory"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/port"
	"sandlot/internal/question"
	"sandlot/internal/quota"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/template"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
	"sandlot/internal/tty"
	"sandlot/internal/vault"
	"sandlot/internal/volume"
	"sandlot/internal/workspace"
)

// App is a server. New makes it, Run serves, and Close closes everything. Its parts are made one after the other, each
// of those before it: see open.
type App struct {
	Config *config.Config
	log    *slog.Logger

	*effective
	*restarts
	*prewarming
	replicas *replicas // nil: the server is the only one of its database
	records
	templating
	sandboxes
	access
	tooling
	hub         *hub.Hub
	gateway     *gateway.Gateway
	api         *api.Server
	certificate *certificate.Source // nil: plain HTTP
	closing     *closers

	needRestart []string   // changed settings that need a restart; only watchSettings uses it
	restarting  bool       // set by Run: the server has ended to restart
	sockets     []*os.File // set by Run: they listen until the next server does
}

// Version is set by the linker.
var Version = "0.1.0-dev"

// New creates a server. It locks the state folder, and adopts the sandboxes of the previous server.
func New(ctx context.Context, c *config.Config, log *slog.Logger) (*App, error) {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return nil, err
	}
	a, err := open(ctx, c, log)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	*a.closing = slices.Insert(*a.closing, 0, lock.Close) // the last one to be called
	return a, nil
}

// A maker makes the parts of a server. Each of its methods returns what it has made of what it is given.
type maker struct {
	c        *config.Config
	parsed   parsed
	log      *slog.Logger
	now      *effective
	hub      *hub.Hub  // closed, until what it gives access to is there
	replicas *replicas // nil: the server is the only one of its database
	closing  *closers
}

// open creates a server in a state folder that the caller has locked.
func open(ctx context.Context, c *config.Config, log *slog.Logger) (_ *App, err error) {
	p, err := parse(c)
	if err != nil {
		return nil, err
	}
	now := &effective{quotas: quota.New(), views: toolview.New()}
	m := maker{c: c, parsed: p, log: log, now: now, hub: hub.Closed(&now.rules), closing: &closers{}}
	defer func() {
		if err != nil {
			_ = m.closing.run()
		}
	}()
	a := &App{Config: c, log: log, effective: now, restarts: &restarts{c: c, log: log}, hub: m.hub,
		certificate: CertificateSource(c, log), closing: m.closing}
	if m.replicas, err = m.openReplicas(ctx); err != nil {
		return nil, err
	}
	a.replicas = m.replicas
	if a.records, err = m.openRecords(ctx); err != nil {
		return nil, err
	}
	found := registries.New(log, Version)
	if err := found.Open(ctx, c); err != nil {
		return nil, err
	}
	runtimes, err := m.openRuntimes(ctx)
	if err != nil {
		return nil, err
	}
	if a.templating, err = m.openTemplates(ctx, runtimes, found); err != nil {
		return nil, err
	}
	if a.sandboxes, err = m.openSandboxes(ctx, a.records, a.templating, runtimes); err != nil {
		return nil, err
	}
	if a.access, err = m.openAccess(ctx, a.records); err != nil {
		return nil, err
	}
	a.prewarming = m.openPrewarming(a.sessions)
	if a.gateway, err = m.openGateway(a.records, a.templating, a.access, a.prewarming); err != nil {
		return nil, err
	}
	if a.tooling, err = m.openTools(a.records, a.templating, a.sandboxes, a.access, a.gateway); err != nil {
		return nil, err
	}
	metrics, err := m.openHub(ctx, a)
	if err != nil {
		return nil, err
	}
	a.api = m.openAPI(a.access, a.gateway, runtimes, metrics)
	if err := a.servers.Recover(ctx); err != nil {
		return nil, fmt.Errorf("reading the connections: %w", err)
	}
	a.configureServers(ctx, c)
	a.templates.OnChange(func() {
		a.pool.Refresh()
		a.tools.Refresh()
		a.gateway.SyncOwn()
		a.pulls.Changed()
	})
	return a, nil
}

// sandboxes are the sandboxes, the sessions that have them, and the ways into and out of them.
type sandboxes struct {
	networking
	runtimes  runtimeList
	volumes   *volume.Volumes
	pool      *pool.Pool
	sessions  *session.Sessions
	snapshots *snapshot.Snapshots
	builder   *template.Builder
	ports     *port.Ports
	images    *inventory.Inventory
	pulls     *inventory.Pulls
}

// openSandboxes creates the pool and the sessions, and recovers the sessions of the previous server.
func (m maker) openSandboxes(ctx context.Context, r records, t templating, runtimes runtimeList) (s sandboxes,
	err error) {
	c := m.c
	workspaces, err := workspace.Open(filepath.Join(c.Server.StateDir, "workspaces"))
	if err != nil {
		return s, err
	}
	s.runtimes = runtimes
	s.volumes = volume.New(volume.Config{Mounts: mounts(c), LimitBytes: int64(c.VolumeLimitMB) << 20,
		Seal: runtimes.seal, Log: m.log})
	sessionFlavors, defaultFlavor := flavors(c)
	s.pool = pool.New(pool.Config{Runtime: runtimes[0], Further: runtimes[1:], Workspaces: workspaces,
		Volumes:   s.volumes.Mounts,
		Processes: int64(c.Runtime.MaxProcesses), DiskBytes: int64(c.Runtime.DiskMB) << 20,
		BootTimeout:   c.Runtime.StartTimeout,
		OrphanTimeout: c.Sessions.OrphanTimeout, WarmPerTemplate: c.Runtime.OwnPoolSize,
		WarmMemoryMB: c.Runtime.PoolMemoryMB,
		Templates:    t.templates.Ready, Flavors: sessionFlavors, Flavor: defaultFlavor, Log: m.log})
	if s.networking, err = m.openNetwork(ctx, r, runtimes); err != nil {
		return s, err
	}
	m.openSessions(&s, r, t)
	m.now.setRules(c, m.parsed.rules, m.log)
	if err := m.setQuotas(ctx, r.store); err != nil {
		return s, err
	}
	m.now.apply(&activeSettings{c, m.parsed.policies}, s.sessions, t.registries)
	s.images, s.pulls = m.openInventory()
	s.builder = template.NewBuilder(template.Config{Set: t.templates, Pool: s.pool, Flavor: defaultFlavor, Log: m.log,
		Imager: imagerOf(s.pool, s.images.Store),
		Dir:    RecordsFolder(c.Server.StateDir), Prepare: t.registries.Prepare,
		Outlet: func(name, box string) *egress.Outlet {
			return s.egress.Outlet(egress.Owner{Principal: "template " + name, Sandbox: box},
				s.sessions.TemplatePolicy(name), egress.NewMeter(egress.Traffic{}, nil))
		}})
	s.builder.Load(ctx)
	if err := s.snapshots.Recover(ctx); err != nil {
		return s, err
	}
	if err := s.sessions.Recover(ctx); err != nil {
		return s, fault.Wrap(fault.Configuration, err, "the sandboxes of an earlier server could not be taken over: %v",
			err)
	}
	s.ports = port.New(port.Config{Store: r.store, SessionExists: s.sessions.Has, Links: m.parsed.links, Log: m.log})
	return s, s.ports.Recover(ctx)
}

// openSessions creates the sessions and the snapshots, which know each other.
func (m maker) openSessions(s *sandboxes, r records, t templating) {
	c := m.c.Sessions
	sessionFlavors, _ := flavors(m.c)
	rules := session.Rules{DefaultTemplate: t.firstTemplate, DefaultFlavor: c.DefaultFlavor, Templates: t.templates,
		Flavors: sessionFlavors, MaxSessions: c.MaxSessions, MaxMemoryMB: c.MaxMemoryMB, IdleTimeout: c.IdleTimeout,
		Retention: c.Retention, SweepInterval: c.SweepInterval, EvictIdle: c.EvictIdle,
		Hibernation: hibernation(c.Hibernate), AgentTimeout: 10 * time.Second}
	s.snapshots = snapshot.New(snapshot.Config{Store: r.store, Log: m.log, DiskBytes: rules.Hibernation.DiskBytes,
		Permits: m.hub})
	var keeper session.Keeper = s.snapshots
	if m.replicas != nil {
		keeper = keptOfAll{s.snapshots, r.store}
	}
	s.sessions = session.New(session.Config{Pool: s.pool, Store: r.store, HistoryStore: r.store, Log: m.log,
		Egress: s.egress,
		Bound:  boundSettings{s.bound, t.registries.Certificates()}, Sealer: s.vault, Quotas: m.now.quotas,
		Events: r.events, Rules: rules, Permits: m.hub, Keeper: keeper})
	s.snapshots.Sessions = s.sessions
}

func hibernation(h config.Hibernate) session.Hibernation {
	return session.Hibernation{Enabled: h.Enabled, Background: session.Background(h.Background), Jobs: h.Jobs,
		ImageBytes: int64(h.MaxImageMB) << 20, DiskBytes: int64(h.DiskMB) << 20, Keep: h.Keep,
		PackAfter: h.CompressAfter}
}

// networking is the network broker, and the secrets that it uses.
type networking struct {
	vault  *vault.Vault
	bound  *bound.Terminator
	egress *egress.Broker
}

// openNetwork opens the vault, and creates the network broker.
func (m maker) openNetwork(ctx context.Context, r records, runtimes runtimeList) (n networking, err error) {
	n.vault = openVault(m.c, r.store)
	n.vault.Quotas = m.now.quotas
	if err := n.vault.FinishRekey(ctx, r.store); err != nil {
		return n, err
	}
	if err := n.vault.OpenKeyring(ctx, r.store); err != nil {
		return n, err
	}
	if err := n.vault.Check(); err != nil {
		return n, err
	}
	if err := n.vault.CheckStored(ctx, r.store); err != nil {
		return n, err
	}
	if err := m.sealImages(ctx, n.vault, r.store, runtimes); err != nil {
		return n, err
	}
	c := m.c.Network
	n.bound = bound.New(n.vault, m.log)
	n.egress = egress.New(egress.Config{Log: m.log, Events: r.events, Resolve: m.now.resolveHost, Terminator: n.bound,
		Reach: m.hub.Reach, Asker: m.hub.Asker(),
		Limits: egress.Limits{Connections: c.MaxConnections, Rate: c.ConnectionRate,
			Bytes: int64(c.MaxMB) << 20, Idle: c.Idle}})
	return n, nil
}

// prewarming boots home sessions before they are used.
type prewarming struct {
	of            *session.Sessions
	prewarms      sync.WaitGroup
	prewarmCtx    context.Context
	cancelPrewarm context.CancelFunc
}

func (m maker) openPrewarming(of *session.Sessions) *prewarming {
	p := &prewarming{of: of}
	p.prewarmCtx, p.cancelPrewarm = context.WithCancel(context.Background())
	m.closing.add(func() error { p.cancelPrewarm(); return nil })
	return p
}

// prewarm boots a principal's home session in the background, when the principal's client connects.
func (p *prewarming) prewarm(who auth.Principal) {
	if p.prewarmCtx.Err() == nil {
		p.prewarms.Go(func() { p.of.Prewarm(p.prewarmCtx, who) })
	}
}

// openGateway creates the MCP edge.
func (m maker) openGateway(r records, t templating, ac access, p *prewarming) (*gateway.Gateway, error) {
	key, err := stateKey(m.c.Server.StateDir)
	if err != nil {
		return nil, err
	}
	return gateway.New(gateway.Config{Hub: m.hub, Version: Version, SealKey: key,
		MaxBody: int64(m.c.Server.MaxBodyMB) << 20, Limits: ac.limits, Log: m.log,
		NewSession:   func(p auth.Principal) bool { return !p.Authenticated },
		TokenContext: ac.watch.TokenContext, Connected: p.prewarm, Views: m.now.views, MCPSessions: r.store,
		Ready: t.readyPackages}), nil
}

// openHub opens the hub, and returns the metrics that it counts in.
func (m maker) openHub(ctx context.Context, a *App) (*metric.Metrics, error) {
	metrics := metricsOf(a.records, a.templating, a.sandboxes)
	questions, err := question.New(ctx, a.store)
	if err != nil {
		return nil, err
	}
	m.closing.add(func() error { questions.Close(); return nil })
	if m.replicas != nil {
		m.replicas.parts.Store(&parts{a.sessions, a.snapshots, questions})
	}
	terminals := tty.New(tty.Config{Programs: tty.Of(a.sessions), Events: a.events, Log: a.log})
	m.closing.add(func() error { terminals.Close(); return nil })
	if err := m.sendTelemetry(a.telemetry, metrics); err != nil {
		return nil, err
	}
	m.hub.Open(hub.Config{Sources: []tool.Source{a.tools, a.finder, a.servers}, Sessions: a.sessions,
		Ports: a.ports, Servers: a.servers, Registries: a.serverRegistries, Vault: a.vault, SecretsChanged: a.bound.Changed,
		Templates: a.templates, Images: a.images, Pulls: a.pulls,
		Terminals: terminals, Network: a.networkState, Events: a.events, Recorder: a.recorder, Restorer: a.restarts,
		Backups: &backups{c: m.c}, Quotas: a.quotas,
		Rules: &a.rules, Questions: questions, Tokens: a.store, Log: a.log,
		Consent: func(q policy.Question, v policy.Verdict) policy.Verdict {
			return consentVerdict(a.active.Load().Config, q, v)
		},
		QuestionTimeout: func() time.Duration { return a.active.Load().Policy.QuestionTimeout },
		NetworkHold:     func() time.Duration { return a.active.Load().Network.Hold },
		Observe: func(ctx context.Context, call tool.Call, outcome string, took time.Duration) {
			label := metric.External
			if m.hub.Owns(call.Name) {
				label = call.Name
			}
			metrics.Call(label, outcome, took)
			m.log.InfoContext(ctx, "tool call", "principal", call.Principal.ID, "tool", call.Name, "outcome", outcome,
				"took", took)
		}})
	return metrics, nil
}

// openAPI creates the HTTP edge.
func (m maker) openAPI(ac access, g *gateway.Gateway, runtimes runtimeList, metrics *metric.Metrics) *api.Server {
	c := m.c.Server
	listed, localPages := origins(c)
	var logins *console.Logins
	if c.Console {
		logins = console.NewLogins(ac.authenticator, c.PortsDomain)
		m.closing.add(logins.Close)
		if len(ac.verifier.Providers()) > 0 {
			logins.UseProviders(ac.verifier, m.log)
		}
	}
	var sendOn *forward.Forwarder
	if m.replicas != nil {
		sendOn = m.replicas.forward
	}
	return api.New(api.Config{Forward: sendOn, Authenticator: ac.authenticator, Logins: logins, TokenWatch: ac.watch, Limits: ac.limits,
		Gateway: g, Hub: m.hub, Metrics: metrics, CheckRuntime: runtimes.check, Version: Version,
		PublicURL: c.PublicURL, Log: m.log, Resource: resource(m.c), Proxies: c.TrustedProxies,
		Origins: api.OriginCheck{Loopback: auth.Loopback(c.Host), CORS: c.CORS,
			Origins: listed, LocalPages: localPages, TokenRequired: ac.tokenRequired}})
}

func metricsOf(r records, t templating, s sandboxes) *metric.Metrics {
	names := []string{}
	for _, t := range t.templates.List() {
		names = append(names, t.Name)
	}
	m := metric.New(s.sessions.Live, s.pool.Sizes, names)
	m.CountStarts(s.pool.Started)
	m.CountNetwork(s.egress.Totals)
	if r.recorder != nil {
		m.CountEvents(r.recorder.Stats)
	}
	return m
}

// startTasks starts everything that the server does by itself, until ctx ends.
func (a *App) startTasks(background context.Context, tasks *sync.WaitGroup) {
	tasks.Go(func() { a.reportRuntimes(background) })
	tasks.Go(func() { a.makeStack(background) })
	tasks.Go(func() { a.watchHost(background, a.hostVersion) })
	tasks.Go(func() { a.pool.Run(background) })
	tasks.Go(func() { a.builder.Run(background) })
	tasks.Go(func() { a.sessions.Run(background) })
	tasks.Go(func() { a.pool.Workspaces.Run(background, a.log) })
	tasks.Go(func() { a.pool.RunVolumes(background, a.sessions.Workspaces) })
	tasks.Go(func() { a.volumes.Run(background) })
	tasks.Go(func() { a.reapOrphans(background) })
	tasks.Go(func() { a.watchSettings(background) })
	tasks.Go(func() { a.ports.Run(background) })
	tasks.Go(func() { a.watch.Run(background) })
	if a.verifier != nil {
		tasks.Go(func() { a.verifier.Run(background) })
	}
	if a.api.Logins != nil {
		tasks.Go(func() { a.api.Logins.Run(background) })
	}
	tasks.Go(func() { boundMemory(background) })
	tasks.Go(func() { a.gateway.Run(background) })
	tasks.Go(func() { a.servers.Run(background) })
}

// Run serves on the listeners until ctx ends. Then it waits for running calls to end, for at most grace.
func (a *App) Run(ctx context.Context, networkListeners []net.Listener, ownerListener net.Listener,
	grace time.Duration) error {
	if err := restoresOf(a.Config, a.log).Confirm(); err != nil {
		return fmt.Errorf("completing a restore: %w", err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var tasks sync.WaitGroup
	a.startTasks(background, &tasks)
	if len(networkListeners) == 0 {
		a.ports.SetOffline()
	} else {
		a.api.Listens(ownAddress(a.Config.Server, networkListeners[0].Addr()))
	}

	conns := conn.NewLimiter(a.api.Proxies.ContainsAddr)
	debug := slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)
	networkServer := &http.Server{Handler: a.api.Handler(), ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 5 * time.Minute,
		ConnContext: conns.ConnContext, MaxHeaderBytes: 64 << 10, ErrorLog: debug}
	ownerServer := &http.Server{Handler: a.api.SocketHandler(), ReadHeaderTimeout: 20 * time.Second, ErrorLog: debug}
	networkServer.RegisterOnShutdown(a.ports.Drain)
	networkServer.RegisterOnShutdown(a.events.Close)
	networkServer.RegisterOnShutdown(a.gateway.EndStreams)
	failed := make(chan error, len(networkListeners)+2)
	var serving sync.WaitGroup
	for _, l := range networkListeners {
		serving.Go(func() { failed <- networkServer.Serve(a.certificate.Listener(conns.Listener(l))) })
	}
	serving.Go(func() { failed <- ownerServer.Serve(ownerListener) })
	all := []*http.Server{networkServer, ownerServer}
	if a.replicas != nil {
		others := a.replicas.server(a.api.ReplicaHandler(), a.log)
		serving.Go(func() { failed <- others.ServeTLS(a.replicas.listener, "", "") })
		all = append(all, others)
	}

	var err error
	select {
	case <-ctx.Done():
		a.log.Info("stopping; running calls may end", "within", grace)
	case <-a.restart:
		grace = restartGrace
		a.log.Info("restarting; running calls may end", "within", grace)
		a.restarting, a.sockets = true, keepSockets(networkListeners)
	case err = <-failed:
	case err = <-a.lost():
		a.log.Error("stopping", "error", err)
	}
	a.cancelPrewarm()
	drainCtx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var closing sync.WaitGroup
	for _, s := range all {
		closing.Go(func() {
			if s.Shutdown(drainCtx) != nil {
				s.Close()
			}
		})
	}
	closing.Wait()
	serving.Wait()
	a.api.EndTunnels(drainCtx)
	stop()
	tasks.Wait()
	a.removeVolumes()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// removeVolumes removes the volumes of the workspaces that were removed last. The next server tries again.
func (a *App) removeVolumes() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.pool.RemoveVolumes(ctx, a.sessions.Workspaces); err != nil {
		a.log.Warn("could not remove all volumes of workspaces that are gone; the next server does", "error", err)
	}
}

// reapOrphans periodically removes sandboxes that neither the pool nor a session owns.
func (a *App) reapOrphans(ctx context.Context) {
	tick := time.NewTicker(a.Config.Sessions.OrphanSweepInterval)
	defer tick.Stop()
	suspects := map[string]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		next := map[string]bool{}
		for _, box := range a.runtimes.sandboxes() {
			id := box.Spec().ID
			if a.pool.Owns(id) || a.sessions.Owns(id) {
				continue
			}
			if !suspects[id] { // it may be between the pool and a session: look again next time
				next[id] = true
				continue
			}
			a.log.Warn("removing a sandbox without an owner", "sandbox", id)
			if err := box.Stop(ctx); err != nil {
				a.log.Error("could not remove an orphan", "sandbox", id, "error", err)
			}
		}
		suspects = next
	}
}

// NeedsToken reports whether clients over the network need a token; true on an error.
func (a *App) NeedsToken(ctx context.Context) bool {
	required, err := a.authenticator.TokenRequired(ctx)
	return required || err != nil
}

// When the server stops, sessions are put to sleep for restTimeout. What has begun by then may take restOvertime.
const (
	restTimeout  = 25 * time.Second
	restOvertime = 5 * time.Second
)

// Rest does with the sessions' sandboxes what the setting on_stop says. It is called after Run.
func (a *App) Rest() {
	mode := a.Config.Sessions.OnStop
	if mode == config.StopKeep {
		return
	}
	a.endCalls()
	a.servers.Close() // third-party servers use sessions
	ctx, cancel := context.WithTimeout(context.Background(), restTimeout)
	defer cancel()
	a.sessions.EndAll(ctx, mode == config.StopHibernate, restOvertime)
}

// Close closes everything. The sessions' sandboxes keep running, for the next server, unless Rest has ended them.
func (a *App) Close() error {
	a.endCalls()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a.gateway.Close()
	a.sessions.Close(ctx)
	a.pool.Wait()
	return a.closing.run()
}

// RestOwned is Rest for a server after which no next one may come. Where sessions do not sleep, it stops the sandboxes
// that this server has booted, with on_stop: keep too. Sessions and files are kept, and so are the sandboxes that this
// server has adopted.
func (a *App) RestOwned() {
	if a.Config.Sessions.OnStop == config.StopHibernate {
		a.Rest()
		return
	}
	a.endCalls()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.sessions.StopOwned(ctx)
}

// Destroy ends all sessions, deletes their files, and closes the server. It is for a server that was
// started for a single command.
func (a *App) Destroy() error {
	a.endCalls()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.sessions.StopAll(ctx)
	a.pool.Wait()
	a.removeVolumes() // no next server does
	return a.closing.run()
}

// endCalls cancels prewarming, and the calls whose clients have disconnected, and waits for both.
func (a *App) endCalls() {
	a.cancelPrewarm()
	a.prewarms.Wait()
	a.calls.Close()
	a.tools.Close()
	a.api.Close()
}

// closers close what was opened.
type closers []func() error

// add makes run call a function, before those that were added earlier.
func (c *closers) add(close func() error) { *c = append(*c, close) }

// background runs a task until what was opened is closed.
func (c *closers) background(task func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { task(ctx) })
	c.add(func() error {
		stop()
		running.Wait()
		return nil
	})
}

// run calls all functions, in reverse order.
func (c *closers) run() error {
	var errs []error
	for _, close := range slices.Backward(*c) {
		errs = append(errs, close())
	}
	*c = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing: %w", err)
	}
	return nil
}
