package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/quota"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/session"
)

// Config has what Servers needs.
type Config struct {
	Store    Store
	Sessions *session.Sessions
	// Secrets has the stored secrets to which values of variables and headers may refer; nil: there
	// are none.
	Secrets Secrets
	Version string // of Sandlot
	// Idle is how long an unused server keeps running. InstallTimeout bounds an installation, and the
	// start of a program that installs.
	Idle, InstallTimeout time.Duration
	// Reserved reports whether one of Sandlot's own tools has that name.
	Reserved func(tool string) bool
	// Dial dials for a principal's remote servers, if the policy of the principal's network allows the
	// address. With operator set, it dials an address that a server of the settings refers to: only
	// public addresses, and those that the network rules allow.
	Dial func(ctx context.Context, p auth.Principal, operator bool, network, addr string) (net.Conn, error)
	// OnChange is called when a principal's tools, prompts or resources may have changed (an empty owner:
	// any principal's), OnUpdate when a resource has changed to which a client has subscribed, and OnLog
	// with the parameters of a log message that belongs to no call. Each may be nil.
	OnChange func(owner string)
	// Changing is called before a change can be seen in the result of any operation; it must not block. Settle waits,
	// for a bounded time, until what Changing has announced is where code in the principal's sandboxes finds it.
	Changing func(owner string)
	Settle   func(ctx context.Context, owner string)
	OnUpdate func(owner, uri string)
	OnLog    func(owner string, params json.RawMessage)
	// Events gets an event for each change of a server's state.
	Events *event.Stream
	// Callback is the redirect URI of log-ins; empty: no server can have one. The links that begin a
	// log-in are beside it: start/ and an id.
	Callback string
	// LoginStore stores the users' log-ins; nil: they are only in memory.
	LoginStore oauth.Store
	// Limits counts the bytes of large answers while they are read; nil: they are not counted.
	Limits *limit.Limiter
	// Quotas has how many servers each principal may add; nil: maxConnections.
	Quotas *quota.Quotas
	Log    *slog.Logger
}

// Servers are all third-party servers. It implements tool.Source and tool.External.
type Servers struct {
	Config
	Logins  *oauth.Logins          // of the users at remote servers
	waiting func() map[string]bool // ids of the owners with a log-in that waits for a browser

	life context.Context // ends with Close
	stop context.CancelFunc

	going  sync.Mutex // held while a goroutine begins, so that Close waits for all; guards closed
	closed bool
	wg     sync.WaitGroup // goroutines

	mu         sync.Mutex
	owners     map[string]*owner
	configured []spec.Configured
}

// New returns Servers that have not read the store.
func New(c Config) *Servers {
	if c.Idle <= 0 {
		c.Idle = 10 * time.Minute
	}
	if c.InstallTimeout <= 0 {
		c.InstallTimeout = 10 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Reserved == nil {
		c.Reserved = func(string) bool { return false }
	}
	servers := &Servers{Config: c, owners: map[string]*owner{}}
	servers.life, servers.stop = context.WithCancel(context.Background())
	servers.Logins = oauth.New(oauth.Config{Callback: c.Callback, Store: c.LoginStore, Spawn: servers.spawn,
		Log: c.Log})
	servers.waiting = servers.Logins.WaitingOwners
	return servers
}

// Recover deletes stored log-ins whose servers are not in the store: after a crash between the two
// removals they may be left.
func (servers *Servers) Recover(ctx context.Context) error {
	if servers.LoginStore == nil {
		return nil
	}
	all, err := servers.Store.Connected(ctx)
	if err != nil {
		return err
	}
	stored := map[[2]string]bool{}
	for _, c := range all {
		stored[c] = true
	}
	servers.Logins.DeleteOrphans(func(owner, key string) bool {
		return !strings.HasPrefix(key, "=") && !stored[[2]string{owner, key}]
	})
	return nil
}

// newServer returns a server for a record, which does not run.
func (servers *Servers) newServer(p auth.Principal, r Record, known spec.Values) *server {
	s := &server{servers: servers, owner: p, rec: r, lock: semaphore.NewWeighted(1), follows: followers{},
		identity: identity{diagnosis.Identity{ID: r.ID, Name: r.Name, Configured: r.Configured}, r.Created,
			servers.Log.With("owner", p.ID, "connection", r.ID, "name", r.Name)},
		Definition: instance.Definition{Settings: r.Spec.Configured(), Values: known},
		Status:     state.Status{State: state.Idle}}
	s.announced = s.shown()
	s.account = servers.Logins.Account(oauth.Server{Owner: p, ID: s.ID, Name: s.Name, Title: s.Title(),
		Key: s.loginKey(), Configured: s.Configured}, s)
	return s
}

// Run stops unused servers and frees the memory of idle owners, until ctx ends.
func (servers *Servers) Run(ctx context.Context) {
	tick := time.NewTicker(min(max(servers.Idle/4, 50*time.Millisecond), 15*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			servers.stopUnused()
			servers.forgetIdle()
		case <-ctx.Done():
			return
		}
	}
}

func (servers *Servers) stopUnused() {
	for _, s := range servers.all("") {
		s.mu.Lock()
		limit := servers.Idle
		if len(s.follows) > 0 { // a subscribed client need not call, but some never end their subscriptions
			limit = max(limit, followed)
		}
		idle := s.instance != nil && s.instance.Used == 0 && time.Since(s.used) > limit
		s.mu.Unlock()
		if idle {
			servers.spawn(s.stopIdle)
		}
	}
}

// stopIdle stops the server if no call uses it.
func (s *server) stopIdle(ctx context.Context) {
	if s.acquire(ctx) != nil {
		return
	}
	defer s.release()
	s.mu.Lock()
	busy := s.instance == nil || s.instance.Used > 0
	s.mu.Unlock()
	if !busy {
		s.stop(state.Stopped)
		s.mu.Lock()
		clear(s.follows)
		s.mu.Unlock()
	}
}

// followed is how long a server keeps running for clients that have subscribed to one of its resources,
// but make no calls.
const followed = time.Hour

// all returns the servers of one owner, or of all owners if it is empty. The order of an owner's servers
// does not change.
func (servers *Servers) all(owner string) []*server {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if owner != "" {
		if o := servers.owners[owner]; o != nil {
			return sorted(o.servers)
		}
		return nil
	}
	var all []*server
	for _, o := range servers.owners {
		all = append(all, sorted(o.servers)...)
	}
	return all
}

// sorted puts configured servers first, then the oldest.
func sorted(m map[string]*server) []*server {
	all := slices.Collect(maps.Values(m))
	slices.SortFunc(all, func(x, y *server) int {
		if x.Configured != y.Configured {
			return map[bool]int{true: -1, false: 1}[x.Configured]
		}
		if x.Configured {
			return cmp.Compare(x.Name, y.Name)
		}
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.ID, y.ID))
	})
	return all
}

