package connection

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

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session"
)

// Config is what a book needs.
type Config struct {
	Store    Store
	Sessions *session.Book
	Version  string
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
	// Callback is where a browser comes back from a log-in; without it there is
	// none.
	Callback string
	Log      *slog.Logger
}

// Book keeps all connections. It implements tool.Source and tool.Foreign.
type Book struct {
	Config
	logins logins

	life context.Context // of everything that runs here
	stop context.CancelFunc

	going  sync.Mutex // guards closed, and the beginning of what wg counts
	closed bool
	wg     sync.WaitGroup

	mu         sync.Mutex
	owners     map[string]*owner
	configured []Configured
	stored     map[string]Record // of configured servers that nobody has asked for yet, by owner and name
}

// owner is what the book knows of one principal.
type owner struct {
	principal auth.Principal
	servers   map[string]*server // by id
	view      *view
	seen      bool            // the configured servers are among them
	changing  bool            // OnChange is on its way
	updates   map[string]bool // resources of which OnUpdate has to be told; nil: nobody does
	naming    sync.Mutex      // held while exposed names are given
	installs  map[string]bool // folders into which something is being installed
}

// New returns a book; Recover fills it.
func New(c Config) *Book {
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
	b := &Book{Config: c, owners: map[string]*owner{}, stored: map[string]Record{}}
	b.life, b.stop = context.WithCancel(context.Background())
	return b
}

// Recover takes over what an earlier server stored. Nothing is started.
func (b *Book) Recover(ctx context.Context) error {
	all, err := b.Store.Connections(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range all {
		if r.Configured {
			b.stored[r.Owner+"\x00"+r.Name] = r
			continue
		}
		o := b.owner(principalOf(r.Owner))
		s := b.server(o.principal, r, secrets{known: len(r.EnvKeys)+len(r.HeaderKeys) == 0})
		if r.Off {
			s.state = Disabled
		}
		o.servers[r.ID] = s
	}
	for _, o := range b.owners {
		b.review(o)
	}
	return nil
}

// principalOf is the principal of an id that was stored.
func principalOf(id string) auth.Principal {
	if name, ok := strings.CutPrefix(id, "user:"); ok {
		return auth.User(name, false)
	}
	return auth.Local
}

// owner returns what is known of a principal. The lock is held.
func (b *Book) owner(p auth.Principal) *owner {
	o := b.owners[p.ID]
	if o == nil {
		o = &owner{principal: p, servers: map[string]*server{}, view: newView()}
		b.owners[p.ID] = o
	}
	return o
}

// server makes one of a record.
func (b *Book) server(p auth.Principal, r Record, known secrets) *server {
	return &server{book: b, owner: p, id: r.ID, name: r.Name, configured: r.Configured, created: r.Created, gate: make(chan struct{}, 1), rec: r, secrets: known, state: Idle, follows: map[string]int{},
		settings: Configured{Name: r.Name, Kind: r.Kind, Command: r.Command, Args: r.Args, URL: r.URL, Where: InSandbox}}
}

// Run stops servers that nobody uses, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(min(max(b.Idle/4, 50*time.Millisecond), 15*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.sweep()
		case <-ctx.Done():
			return
		}
	}
}

func (b *Book) sweep() {
	for _, s := range b.all("") {
		s.mu.Lock()
		limit := b.Idle
		if len(s.follows) > 0 { // who follows a resource need not call; but clients go without a word
			limit = max(limit, followed)
		}
		idle := s.live != nil && s.live.held == 0 && time.Since(s.used) > limit
		s.mu.Unlock()
		if idle {
			b.spawn(s.rest)
		}
	}
}

// rest stops the server when nobody uses it.
func (s *server) rest(ctx context.Context) {
	if s.enter(ctx) != nil {
		return
	}
	defer s.leave()
	s.mu.Lock()
	busy := s.live == nil || s.live.held > 0
	s.mu.Unlock()
	if !busy {
		s.halt(Idle, "")
		s.mu.Lock()
		clear(s.follows)
		s.mu.Unlock()
	}
}

// followed is how long a server runs without use for those who follow one of its
// resources.
const followed = time.Hour

// all returns the servers of one owner, or of all, in an order that stays.
func (b *Book) all(owner string) []*server {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*server
	for id, o := range b.owners {
		if owner == "" || id == owner {
			all = append(all, sorted(o.servers)...)
		}
	}
	return all
}

