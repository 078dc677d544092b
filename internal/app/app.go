// Package app is the one place where everything is put together: settings in,
// a running server out.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/api"
	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/image"
	"sandlot/internal/limit"
	"sandlot/internal/pool"
	"sandlot/internal/port"
	"sandlot/internal/sandbox"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/store"
	"sandlot/internal/tool"
	"sandlot/internal/vault"
	"sandlot/internal/volume"
	"sandlot/internal/workspace"
)

// App is one server. New opens what it needs, Run serves, Close lets go.
type App struct {
	Config  *config.Config
	Gateway *gateway.Gateway
	Book    *session.Sessions
	Pool    *pool.Pool

	log     *slog.Logger
	lock    *os.File
	store   *store.DB
	runtime sandbox.Runtime
	api     *api.Server
	door    *auth.Door
	watch   *auth.Watch
	ports   *port.Ports
	third   *servers.Servers
	tools   *builtin.Tools
	vault   *vault.Vault
	events  *event.Stream
	egress  *egress.Broker
	volumes *volume.Volumes
	hosts   atomic.Pointer[map[string]netip.Addr]
	found   atomic.Pointer[[]egress.Rule] // registries
	stale   bool                          // what is known of them is not fresh
	latest  atomic.Pointer[config.Config] // whose network section holds
	waiting []string                      // settings that the next start takes up; of follow alone

	applying sync.Mutex // held while that changes
	closers  []func() error
	warming  sync.WaitGroup
	warm     context.Context // of homes that boot before they are used
	cold     context.CancelFunc
}

// Version is set when the program is linked.
var Version = "0.1.0-dev"

// SocketPath is where the owner's commands reach the server of that state folder.
func SocketPath(stateDir string) string { return filepath.Join(stateDir, "api.sock") }

// New puts a server together. It takes the state folder for itself, and takes
// over the sandboxes that an earlier server left.
func New(ctx context.Context, c *config.Config, log *slog.Logger) (_ *App, err error) {
	a := &App{Config: c, log: log, events: event.New()}
	a.warm, a.cold = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			a.release()
		}
	}()
	if err := a.takeState(); err != nil {
		return nil, err
	}
	if a.store, err = store.Open(ctx, c.Server.StateDir); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the database in %s cannot be used: %v", c.Server.StateDir, err)
	}
	a.closers = append(a.closers, a.store.Close)
	templates, err := Templates(c)
	if err != nil {
		return nil, err
	}
	if err := a.provide(ctx, templates); err != nil {
		return nil, err
	}
	if a.runtime, err = Runtime(c, log); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.runtime.Close)
	if w, ok := a.runtime.(sandbox.Warner); ok && w.Warning() != "" {
		log.Warn(w.Warning())
	}
	workspaces, err := workspace.Open(filepath.Join(c.Server.StateDir, "workspaces"))
	if err != nil {
		return nil, err
	}
	a.egress = egress.New(egress.Config{Log: log, Events: a.events, Limits: c.Network.Limits, Resolve: a.addresses})
	a.sessions(templates, workspaces)
	if err := a.Book.Recover(ctx, a.runtime); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "what an earlier server left could not be taken over: %v", err)
	}
	return a, a.edges(ctx, templates)
}

// takeState makes the state folder and makes sure that it has one server.
func (a *App) takeState() error {
	dir := a.Config.Server.StateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(fault.Configuration, err, "the state folder %s cannot be made: %v; name another with --state-dir", dir, err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	a.Config.Server.StateDir = real
	if err := os.Chmod(real, 0o700); err != nil {
		return fault.Wrap(fault.Configuration, err, "the state folder %s is not yours: %v; name another with --state-dir", real, err)
	}
	f, err := os.OpenFile(filepath.Join(real, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "the state folder %s cannot be written: %v", real, err)
	}
	if err := take(f); err != nil {
		f.Close()
		return fault.Wrap(fault.Configuration, ErrRunning, "another server uses the state folder %s; stop it, or name another folder with --state-dir", real)
	}
	a.lock = f
	if err := sign(f); err != nil {
		return fault.Wrap(fault.Configuration, err, "the state folder %s cannot be written: %v", real, err)
	}
	return nil
}

// ErrRunning is in the chain of New's error when the state folder has a server.
var ErrRunning = errors.New("a server is running")

// Templates returns what sessions can be made of: the machine's own programs,
// and the operator's root file systems.
func Templates(c *config.Config) ([]*image.Template, error) {
	host, err := image.Host()
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the template host cannot be made of this machine: %v", err)
	}
	all := append([]*image.Template{host}, c.Templates...)
	names := []string{}
	for _, t := range all {
		if t.Serves(c.Sessions.DefaultTemplate) {
			return all, nil
		}
		names = append(names, append([]string{t.Name}, t.Provides...)...)
	}
	return nil, fault.New(fault.Configuration, "default_template=%q: must be one of %s", c.Sessions.DefaultTemplate, strings.Join(names, ", "))
}