// spawn runs do in a goroutine, for which Close waits. After Close, it only returns false.
func (servers *Servers) spawn(do func(ctx context.Context)) bool {
	servers.going.Lock()
	defer servers.going.Unlock()
	if servers.closed {
		return false
	}
	servers.wg.Go(func() { do(servers.life) })
	return true
}

// Close stops all servers, and waits. Their records stay in the store, for the next Sandlot server.
func (servers *Servers) Close() {
	servers.going.Lock()
	servers.closed = true
	servers.going.Unlock()
	servers.stop()
	var ending sync.WaitGroup
	for _, s := range servers.all("") {
		s.mu.Lock()
		l := s.instance
		if s.retry != nil {
			s.retry.Stop()
		}
		s.mu.Unlock()
		if l != nil {
			ending.Go(l.Close)
		}
	}
	ending.Wait()
	servers.wg.Wait()
}

// holdServer is find, and keeps the owner in memory until release is called.
func (servers *Servers) holdServer(p auth.Principal, what string) (s *server, release func(), err error) {
	if release, err = servers.hold(p); err != nil {
		return nil, nil, err
	}
	if s, err = servers.find(p, what); err != nil {
		release()
	}
	return s, release, err
}

// find returns a principal's server by its id or its name.
func (servers *Servers) find(p auth.Principal, what string) (*server, error) {
	if err := servers.configure(p); err != nil {
		return nil, err
	}
	if s := servers.lookUp(p, what); s != nil {
		return s, nil
	}
	var names []string
	for _, s := range servers.all(p.ID) {
		names = append(names, s.Name)
	}
	clipped := spec.ClipName(what)
	return nil, fault.New(fault.NotFound, "there is no connection %q%s", clipped,
		cmp.Or(fault.DidYouMean(what, names), "; list_external_mcp shows yours")).
		With("connection", clipped).With("connections", names)
}

// lookUp returns the principal's server with a name or an id, or nil.
func (servers *Servers) lookUp(p auth.Principal, what string) *server {
	for _, s := range servers.all(p.ID) {
		if s.ID == what || s.Name == what {
			return s
		}
	}
	return nil
}

// NameOf returns the name of the principal's server with a name or an id. It starts no server. What no server has
// stays as it is.
func (servers *Servers) NameOf(p auth.Principal, what string) string {
	if servers.arrive(p) == nil { // an error is in the log
		servers.assign(p)
	}
	if s := servers.lookUp(p, what); s != nil {
		return s.Name
	}
	return what
}

// List returns a principal's servers: the configured ones, then the principal's own ones, the newest
// first.
func (servers *Servers) List(p auth.Principal) []Info {
	_ = servers.configure(p) // an error is in the log
	var own, all []Info
	for _, s := range servers.all(p.ID) {
		if i := s.info(); i.Configured {
			all = append(all, i)
		} else {
			own = append(own, i)
		}
	}
	slices.Reverse(own)
	return append(all, own...)
}

// Info returns one server, and its catalog.
func (servers *Servers) Info(p auth.Principal, what string) (Info, catalog.Catalog, error) {
	s, err := servers.find(p, what)
	if err != nil {
		return Info{}, catalog.Catalog{}, err
	}
	return s.info(), s.record().Catalog, nil
}

// Logs returns the last lines of a server's log, and how many bytes the server has written in all.
func (servers *Servers) Logs(p auth.Principal, what string, lines int) (Info, string, int64, error) {
	s, err := servers.find(p, what)
	if err != nil {
		return Info{}, "", 0, err
	}
	s.mu.Lock()
	allowed := s.shows(p)
	s.mu.Unlock()
	if !allowed {
		return Info{}, "", 0, fault.New(fault.NotFound, "the log of %s is the operator's", s.Title())
	}
	log, total := s.log.Tail(lines)
	return s.info(), log, total, nil
}