// sorted puts configured servers first, then the oldest.
func sorted(m map[string]*server) []*server {
	all := slices.Collect(maps.Values(m))
	slices.SortFunc(all, func(x, y *server) int {
		if x.configured != y.configured {
			return map[bool]int{true: -1, false: 1}[x.configured]
		}
		if x.configured {
			return cmp.Compare(x.name, y.name)
		}
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.id, y.id))
	})
	return all
}

// spawn runs something that ends with the book. It returns false when that is
// closed.
func (b *Book) spawn(do func(ctx context.Context)) bool {
	b.going.Lock()
	defer b.going.Unlock()
	if b.closed {
		return false
	}
	b.wg.Go(func() { do(b.life) })
	return true
}

// Close stops all servers. Their connections are there for the next server.
func (b *Book) Close() {
	b.going.Lock()
	b.closed = true
	b.going.Unlock()
	b.stop()
	var ending sync.WaitGroup
	for _, s := range b.all("") {
		s.mu.Lock()
		l := s.live
		if s.retry != nil {
			s.retry.Stop()
		}
		s.mu.Unlock()
		if l != nil {
			ending.Go(l.end)
		}
	}
	ending.Wait()
	b.wg.Wait()
}

// find returns a principal's server by its id or its name.
func (b *Book) find(p auth.Principal, what string) (*server, error) {
	b.configure(p)
	var names []string
	for _, s := range b.all(p.ID) {
		if s.id == what || s.name == what {
			return s, nil
		}
		names = append(names, s.name)
	}
	return nil, fault.New(fault.NotFound, "there is no connection %q; list_external_mcp shows yours", clip(what)).With("connection", clip(what)).With("connections", names)
}