func (a *App) sessions(templates []*image.Template, workspaces *workspace.Store) {
	c := a.Config
	flavor := c.Flavors[0]
	for _, f := range c.Flavors {
		if f.Name == c.Sessions.DefaultFlavor {
			flavor = f
		}
	}
	a.volumes = volume.New(volume.Config{Mounts: c.Volumes, LimitBytes: int64(c.VolumeMB) << 20, Log: a.log})
	if s, ok := a.runtime.(sandbox.Sealer); ok {
		a.volumes.Seal = s.Seal
	}
	a.Pool = pool.New(pool.Config{Runtime: a.runtime, Workspaces: workspaces, Volumes: a.volumes.Mounts, Processes: int64(c.Runtime.Processes),
		DiskBytes: int64(c.Runtime.DiskMB) << 20, Start: c.Runtime.Start, Orphan: c.Sessions.Orphan, Warm: c.Runtime.Pool, Templates: templates, Flavor: flavor, Log: a.log})
	a.Book = session.New(session.Config{Pool: a.Pool, Store: a.store, Log: a.log, Rules: session.Rules{
		DefaultTemplate: c.Sessions.DefaultTemplate, DefaultFlavor: c.Sessions.DefaultFlavor, Templates: templates, Flavors: c.Flavors,
		MaxSessions: c.Sessions.Max, MaxMemoryMB: c.Sessions.MaxMemoryMB, Idle: c.Sessions.Timeout, Retention: c.Sessions.Retention,
		Sweep: c.Sessions.Sweep, Evict: c.Sessions.Evict, Patience: 10 * time.Second}, Egress: a.egress, Events: a.events})
	a.applyPolicies(c)
}

// edges makes everything that clients see.
func (a *App) edges(ctx context.Context, templates []*image.Template) error {
	c := a.Config
	var err error
	if a.door, err = auth.NewDoor(ctx, c.Server.Auth, c.Server.Host, a.store); err != nil {
		return err
	}
	a.watch = auth.NewWatch(a.door, a.log, a.events)
	names := []string{}
	for _, t := range templates {
		names = append(names, t.Name)
	}
	if err := a.exposed(ctx); err != nil {
		return err
	}
	metrics := api.NewMetrics(a.Book.Live, a.Pool.Sizes, names)
	metrics.Starts(a.Pool.Started)
	metrics.Network(a.egress.Totals)
	limits := limit.Default
	limits[limit.Bytes] = max(limits[limit.Bytes], 2*int64(c.Server.MaxBodyMB)<<20)
	shares := limit.New(limits)
	if err := a.connections(ctx, shares); err != nil {
		return err
	}
	a.tools = builtin.New(builtin.Config{Events: a.events, Sessions: a.Book, Ports: a.ports, Connections: a.third, Consent: c.MCP.Consent, Templates: templates, Flavors: c.Flavors, Volumes: a.volumes.Usage,
		Timeout: c.Sessions.Execution, MaxTimeout: c.Sessions.MaxExecution, MaxOutput: c.Output.Max, Labeled: c.Output.Style == "labeled",
		Hold: a.watch.Hold, Log: a.log})
	a.third.Reserved = func(name string) bool { return a.ours(name) }
	h := hub.New(hub.Config{Sources: []tool.Source{a.tools, a.third}, Sessions: a.Book, Ports: a.ports, Servers: a.third, Vault: a.vault,
		Network: a.network, Events: a.events, Log: a.log,
		Observe: func(ctx context.Context, call tool.Call, outcome string, took time.Duration) {
			label := api.External
			if a.ours(call.Name) {
				label = call.Name
			}
			metrics.Call(label, outcome, took)
			a.log.InfoContext(ctx, "tool call", "principal", call.Principal.ID, "tool", call.Name, "outcome", outcome, "took", took)
		}})
	key, err := a.key()
	if err != nil {
		return err
	}
	a.Gateway = gateway.New(gateway.Config{Hub: h, Version: Version, Key: key, MaxBody: int64(c.Server.MaxBodyMB) << 20, Limits: shares, Log: a.log,
		Fresh:     func(p auth.Principal) bool { return !p.Authenticated },
		Hold:      a.watch.Hold,
		Connected: a.prewarm})
	a.third.OnChange, a.third.OnUpdate, a.third.OnLog = a.Gateway.Changed, a.Gateway.Updated, a.Gateway.Logged
	a.api = api.New(api.Config{Door: a.door, Watch: a.watch, Limits: shares, Gateway: a.Gateway, Hub: h, Metrics: metrics, Check: a.runtime.Check,
		Version: Version, PublicURL: c.Server.PublicURL, Log: a.log, Guard: api.Guard{Loopback: auth.Loopback(c.Server.Host), CORS: c.Server.CORS, Origins: c.Server.CORSOrigins, Closed: a.closed}})
	return nil
}

