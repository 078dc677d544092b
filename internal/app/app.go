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
	"sync/atomic"
	"time"

	"sandlot/internal/api"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/metric"
	"sandlot/internal/app/memorylimit"
	"sandlot/internal/app/registries"
	"sandlot/internal/app/stack"
	"sandlot/internal/audit"
	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/builtin"
	"sandlot/internal/certificate"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/egress/bound"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/finder"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/port"
	"sandlot/internal/question"
	"sandlot/internal/quota"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/session/awake"
	"sandlot/internal/snapshot"
	"sandlot/internal/store"
	"sandlot/internal/telemetry"
	"sandlot/internal/template"
	"sandlot/internal/tool"
	"sandlot/internal/toolcall"
	"sandlot/internal/toolview"
	"sandlot/internal/vault"
	"sandlot/internal/volume"
	"sandlot/internal/workspace"
)

// App is a server. New opens everything, Run serves, and Close closes everything.
type App struct {
	Config *config.Config

	log           *slog.Logger
	store         *store.DB
	runtimes      runtimeList
	templates     *template.Set
	hostVersion   string        // of the template host: see hostNow
	hostChanged   chan struct{} // receives when the machine's packages have changed
	stack         *stack.Stack
	firstTemplate string // of new sessions
	builder       *template.Builder
	volumes       *volume.Volumes
	egress        *egress.Broker
	pool          *pool.Pool
	sessions      *session.Sessions
	snapshots     *snapshot.Snapshots
	ports         *port.Ports
	verifier      *oidc.Verifier // nil: there are no OIDC issuers
	authenticator *auth.Authenticator
	watch         *auth.TokenWatch
	certificate   *certificate.Source // nil: plain HTTP
	vault         *vault.Vault
	bound         *bound.Terminator
	servers       *servers.Servers
	tools         *builtin.Tools
	calls         *toolcall.Calls
	gateway       *gateway.Gateway
	finder        *finder.Finder
	views         *toolview.Views
	api           *api.Server
	events        *event.Stream
	recorder      *audit.Recorder     // nil: events are only in memory
	telemetry     *telemetry.Exporter // nil: there is no collector
	registries    *registries.Registries
	active        atomic.Pointer[activeSettings]
	rules         policy.Current
	quotas        *quota.Quotas
	hub           *hub.Hub
	needRestart   []string // changed settings that need a restart; only watchSettings uses it

	restart    chan struct{} // receives when the server is to restart within its process; nil: it cannot
	restoring  sync.Mutex    // held while a restore is prepared
	restarting bool          // set by Run: the server has ended to restart
	sockets    []*os.File    // set by Run: they listen until the next server does

	applyMu       sync.Mutex // held during changes of active
	closers       []func() error
	prewarms      sync.WaitGroup
	prewarmCtx    context.Context // of home sessions that boot before they are used; see prewarm
	cancelPrewarm context.CancelFunc
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
	a.closers = slices.Insert(a.closers, 0, lock.Close) // the last one to be called
	return a, nil
}

// open creates a server in a state folder that the caller has locked.
func open(ctx context.Context, c *config.Config, log *slog.Logger) (_ *App, err error) {
	a := &App{Config: c, log: log, events: event.New(), registries: registries.New(log, Version),
		certificate: CertificateSource(c, log), quotas: quota.New(), views: toolview.New(),
		calls: toolcall.New(toolcall.Config{})}
	a.hub = hub.Closed(&a.rules)
	a.prewarmCtx, a.cancelPrewarm = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			a.runClosers()
		}
	}()
	if err := a.openStore(ctx); err != nil {
		return nil, err
	}
	if err := a.openTelemetry(ctx); err != nil {
		return nil, err
	}
	if err := a.recordEvents(ctx); err != nil {
		return nil, err
	}
	if err := a.registries.Open(ctx, c); err != nil {
		return nil, err
	}
	if a.runtimes, err = Runtimes(c, log); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, func() error { return closeAll(a.runtimes) })
	if err := choose(ctx, a.runtimes); err != nil {
		return nil, err
	}
	defaultTemplate, err := a.openTemplates(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.openSessions(ctx, defaultTemplate); err != nil {
		return nil, err
	}
	if err := a.openEdges(ctx); err != nil {
		return nil, err
	}
	if err := a.servers.Recover(ctx); err != nil {
		return nil, fmt.Errorf("reading the connections: %w", err)
	}
	a.configureServers(ctx, c)
	a.templates.OnChange(func() {
		a.pool.Refresh()
		a.tools.Refresh()
		a.gateway.SyncOwn()
	})
	return a, nil
}