// List returns a principal's connections: the configured ones, then their own,
// the newest first.
func (b *Book) List(p auth.Principal) []Info {
	b.configure(p)
	var own, all []Info
	for _, s := range b.all(p.ID) {
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
func (b *Book) Info(p auth.Principal, what string) (Info, Catalog, error) {
	s, err := b.find(p, what)
	if err != nil {
		return Info{}, Catalog{}, err
	}
	s.mu.Lock()
	c := s.rec.Catalog
	s.mu.Unlock()
	return s.info(), c, nil
}

// Logs returns the last lines that a server wrote, and how many bytes it wrote
// in all.
func (b *Book) Logs(p auth.Principal, what string, lines int) (Info, string, int64, error) {
	s, err := b.find(p, what)
	if err != nil {
		return Info{}, "", 0, err
	}
	s.mu.Lock()
	shows := s.shows(p)
	s.mu.Unlock()
	if !shows {
		return Info{}, "", 0, fault.New(fault.NotFound, "the log of %s is the operator's", s.title())
	}
	log, total := s.log.tail(lines)
	return s.info(), log, total, nil
}

// Connect adds a server, or replaces the one of that name, and starts it. Where
// that fails nothing has changed.
func (b *Book) Connect(ctx context.Context, p auth.Principal, a Ask) (Info, error) {
	if err := a.check(); err != nil {
		return Info{}, err
	}
	b.configure(p)
	now := time.Now().UTC().Truncate(time.Millisecond)
	r := Record{Owner: p.ID, Name: a.Name, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd, Path: a.Path, URL: a.URL,
		EnvKeys: slices.Sorted(maps.Keys(a.Env)), HeaderKeys: slices.Sorted(maps.Keys(a.Headers)), Install: a.Install, Created: now, Updated: now}
	known := secrets{env: a.Env, headers: a.Headers, known: true}
	old, err := b.find(p, a.Name)
	if err != nil {
		return b.add(ctx, p, r, known)
	}
	if old.configured {
		return Info{}, taken(a.Name)
	}
	return old.replace(ctx, r, known)
}

func taken(name string) error {
	return fault.New(fault.InvalidParameters, "the operator's settings have a server of the name %q; choose another name", name).With("argument", "name")
}

// crowded says whether a principal who has n connections may have no more.
func crowded(n int) error {
	if n < maxConnections {
		return nil
	}
	return fault.New(fault.ResourceLimit, "you have %d connections, which is the limit; disconnect_external_mcp with delete: true removes one", n).
		With("resource_type", "connections").With("current_usage", n).With("limit", maxConnections)
}

// add makes a new connection.
func (b *Book) add(ctx context.Context, p auth.Principal, r Record, known secrets) (Info, error) {
	b.mu.Lock()
	o := b.owner(p)
	n := 0
	for _, s := range o.servers {
		if !s.configured {
			n++
		}
	}
	if err := crowded(n); err != nil {
		b.mu.Unlock()
		return Info{}, err
	}
	for r.ID == "" || o.servers[r.ID] != nil {
		r.ID = newID()
	}
	for _, s := range o.servers {
		if s.name == r.Name { // another call was faster
			b.mu.Unlock()
			return s.replace(ctx, r, known)
		}
	}
	s := b.server(p, r, known)
	o.servers[r.ID] = s
	b.mu.Unlock()
	err := s.update(func(*Record) {})
	if err == nil {
		err = s.ready(ctx)
	}
	if err != nil && s.info().State != NeedsAuth {
		s.remove(context.WithoutCancel(ctx))
		return Info{}, err
	}
	return s.info(), nil
}

// ready waits until the server runs.
func (s *server) ready(ctx context.Context) error {
	_, release, err := s.use(ctx)
	if err != nil {
		return err
	}
	release()
	return nil
}

// replace takes up other settings for the same name: its tools keep their names.
func (s *server) replace(ctx context.Context, r Record, known secrets) (Info, error) {
	s.interrupt()
	if err := s.enter(ctx); err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	before, settings, had := s.rec, s.settings, s.secrets
	s.mu.Unlock()
	r.ID, r.Created = before.ID, before.Created
	r.Catalog = Catalog{Names: before.Catalog.Names, Prefix: before.Catalog.Prefix}
	if r.runs(before) { // what was approved of it is still what was approved
		r.Catalog, r.Older, r.Asks = before.Catalog, before.Older, before.Asks
	}
	s.halt(Idle, "")
	err := s.adopt(r, known)
	s.leave()
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil || s.info().State == NeedsAuth {
		return s.info(), nil
	}
	// What was there before is there again.
	back := context.WithoutCancel(ctx)
	s.interrupt()
	if s.enter(back) == nil {
		s.halt(Idle, "")
		if lost := s.adopt(before, had); lost != nil {
			s.book.Log.Error("could not store a connection", "connection", before.ID, "error", lost)
		}
		s.mu.Lock()
		s.settings = settings
		if before.Off {
			s.state = Disabled
		}
		s.mu.Unlock()
		s.leave()
		s.book.reviewed(s.owner.ID)
	}
	return Info{}, err
}

// runs says whether two records run, or reach, the same.
func (r Record) runs(o Record) bool {
	return r.Kind == o.Kind && r.Command == o.Command && slices.Equal(r.Args, o.Args) && r.URL == o.URL && r.Cwd == o.Cwd && slices.Equal(r.Path, o.Path)
}

// adopt makes r what runs from now on. The gate is held, and nothing runs.
func (s *server) adopt(r Record, known secrets) error {
	elsewhere := false
	if err := s.updateIf(func(old *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gen++ // what is still on its way belongs to what was
		elsewhere = old.URL != r.URL
		*old = r
		return nil
	}); err != nil {
		return err
	}
	if elsewhere { // a log-in is good for one address
		s.forgetLogin()
	}
	fresh := s.book.server(s.owner, r, known)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings, s.secrets, s.state, s.failures, s.next = fresh.settings, known, Idle, 0, time.Time{}
	return nil
}

// Disconnect stops a server and takes back what it offers. Its registration
// stays in the list unless it is deleted.
func (b *Book) Disconnect(ctx context.Context, p auth.Principal, what string, forget bool) (Info, error) {
	s, err := b.find(p, what)
	if err != nil {
		return Info{}, err
	}
	if s.configured {
		return Info{}, fault.New(fault.InvalidParameters, "%s is the operator's, and can be disconnected in the settings alone (mcp.%s.disabled)", s.title(), s.name)
	}
	if forget {
		i := s.info()
		s.remove(context.WithoutCancel(ctx))
		return i, nil
	}
	s.interrupt()
	if err := s.enter(ctx); err != nil {
		return Info{}, err
	}
	err = s.update(func(r *Record) { r.Off, r.Updated = true, time.Now().UTC() })
	if err == nil {
		s.halt(Disabled, "")
	}
	s.leave()
	b.changed(p.ID)
	return s.info(), err
}

// remove ends a server and forgets it.
func (s *server) remove(ctx context.Context) {
	b := s.book
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	b.mu.Lock() // at once: its name may come again
	o := b.owners[s.owner.ID]
	mine := o != nil && o.servers[s.id] == s
	if mine {
		delete(o.servers, s.id)
	}
	delete(b.stored, s.owner.ID+"\x00"+s.name)
	b.mu.Unlock()
	b.changed(s.owner.ID)
	s.interrupt()
	if s.enter(ctx) == nil {
		s.halt(Disabled, "")
		s.leave()
	}
	s.forgetLogin()
	b.mu.Lock()
	again := o != nil && o.servers[s.id] != nil
	b.mu.Unlock()
	if !mine || again {
		return // what is stored is another's by now
	}
	s.storing.Lock() // what was being stored is stored
	defer s.storing.Unlock()
	if err := b.Store.RemoveConnection(ctx, s.owner.ID, s.id); err != nil {
		b.Log.Error("could not remove a connection", "connection", s.id, "error", err)
	}
}

// Restart stops a server and starts it again, with values for variables that
// were not stored; those that are not given stay as they are.
func (b *Book) Restart(ctx context.Context, p auth.Principal, what string, env, headers map[string]string) (Info, error) {
	s, err := b.find(p, what)
	if err != nil {
		return Info{}, err
	}
	s.interrupt()
	if err := s.enter(ctx); err != nil {
		return Info{}, err
	}
	if err := s.give(env, headers); err != nil {
		s.leave()
		return Info{}, err
	}
	s.halt(Idle, "")
	s.mu.Lock()
	s.failures, s.next = 0, time.Time{}
	if s.auth != nil {
		s.auth.useful()
	}
	s.mu.Unlock()
	if s.off() {
		err = s.update(func(r *Record) { r.Off, r.Updated = false, time.Now().UTC() })
	}
	s.leave()
	if err == nil {
		err = s.ready(ctx)
	}
	return s.info(), err
}

func (s *server) off() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Off
}

// give takes values for variables and headers. The gate is held.
func (s *server) give(env, headers map[string]string) error {
	s.mu.Lock()
	rec, had := s.rec, s.secrets
	s.mu.Unlock()
	if len(env)+len(headers) == 0 {
		return nil
	}
	if rec.Configured {
		return fault.New(fault.InvalidParameters, "%s has its values from the operator's settings", s.title()).With("argument", "env")
	}
	a := Ask{Name: rec.Name, Kind: rec.Kind, Command: rec.Command, URL: rec.URL, Env: env, Headers: headers}
	if err := a.check(); err != nil {
		return err
	}
	next := secrets{env: merged(had.env, env), headers: merged(had.headers, headers)}
	if len(next.env) > maxEnv || len(next.headers) > maxEnv {
		return fault.New(fault.InvalidParameters, "%s would have %d variables and %d headers; at most %d of each can be given", s.title(), len(next.env), len(next.headers), maxEnv).With("argument", "env")
	}
	var missing []string
	for _, k := range rec.EnvKeys {
		if _, ok := next.env[k]; !ok {
			missing = append(missing, k)
		}
	}
	for _, k := range rec.HeaderKeys {
		if _, ok := next.headers[k]; !ok {
			missing = append(missing, k)
		}
	}
	if next.known = len(missing) == 0; !next.known {
		return fault.New(fault.InvalidParameters, "%s needs %s too", s.title(), strings.Join(missing, ", ")).With("argument", "env").With("missing", missing)
	}
	if err := s.update(func(r *Record) {
		r.EnvKeys, r.HeaderKeys = slices.Sorted(maps.Keys(next.env)), slices.Sorted(maps.Keys(next.headers))
	}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = next
	return nil
}

func merged(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, b)
	return m
}

// Approve takes a server's tools as they are now; with seen, the hashes of tools
// by their own names, those that are what was seen.
func (b *Book) Approve(ctx context.Context, p auth.Principal, what string, seen map[string]string) (Info, error) {
	s, err := b.find(p, what)
	if err != nil {
		return Info{}, err
	}
	if err := s.update(func(r *Record) {
		r.Catalog.Tools = slices.Clone(r.Catalog.Tools)
		r.Catalog.approve(seen)
	}); err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	if s.live != nil { // its descriptions may hold a warning
		select {
		case s.live.refresh <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
	b.changed(p.ID)
	return s.info(), nil
}