// ours says whether a tool of that name is Sandlot's own.
func (a *App) ours(name string) bool {
	_, ok := a.tools.Find(auth.Local, name)
	return ok
}

// exposed takes over the ports that an earlier server exposed.
func (a *App) exposed(ctx context.Context) error {
	c := a.Config.Server
	links, err := port.NewLinks(c.Host, c.Port, c.PortsDomain)
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "ports_domain=%q: %v", c.PortsDomain, err)
	}
	a.ports = port.New(port.Config{Store: a.store, Has: a.Book.Has, Links: links, Log: a.log})
	return a.ports.Recover(ctx)
}

// prewarm boots a principal's home as soon as they connect.
func (a *App) prewarm(p auth.Principal) {
	if a.warm.Err() == nil {
		a.warming.Go(func() { a.Book.Prewarm(a.warm, p) })
	}
}

// Listen opens the addresses of the settings.
func (a *App) Listen(ctx context.Context) (network []net.Listener, owner net.Listener, err error) {
	if a.Config.Network.Policy.Mode == egress.Open && a.Config.Server.Auth != auth.Required {
		return nil, nil, fault.New(fault.Configuration, "network.mode=\"open\" (%s): every sandbox could speak to this server as its user, since the machine's network is theirs too; set auth: required, or choose public", a.Config.From["network.mode"])
	}
	c := a.Config.Server
	if c.CORS && len(c.CORSOrigins) == 0 && !a.closed(ctx) {
		return nil, nil, fault.New(fault.Configuration, "cors.enabled=\"true\" (%s): this server asks for no token, so every web page that is opened on this machine could use it as its user; "+
			"list the origins of the pages that may in cors.origins (SANDLOT_CORS_ORIGINS), or set auth: required and make tokens with `sandlot token create --user NAME`", a.Config.From["cors.enabled"])
	}
	addrs := []string{c.Host}
	if strings.EqualFold(c.Host, "localhost") {
		addrs = []string{"127.0.0.1", "::1"}
	}
	for _, h := range addrs {
		l, lerr := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(c.Port)))
		if lerr == nil {
			network = append(network, l)
			continue
		}
		if h == "::1" && len(addrs) > 1 && (errors.Is(lerr, unix.EADDRNOTAVAIL) || errors.Is(lerr, unix.EAFNOSUPPORT)) { // a machine may have no IPv6
			continue
		}
		err = fault.Wrap(fault.Configuration, lerr, "cannot listen on %s port %d: %v; name another with --port", h, c.Port, lerr)
	}
	if err == nil {
		owner, err = a.ListenOwner()
	}
	if err != nil {
		for _, l := range network {
			l.Close()
		}
		return nil, nil, err
	}
	return network, owner, nil
}

// ListenOwner opens the socket in the state folder, which is for its owner
// alone. The lock says that no other server uses it.
func (a *App) ListenOwner() (net.Listener, error) {
	path := SocketPath(a.Config.Server.StateDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// Made in a folder of its own, which nobody else enters, and then put into its
	// place: the umask is the whole process's, and is left alone.
	dir, err := os.MkdirTemp(a.Config.Server.StateDir, ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "cannot listen on %s: %v (a state folder's path may have at most 90 characters)", path, err)
	}
	l.SetUnlinkOnClose(false) // it has another name by then
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return ownerSocket{l, path}, nil
}