// openSessions creates the pool and the sessions, and recovers the sessions of the previous server.
func (a *App) openSessions(ctx context.Context, defaultTemplate string) error {
	c := a.Config
	workspaces, err := workspace.Open(filepath.Join(c.Server.StateDir, "workspaces"))
	if err != nil {
		return err
	}
	a.volumes = volume.New(volume.Config{Mounts: mounts(c), LimitBytes: int64(c.VolumeLimitMB) << 20,
		Seal: a.runtimes.seal, Log: a.log})
	sessionFlavors, defaultFlavor := flavors(c)
	a.pool = pool.New(pool.Config{Runtime: a.runtimes[0], Further: a.runtimes[1:], Workspaces: workspaces,
		Volumes:   a.volumes.Mounts,
		Processes: int64(c.Runtime.MaxProcesses), DiskBytes: int64(c.Runtime.DiskMB) << 20,
		BootTimeout:   c.Runtime.StartTimeout,
		OrphanTimeout: c.Sessions.OrphanTimeout, WarmPerTemplate: c.Runtime.OwnPoolSize,
		WarmMemoryMB: c.Runtime.PoolMemoryMB,
		Templates:    a.templates.Ready, Flavors: sessionFlavors, Flavor: defaultFlavor, Log: a.log})
	if err := a.openNetwork(ctx); err != nil {
		return err
	}
	limits := session.Rules{DefaultTemplate: defaultTemplate, DefaultFlavor: c.Sessions.DefaultFlavor,
		Templates: a.templates, Flavors: sessionFlavors, MaxSessions: c.Sessions.MaxSessions,
		MaxMemoryMB: c.Sessions.MaxMemoryMB,
		IdleTimeout: c.Sessions.IdleTimeout, Retention: c.Sessions.Retention, SweepInterval: c.Sessions.SweepInterval,
		EvictIdle:    c.Sessions.EvictIdle,
		Hibernation:  hibernation(c.Sessions.Hibernate),
		AgentTimeout: 10 * time.Second,
		MayCreate:    a.hub.MayCreateSession}
	a.snapshots = snapshot.New(snapshot.Config{Store: a.store, Log: a.log, DiskBytes: limits.Hibernation.DiskBytes,
		MayCreate: a.hub.MaySnapshot, MayCopy: a.hub.MayCopy})
	a.sessions = session.New(session.Config{Pool: a.pool, Store: a.store, Log: a.log, Egress: a.egress,
		OnSandbox: a.calls.AttachClient, Bound: boundSettings{a.bound, a.registries.Certificates()},
		Sealer: a.vault, Quotas: a.quotas, Events: a.events, Rules: limits,
		Kept: a.snapshots.Kept, KeptBytes: a.snapshots.Bytes})
	a.snapshots.Sessions = a.sessions
	networkPolicies, err := policies(c)
	if err != nil {
		return err
	}
	rules, err := compileRules(c)
	if err != nil {
		return err
	}
	a.setRules(c, rules)
	if err := a.setQuotas(ctx); err != nil {
		return err
	}
	a.apply(&activeSettings{c, networkPolicies})
	a.builder = template.NewBuilder(template.Config{Set: a.templates, Pool: a.pool, Flavor: defaultFlavor, Log: a.log,
		Imager: imagerOf(a.pool, openImages(c.Server.StateDir, a.log)),
		Dir:    filepath.Join(c.Server.StateDir, "templates"), Prepare: a.registries.Prepare,
		Outlet: func(name, box string) *egress.Outlet {
			return a.egress.Outlet(egress.Owner{Principal: "template " + name, Sandbox: box},
				a.sessions.TemplatePolicy(name), egress.NewMeter(egress.Traffic{}, nil))
		}})
	a.builder.Load(ctx)
	if err := a.snapshots.Recover(ctx); err != nil {
		return err
	}
	if err := a.sessions.Recover(ctx); err != nil {
		return fault.Wrap(fault.Configuration, err, "what an earlier server left could not be taken over: %v", err)
	}
	return nil
}

