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
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/session"
)

// Config is what Servers need.
type Config struct {
	Store    Store
	Sessions *session.Sessions
	// Secrets are what values of variables and headers may refer to; nil: there
	// are none.
	Secrets Secrets
	Version string
	// Idle is how long a server that nobody uses runs on; InstallTimeout bounds
	// an installation, and the start of a program that installs.
	Idle, InstallTimeout time.Duration
	// Reserved says whether a tool of ours has that name.
	Reserved func(tool string) bool
	// Reach dials for a principal's own remote servers, as far as policy allows,
	// and for what the operator's lead to: that is public, or listed.
	Reach func(ctx context.Context, p auth.Principal, operator bool, network, addr string) (net.Conn, error)
	// OnChange is told that what a principal is offered has changed, OnUpdate
	// that a resource has, and OnLog what a server says that belongs to no call.
	OnChange func(owner string)
	OnUpdate func(owner, uri string)
	OnLog    func(owner string, params json.RawMessage)
	// Events are told when a server's state changes.
	Events *event.Stream
	// Callback is where a browser comes back from a log-in; without it there is
	// none. The links to begin one are beside it: start/ and an id.
	Callback string
	// LoginStore holds the users' log-ins; nil: they are in memory alone.
	LoginStore oauth.Store
	// Limits bound the bytes of large answers while they are read; nil: nothing does.
	Limits *limit.Limiter
	Log    *slog.Logger
}

// Servers are all third-party servers. It implements tool.Source and tool.External.
type Servers struct {
	Config
	Logins  *oauth.Logins          // of the users at remote servers
	waiting func() map[string]bool // owners of whom log-ins wait for a browser

	life context.Context // of everything that runs here
	stop context.CancelFunc

	going  sync.Mutex // guards closed, and the beginning of what wg counts
	closed bool
	wg     sync.WaitGroup

	mu         sync.Mutex
	owners     map[string]*owner
	configured []spec.Configured
}

// New returns one without servers.
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

// Recover removes what an earlier server stored of log-ins at what is not there
// any more, as a crash was faster. What it stored of users is read when they come.
func (servers *Servers) Recover(ctx context.Context) error {
	if servers.LoginStore == nil {
		return nil
	}
	all, err := servers.Store.Connected(ctx)
	if err != nil {
		return err
	}
	there := map[[2]string]bool{}
	for _, c := range all {
		there[c] = true
	}
	servers.Logins.DeleteOrphans(func(owner, key string) bool {
		return !strings.HasPrefix(key, "=") && !there[[2]string{owner, key}]
	})
	return nil
}

// server makes one of a record.
func (servers *Servers) server(p auth.Principal, r Record, known spec.Values) *server {
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

// Run stops servers that nobody uses, and frees what is known of users who do not
// come, until ctx ends.
func (servers *Servers) Run(ctx context.Context) {
	tick := time.NewTicker(min(max(servers.Idle/4, 50*time.Millisecond), 15*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			servers.sweep()
			servers.forgetIdle()
		case <-ctx.Done():
			return
		}
	}
}

func (servers *Servers) sweep() {
	for _, s := range servers.all("") {
		s.mu.Lock()
		limit := servers.Idle
		if len(s.follows) > 0 { // who follows a resource need not call; but clients go without a word
			limit = max(limit, followed)
		}
		idle := s.instance != nil && s.instance.Used == 0 && time.Since(s.used) > limit
		s.mu.Unlock()
		if idle {
			servers.spawn(s.stopIdle)
		}
	}
}

// stopIdle stops the server when nobody uses it.
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

// followed is how long a server runs without use for those who follow one of its
// resources.
const followed = time.Hour

// all returns the servers of one owner, or of all, in an order that stays.
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

// spawn runs something that ends with the Servers. It returns false when that is
// closed.
func (servers *Servers) spawn(do func(ctx context.Context)) bool {
	servers.going.Lock()
	defer servers.going.Unlock()
	if servers.closed {
		return false
	}
	servers.wg.Go(func() { do(servers.life) })
	return true
}

// Close stops all servers. Their connections are there for the next server.
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

// holdServer is find, and holds the owner in memory until release is called.
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
	var names []string
	for _, s := range servers.all(p.ID) {
		if s.ID == what || s.Name == what {
			return s, nil
		}
		names = append(names, s.Name)
	}
	clipped := spec.ClipName(what)
	return nil, fault.New(fault.NotFound, "there is no connection %q%s", clipped,
		cmp.Or(fault.DidYouMean(what, names), "; list_external_mcp shows yours")).
		With("connection", clipped).With("connections", names)
}

// List returns a principal's connections: the configured ones, then their own,
// the newest first.
func (servers *Servers) List(p auth.Principal) []Info {
	_ = servers.configure(p) // what cannot be read is in the log
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

// Info returns one connection, and its definitions as they are offered.
func (servers *Servers) Info(p auth.Principal, what string) (Info, catalog.Catalog, error) {
	s, err := servers.find(p, what)
	if err != nil {
		return Info{}, catalog.Catalog{}, err
	}
	return s.info(), s.record().Catalog, nil
}

// Logs returns the last lines that a server wrote, and how many bytes it wrote
// in all.
func (servers *Servers) Logs(p auth.Principal, what string, lines int) (Info, string, int64, error) {
	s, err := servers.find(p, what)
	if err != nil {
		return Info{}, "", 0, err
	}
	s.mu.Lock()
	shows := s.shows(p)
	s.mu.Unlock()
	if !shows {
		return Info{}, "", 0, fault.New(fault.NotFound, "the log of %s is the operator's", s.Title())
	}
	log, total := s.log.Tail(lines)
	return s.info(), log, total, nil
}