// ownerSocket is removed when it is closed.
type ownerSocket struct {
	*net.UnixListener
	path string
}

// Close implements net.Listener.
func (s ownerSocket) Close() error {
	err := os.Remove(s.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(s.UnixListener.Close(), err)
}

// Run serves on the listeners until ctx ends, and then lets running calls end,
// for at most grace.
func (a *App) Run(ctx context.Context, network []net.Listener, owner net.Listener, grace time.Duration) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var work sync.WaitGroup
	work.Go(func() { a.Pool.Run(background) })
	work.Go(func() { a.Book.Run(background) })
	work.Go(func() { a.Pool.Workspaces.Run(background, a.log) })
	work.Go(func() { a.volumes.Run(background) })
	work.Go(func() { a.reap(background) })
	work.Go(func() { a.follow(background) })
	work.Go(func() { a.ports.Run(background) })
	work.Go(func() { a.watch.Run(background) })
	work.Go(func() { boundMemory(background) })
	work.Go(func() { a.Gateway.Run(background) })
	work.Go(func() { a.third.Run(background) })
	if len(network) == 0 {
		a.ports.Unserve()
	}

	conns := api.NewConns()
	public := &http.Server{Handler: a.api.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, ConnContext: conns.Context, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	private := &http.Server{Handler: a.api.Owner(), ReadHeaderTimeout: 20 * time.Second, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	public.RegisterOnShutdown(a.ports.Drain)
	public.RegisterOnShutdown(a.events.Close)
	failed := make(chan error, len(network)+1)
	var serving sync.WaitGroup
	for _, l := range network {
		serving.Go(func() { failed <- public.Serve(conns.Listener(l)) })
	}
	serving.Go(func() { failed <- private.Serve(owner) })

	var err error
	select {
	case <-ctx.Done():
		a.log.Info("stopping; running calls may end", "within", grace)
	case err = <-failed:
	}
	a.cold()
	drain, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var closing sync.WaitGroup
	for _, s := range []*http.Server{public, private} {
		closing.Go(func() {
			if s.Shutdown(drain) != nil {
				s.Close()
			}
		})
	}
	closing.Wait()
	serving.Wait()
	stop()
	work.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// reap removes sandboxes that belong to nobody, at every interval.
func (a *App) reap(ctx context.Context) {
	lister, ok := a.runtime.(sandbox.Lister)
	if !ok {
		return
	}
	tick := time.NewTicker(a.Config.Sessions.Orphans)
	defer tick.Stop()
	suspects := map[string]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		next := map[string]bool{}
		for _, box := range lister.List() {
			id := box.Spec().ID
			if a.Pool.Owns(id) || a.Book.Owns(id) {
				continue
			}
			if !suspects[id] { // it may be on its way to its owner
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

// Close lets go of everything. Sessions' sandboxes live on for the next server.
func (a *App) Close() error {
	a.cold()
	a.warming.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a.Gateway.Close()
	a.Book.Close(ctx)
	a.Pool.Wait()
	return a.release()
}

// closed says whether every request over the network needs a token now.
func (a *App) closed(ctx context.Context) bool {
	need, err := a.door.Required(ctx)
	return need && err == nil
}

// NeedsToken says whether clients over the network have to bring a token.
func (a *App) NeedsToken(ctx context.Context) bool {
	need, err := a.door.Required(ctx)
	return need || err != nil
}

// Rest stops the sandboxes that this server booted, of which nobody would take
// care when it is gone. Sessions and files are kept; what an earlier server
// left alive stays for the next one.
func (a *App) Rest() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.cold()
	a.warming.Wait()
	a.Book.StopOwned(ctx)
}

// Destroy ends all sessions with all that they have, and then lets go: for a
// server that lived for one command.
func (a *App) Destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.cold()
	a.warming.Wait()
	a.Book.StopAll(ctx)
	a.Pool.Wait()
	return a.release()
}

func (a *App) release() error {
	a.cold()
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i]())
	}
	a.closers = nil
	if a.lock != nil {
		errs = append(errs, a.lock.Close())
		a.lock = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing: %w", err)
	}
	return nil
}