func hibernation(h config.Hibernate) session.Hibernation {
	return session.Hibernation{Enabled: h.Enabled, Background: awake.Background(h.Background), Jobs: h.Jobs,
		ImageBytes: int64(h.MaxImageMB) << 20, DiskBytes: int64(h.DiskMB) << 20, Keep: h.Keep,
		PackAfter: h.CompressAfter}
}

// openNetwork opens the vault, and creates the network broker.
func (a *App) openNetwork(ctx context.Context) error {
	c := a.Config
	a.vault = openVault(c, a.store)
	a.vault.Quotas = a.quotas
	if err := a.vault.FinishRekey(ctx, a.store); err != nil {
		return err
	}
	if err := a.vault.OpenKeyring(ctx, a.store); err != nil {
		return err
	}
	if err := a.vault.Check(); err != nil {
		return err
	}
	if err := a.vault.CheckStored(ctx, a.store); err != nil {
		return err
	}
	if err := a.sealImages(ctx); err != nil {
		return err
	}
	a.bound = bound.New(a.vault, a.log)
	a.egress = egress.New(egress.Config{Log: a.log, Events: a.events, Resolve: a.resolveHost, Terminator: a.bound,
		Reach: a.hub.Reach, Asker: a.hub.Asker(),
		Limits: egress.Limits{Connections: c.Network.MaxConnections, Rate: c.Network.ConnectionRate,
			Bytes: int64(c.Network.MaxMB) << 20, Idle: c.Network.Idle}})
	return nil
}

// openEdges creates everything that clients see. The third-party servers, which it creates first, notify
// a.gateway, which it creates last: that is safe, as no third-party server runs yet.
func (a *App) openEdges(ctx context.Context) error {
	c := a.Config
	err := a.openAuthenticator(ctx)
	if err != nil {
		return err
	}
	a.watch = auth.NewTokenWatch(a.authenticator, a.log, a.events)
	links, err := links(c)
	if err != nil {
		return err
	}
	a.ports = port.New(port.Config{Store: a.store, SessionExists: a.sessions.Has, Links: links, Log: a.log})
	if err := a.ports.Recover(ctx); err != nil {
		return err
	}
	limits := limit.Default
	limits[limit.RequestBytes] = max(limits[limit.RequestBytes], 2*int64(c.Server.MaxBodyMB)<<20)
	limiter := limit.New(limits)
	if err := a.openServers(ctx, limiter); err != nil {
		return err
	}
	sessionFlavors, _ := flavors(c)
	a.tools = builtin.New(builtin.Config{Events: a.events, Sessions: a.sessions, Snapshots: a.snapshots, Ports: a.ports,
		Calls: a.calls, Connections: a.servers, Connected: a.offersTools, Consent: tool.Policy(c.MCP.Consent),
		Templates: a.templates.Offered, Flavors: sessionFlavors,
		Volumes: a.volumes.Usage,
		Timeout: c.Sessions.CallTimeout, MaxTimeout: c.Sessions.MaxCallTimeout, MaxOutput: c.Output.MaxCharacters,
		Labeled: c.Output.Style == "labeled", TokenContext: a.watch.TokenContext, Log: a.log})
	metrics := a.metrics()
	questions, err := question.New(ctx, a.store)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, func() error { questions.Close(); return nil })
	if err := a.sendTelemetry(metrics); err != nil {
		return err
	}
	a.hub.Open(hub.Config{Sources: []tool.Source{a.tools, a.finder, a.servers}, Sessions: a.sessions,
		Ports: a.ports, Servers: a.servers, Vault: a.vault, SecretsChanged: a.bound.Changed, Templates: a.templates,
		Network: a.networkState, Events: a.events, Recorder: a.recorder, Restorer: a, Quotas: a.quotas,
		Rules: &a.rules, Questions: questions, Log: a.log,
		QuestionTimeout: func() time.Duration { return a.active.Load().Policy.QuestionTimeout },
		NetworkHold:     func() time.Duration { return a.active.Load().Network.Hold },
		Observe: func(ctx context.Context, call tool.Call, outcome string, took time.Duration) {
			label := metric.External
			if a.hub.Owns(call.Name) {
				label = call.Name
			}
			metrics.Call(label, outcome, took)
			a.log.InfoContext(ctx, "tool call", "principal", call.Principal.ID, "tool", call.Name, "outcome", outcome,
				"took", took)
		}})
	key, err := stateKey(c.Server.StateDir)
	if err != nil {
		return err
	}
	a.gateway = gateway.New(gateway.Config{Hub: a.hub, Version: Version, SealKey: key,
		MaxBody: int64(c.Server.MaxBodyMB) << 20,
		Limits:  limiter, Log: a.log, NewSession: func(p auth.Principal) bool { return !p.Authenticated },
		TokenContext: a.watch.TokenContext, Connected: a.prewarm, Views: a.views, MCPSessions: a.store,
		Ready: a.readyPackages})
	a.calls.Clients = a.gateway
	listed, localPages := origins(c.Server)
	a.api = api.New(api.Config{Authenticator: a.authenticator, TokenWatch: a.watch, Limits: limiter,
		Gateway: a.gateway, Hub: a.hub,
		Metrics: metrics, CheckRuntime: a.runtimes.check, Version: Version, PublicURL: c.Server.PublicURL, Log: a.log,
		Resource: resource(c), Proxies: c.Server.TrustedProxies,
		Origins: api.OriginCheck{Loopback: auth.Loopback(c.Server.Host), CORS: c.Server.CORS,
			Origins: listed, LocalPages: localPages, TokenRequired: a.tokenRequired}})
	return nil
}

func (a *App) metrics() *metric.Metrics {
	names := []string{}
	for _, t := range a.templates.List() {
		names = append(names, t.Name)
	}
	m := metric.New(a.sessions.Live, a.pool.Sizes, names)
	m.CountStarts(a.pool.Started)
	m.CountNetwork(a.egress.Totals)
	if a.recorder != nil {
		m.CountEvents(a.recorder.Stats)
	}
	return m
}

// offersTools reports whether a principal has tools of third-party servers.
func (a *App) offersTools(ctx context.Context, p auth.Principal) bool {
	return len(a.servers.Tools(ctx, p)) > 0
}

// prewarm boots a principal's home session in the background, when the principal's client connects.
func (a *App) prewarm(p auth.Principal) {
	if a.prewarmCtx.Err() == nil {
		a.prewarms.Go(func() { a.sessions.Prewarm(a.prewarmCtx, p) })
	}
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
	tasks.Go(func() { memorylimit.Bound(background) })
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
	failed := make(chan error, len(networkListeners)+1)
	var serving sync.WaitGroup
	for _, l := range networkListeners {
		serving.Go(func() { failed <- networkServer.Serve(a.certificate.Listener(conns.Listener(l))) })
	}
	serving.Go(func() { failed <- ownerServer.Serve(ownerListener) })

	var err error
	select {
	case <-ctx.Done():
		a.log.Info("stopping; running calls may end", "within", grace)
	case <-a.restart:
		grace = restartGrace
		a.log.Info("restarting; running calls may end", "within", grace)
		a.restarting, a.sockets = true, keepSockets(networkListeners)
	case err = <-failed:
	case err = <-a.store.Lost():
		a.log.Error("stopping", "error", err)
	}
	a.cancelPrewarm()
	drainCtx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var closing sync.WaitGroup
	for _, s := range []*http.Server{networkServer, ownerServer} {
		closing.Go(func() {
			if s.Shutdown(drainCtx) != nil {
				s.Close()
			}
		})
	}
	closing.Wait()
	serving.Wait()
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
			a.log.Warn("removing a sandbox that belongs to nobody", "sandbox", id)
			if err := box.Stop(ctx); err != nil {
				a.log.Error("could not remove an orphan", "sandbox", id, "error", err)
			}
		}
		suspects = next
	}
}

// tokenRequired reports whether every request over the network needs a token now; false on an error.
func (a *App) tokenRequired(ctx context.Context) bool {
	required, err := a.authenticator.TokenRequired(ctx)
	return required && err == nil
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
	return a.runClosers()
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
	return a.runClosers()
}

// endCalls cancels prewarming, and the calls whose clients have disconnected, and waits for both.
func (a *App) endCalls() {
	a.cancelPrewarm()
	a.prewarms.Wait()
	a.calls.Close()
	a.tools.Close()
	a.api.Close()
}

// runClosers calls the closers of what New has opened, in reverse order.
func (a *App) runClosers() error {
	a.cancelPrewarm()
	var errs []error
	for _, c := range slices.Backward(a.closers) {
		errs = append(errs, c())
	}
	a.closers = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing: %w", err)
	}
	return nil
}
