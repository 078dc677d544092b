package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/proto/agentv1"
)

// Rules bound what principals may have.
type Rules struct {
	DefaultTemplate string
	DefaultFlavor   string
	Templates       []*image.Template
	Flavors         []image.Flavor
	MaxSessions     int           // per principal, beside their home
	MaxMemoryMB     int           // of all live sessions together; 0: no limit
	Idle            time.Duration // until a session's sandbox is stopped
	Retention       time.Duration // of a stopped session's workspace
	Sweep           time.Duration // between two looks at the clocks
	Evict           bool          // an idle session makes room for a new one
	Patience        time.Duration // how long an agent may be away
}

// Config is what a book needs.
type Config struct {
	Rules
	Pool  *pool.Pool
	Store Store
	Log   *slog.Logger
	// Egress is the sandboxes' way out; without it they have none.
	Egress *egress.Broker
}

// Book keeps all sessions.
type Book struct {
	Config
	policies atomic.Pointer[Policies] // none is reached as long as there are none
	traffic  sync.Mutex               // held while sessions' traffic is stored

	mu       sync.Mutex
	sessions map[string]*Session
	homes    map[string]*Session // by owner
	reserved map[string]place    // of sessions that are being booted, by owner
}

// New returns an empty book; Recover fills it.
func New(c Config) *Book {
	return &Book{Config: c, sessions: map[string]*Session{}, homes: map[string]*Session{}, reserved: map[string]place{}}
}

// place is what sessions take of the limits: their number, without homes, and
// their memory.
type place struct{ n, mb int }

// Ask says which session a call wants.
type Ask struct {
	ID       string // empty: the caller's default; "new"; "home"; or an id
	Template string // empty: any
	Flavor   string // empty: any
	// Fresh makes the default a new session instead of the home.
	Fresh bool
	// quiet leaves what must be told for the next call.
	quiet bool
}

// Open returns the session that the caller asks for, with a sandbox that
// answers. The caller releases it.
func (b *Book) Open(ctx context.Context, p auth.Principal, a Ask) (*Lease, error) {
	s, created, settle, err := b.find(ctx, p, a)
	if err != nil {
		return nil, err
	}
	defer settle()
	s.mu.Lock()
	s.active++
	s.mu.Unlock()
	l := &Lease{Session: s, Created: created}
	if l.Booted, l.Notice, err = s.up(ctx, a.quiet); err != nil {
		l.Release()
		if created {
			b.remove(context.WithoutCancel(ctx), s)
		}
		return nil, err
	}
	return l, nil
}

// find returns the session, and what to call when it has booted, or failed to.
func (b *Book) find(ctx context.Context, p auth.Principal, a Ask) (s *Session, created bool, settle func(), err error) {
	switch {
	case a.ID == "new", a.ID == "" && (a.Fresh || p.Service):
		s, settle, err = b.create(ctx, p, a, false)
		return s, true, settle, err
	case a.ID == "", a.ID == "home":
		b.mu.Lock()
		s = b.homes[p.ID]
		b.mu.Unlock()
		if s == nil {
			return b.home(ctx, p, a)
		}
	default:
		b.mu.Lock()
		s = b.sessions[a.ID]
		b.mu.Unlock()
		if s == nil || s.record().Owner != p.ID {
			return nil, false, nil, b.unknown(p.ID, a.ID)
		}
	}
	if err := b.serves(s, a); err != nil {
		return nil, false, nil, err
	}
	return s, false, func() {}, nil
}

// home makes the principal's home, once.
func (b *Book) home(ctx context.Context, p auth.Principal, a Ask) (*Session, bool, func(), error) {
	s, settle, err := b.create(ctx, p, Ask{Template: a.Template, Flavor: a.Flavor}, true)
	if errors.Is(err, errExists) {
		return b.find(ctx, p, a) // another call was faster, or has failed by now
	}
	return s, true, settle, err
}

var errExists = errors.New("the home exists")

// create makes a session, with a warm sandbox if there is one. Its reservation
// is held until settle.
func (b *Book) create(ctx context.Context, p auth.Principal, a Ask, home bool) (*Session, func(), error) {
	t, f, err := b.resolve(a.Template, a.Flavor)
	if err != nil {
		return nil, nil, err
	}
	taken := place{1, f.MemoryMB}
	if home {
		taken.n = 0
	}
	if err := b.reserve(ctx, p.ID, taken); err != nil {
		return nil, nil, err
	}
	s, err := b.record(ctx, p, t, f, home)
	if err != nil {
		b.release(p.ID, taken)
		return nil, nil, err
	}
	return s, b.settling(s, taken), nil
}

// record makes the session in the store and in memory.
func (b *Book) record(ctx context.Context, p auth.Principal, t *image.Template, f image.Flavor, home bool) (*Session, error) {
	var err error
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, Home: home, Template: t.Name, Flavor: f.Name, State: Live, Created: now, Used: now}
	account := new(egress.Account)
	booted := b.Pool.Take(ctx, t, f)
	if booted != nil {
		r.Sandbox, r.Workspace = booted.ID, booted.Workspace
		b.connect(booted, r, account)
	} else if r.Workspace, err = b.Pool.Shelf.New(); err != nil {
		return nil, fault.Wrap(fault.SandboxCreation, err, "a workspace could not be made on the server's disk")
	}
	s := &Session{book: b, gate: make(chan struct{}, 1), account: account, rec: r, booted: booted, reserved: true}
	b.mu.Lock()
	if home && b.homes[p.ID] != nil {
		b.mu.Unlock()
		b.waste(booted, r.Workspace)
		return nil, errExists
	}
	if home {
		b.homes[p.ID] = s
	}
	b.mu.Unlock()
	if err := b.Store.PutSession(context.WithoutCancel(ctx), r); err != nil {
		b.mu.Lock()
		if home {
			delete(b.homes, p.ID)
		}
		b.mu.Unlock()
		s.mu.Lock()
		s.removed, s.booted = true, nil // for those who have found the home
		s.mu.Unlock()
		b.waste(booted, r.Workspace)
		return nil, fmt.Errorf("storing the new session: %w", err)
	}
	b.mu.Lock()
	b.sessions[r.ID] = s
	b.mu.Unlock()
	s.applyPolicy() // it may have changed while nobody knew of the session
	return s, nil
}

func (b *Book) waste(booted *pool.Booted, workspace string) {
	if booted != nil {
		if err := booted.Destroy(); err != nil {
			b.Log.Error("could not remove a sandbox", "sandbox", booted.ID, "error", err)
		}
	}
	if err := b.Pool.Shelf.Remove(workspace); err != nil {
		b.Log.Error("could not remove a workspace", "workspace", workspace, "error", err)
	}
}

// resolve finds the template and flavor for their names; empty means default.
func (b *Book) resolve(template, flavor string) (*image.Template, image.Flavor, error) {
	t, err := b.template(template)
	if err != nil {
		return nil, image.Flavor{}, err
	}
	f, err := b.flavor(flavor)
	return t, f, err
}

func (b *Book) template(name string) (*image.Template, error) {
	if name == "" {
		name = b.DefaultTemplate
	}
	known := map[string]bool{}
	for _, exact := range []bool{true, false} {
		for _, t := range b.Templates {
			if t.Name == name || !exact && t.Serves(name) {
				return t, nil
			}
			known[t.Name] = true
			for _, p := range t.Provides {
				known[p] = true
			}
		}
	}
	return nil, fault.New(fault.InvalidParameters, "template %q is not known; known are: %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", ")).
		With("argument", "template").With("given", name).With("allowed", slices.Sorted(maps.Keys(known)))
}

func (b *Book) flavor(name string) (image.Flavor, error) {
	if name == "" {
		name = b.DefaultFlavor
	}
	var known []string
	for _, f := range b.Flavors {
		if f.Name == name {
			return f, nil
		}
		known = append(known, f.Name)
	}
	return image.Flavor{}, fault.New(fault.InvalidParameters, "flavor %q is not known; known are: %s", name, strings.Join(known, ", ")).
		With("argument", "flavor").With("given", name).With("allowed", known)
}

// serves says whether an existing session provides what the call asks for.
func (b *Book) serves(s *Session, a Ask) error {
	r := s.record()
	t, err := b.template(r.Template)
	if err != nil {
		return err
	}
	if a.Template != "" {
		if _, err := b.template(a.Template); err != nil {
			return err
		}
		if !t.Serves(a.Template) {
			return fault.New(fault.InvalidParameters, "session %s has the template %q, which does not provide %q; leave template out, or use session_id \"new\"", r.ID, t.Name, a.Template).
				With("argument", "template").With("session_id", r.ID).With("template", t.Name).With("asked", a.Template)
		}
	}
	if a.Flavor == "" {
		return nil
	}
	want, err := b.flavor(a.Flavor)
	if err != nil {
		return err
	}
	has, err := b.flavor(r.Flavor)
	if err != nil {
		return err
	}
	if !has.Covers(want) {
		return fault.New(fault.InvalidParameters, "session %s has the flavor %s, which is smaller than %s; leave flavor out, or use session_id \"new\"", r.ID, has, want).
			With("argument", "flavor").With("session_id", r.ID).With("flavor", has.Name).With("asked", want.Name)
	}
	return nil
}

// unknown is the answer for an id that is not the caller's: the same whether it
// is someone else's or nobody's.
func (b *Book) unknown(owner, id string) error {
	live := []string{}
	b.mu.Lock()
	for _, s := range b.sessions {
		if r := s.record(); r.Owner == owner && r.ID != id {
			live = append(live, r.ID)
		}
	}
	b.mu.Unlock()
	slices.Sort(live)
	return fault.New(fault.SessionNotFound, "%s", agent.Printable(id, 80)).With("session_id", agent.Printable(id, 80)).With("live_sessions", live)
}

// room takes a place for a session that boots, unless it has one because it is
// being made. The session's gate is held.
func (b *Book) room(ctx context.Context, s *Session, f image.Flavor) (settle func(), err error) {
	s.mu.Lock()
	has, r := s.reserved, s.rec
	s.mu.Unlock()
	if has {
		return func() {}, nil
	}
	taken := place{1, f.MemoryMB}
	if r.Home {
		taken.n = 0
	}
	if err := b.reserve(ctx, r.Owner, taken); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.reserved = true
	s.mu.Unlock()
	return b.settling(s, taken), nil
}

// counts says whether the session counts towards a limit by itself; one that is
// being made counts by its reservation.
func (s *Session) counts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.reserved && (s.booted != nil || s.booting)
}

// settling returns what turns a reservation into a session that counts by itself.
func (b *Book) settling(s *Session, taken place) func() {
	return func() {
		s.mu.Lock()
		s.reserved = false
		owner := s.rec.Owner
		s.mu.Unlock()
		b.release(owner, taken)
	}
}

func (s *Session) live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.booted != nil || s.booting
}

// reserve makes room for one more session of the owner, or says why there is none. A
// home has its place always, and needs memory alone.
func (b *Book) reserve(ctx context.Context, owner string, want place) error {
	for try := 0; ; try++ {
		b.mu.Lock()
		count, memory := b.reserved[owner].n, 0
		for _, r := range b.reserved {
			memory += r.mb
		}
		for _, s := range b.sessions {
			if !s.counts() {
				continue
			}
			r := s.record()
			if r.Owner == owner && !r.Home {
				count++
			}
			if f, err := b.flavor(r.Flavor); err == nil {
				memory += f.MemoryMB
			}
		}
		fits := count+want.n <= b.MaxSessions
		fitsMemory := b.MaxMemoryMB == 0 || memory+want.mb <= b.MaxMemoryMB
		if fits && fitsMemory {
			r := b.reserved[owner]
			b.reserved[owner] = place{r.n + want.n, r.mb + want.mb}
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		if try < 3 && b.Evict && b.evict(ctx, owner) {
			continue
		}
		if !fits {
			return fault.New(fault.ResourceLimit, "%d of your %d sessions are live; stop one with stop_session, or use one of them", count, b.MaxSessions).
				With("resource_type", "sessions").With("current_usage", count).With("limit", b.MaxSessions)
		}
		return fault.New(fault.ResourceLimit, "the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit", memory, b.MaxMemoryMB, want.mb).
			With("resource_type", "memory").With("current_usage", memory).With("limit", b.MaxMemoryMB).
			With("current_memory_mb", memory).With("limit_memory_mb", b.MaxMemoryMB)
	}
}

func (b *Book) release(owner string, taken place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.reserved[owner]
	if r = (place{r.n - taken.n, r.mb - taken.mb}); r == (place{}) {
		delete(b.reserved, owner)
		return
	}
	b.reserved[owner] = r
}

// evict stops the owner's session that was not used for the longest time and
// does nothing now. Never the home.
func (b *Book) evict(ctx context.Context, owner string) bool {
	var idle []*Session
	for _, s := range b.all() {
		r := s.record()
		if r.Owner == owner && !r.Home && s.live() {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	for _, s := range idle {
		if !s.busy(ctx) && b.expire(ctx, s, "it made room for a newer session") {
			return true
		}
	}
	return false
}

// busy says whether something runs in the session.
func (s *Session) busy(ctx context.Context) bool {
	s.mu.Lock()
	booted, active := s.booted, s.active
	s.mu.Unlock()
	if active > 0 {
		return true
	}
	if booted == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u, err := booted.Agent.Usage(ctx, agent.Request(&agentv1.UsageRequest{}))
	if err != nil { // an agent that is slow may have much to do
		st, serr := booted.Box.Status(ctx)
		return serr == nil && st.Life == sandbox.Running && booted.Agent.Linked()
	}
	if u.Msg.IdleMicros < uint64(24*time.Hour/time.Microsecond) {
		last := time.Now().Add(-time.Duration(u.Msg.IdleMicros) * time.Microsecond).UTC()
		s.mu.Lock()
		if last.After(s.rec.Used) {
			s.rec.Used = last
		}
		s.mu.Unlock()
	}
	return u.Msg.Busy
}

func (b *Book) all() []*Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.sessions))
}

// expire stops a session's sandbox unless a call uses it. What is worth keeping
// of it is kept. It says whether it did.
func (b *Book) expire(ctx context.Context, s *Session, why string) bool {
	if s.enter(ctx) != nil {
		return false
	}
	defer s.leave()
	s.mu.Lock()
	booted := s.booted
	if s.active > 0 || s.removed || booted == nil {
		s.mu.Unlock()
		return false
	}
	s.booted = nil
	s.mu.Unlock()
	if err := booted.Destroy(); err != nil {
		b.Log.Error("could not stop an idle sandbox", "sandbox", booted.ID, "error", err)
	}
	r := s.record()
	if empty, err := b.Pool.Shelf.Empty(r.Workspace); err == nil && empty && !r.Home {
		b.forget(ctx, s)
		return true
	}
	if err := s.update(func(r *Record) { r.Sandbox, r.State, r.Lost = "", Stopped, why }); err != nil {
		b.Log.Error("could not store that a session stopped", "session", r.ID, "error", err)
	}
	b.thin(ctx, r.Owner)
	return true
}

// keptFor is how many stopped sessions with files a principal may have, for each
// live one that they may have.
const keptFor = 5

// thin forgets the principal's oldest stopped sessions when there are too many.
func (b *Book) thin(ctx context.Context, owner string) {
	var stopped []*Session
	for _, s := range b.all() {
		if r := s.record(); r.Owner == owner && !r.Home && r.State == Stopped && !s.live() {
			stopped = append(stopped, s)
		}
	}
	slices.SortFunc(stopped, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	for _, s := range stopped[:max(0, len(stopped)-keptFor*b.MaxSessions)] {
		b.lapse(ctx, s)
	}
}

// lapse forgets a stopped session, unless a call has woken it.
func (b *Book) lapse(ctx context.Context, s *Session) {
	select {
	case s.gate <- struct{}{}:
	default:
		return
	}
	defer s.leave()
	s.mu.Lock()
	awake := s.booted != nil || s.active > 0 || s.removed
	s.mu.Unlock()
	if !awake {
		b.forget(ctx, s)
	}
}

// forget removes the record and the workspace. The gate is held, and no sandbox
// is left.
func (b *Book) forget(ctx context.Context, s *Session) {
	s.mu.Lock()
	s.removed = true
	r := s.rec
	s.mu.Unlock()
	r.State, r.Sandbox = Removed, ""
	if err := b.Store.PutSession(context.WithoutCancel(ctx), r); err != nil {
		b.Log.Error("could not store that a session is removed", "session", r.ID, "error", err)
	}
	b.mu.Lock()
	delete(b.sessions, r.ID)
	if b.homes[r.Owner] == s {
		delete(b.homes, r.Owner)
	}
	b.mu.Unlock()
	if err := b.Pool.Shelf.Remove(r.Workspace); err != nil {
		b.Log.Error("could not remove a workspace", "session", r.ID, "error", err)
		return // the record stays, so that it is tried again at the next start
	}
	if err := b.Store.RemoveSession(context.WithoutCancel(ctx), r.ID); err != nil {
		b.Log.Error("could not remove a session's record", "session", r.ID, "error", err)
	}
}

// remove ends a session: sandbox, and, but for a home, workspace and record.
func (b *Book) remove(ctx context.Context, s *Session) {
	s.mu.Lock()
	booted := s.booted
	s.mu.Unlock()
	// Whoever holds the gate waits for this sandbox: end it first.
	if booted != nil {
		s.drop(booted, "it was stopped")
	}
	if s.enter(ctx) != nil {
		return
	}
	defer s.leave()
	s.mu.Lock()
	booted, home := s.booted, s.rec.Home
	s.mu.Unlock()
	if booted != nil {
		s.drop(booted, "it was stopped")
	}
	if !home {
		b.forget(ctx, s)
		return
	}
	if err := s.update(func(r *Record) { r.State, r.Lost = Stopped, "it was stopped" }); err != nil {
		b.Log.Error("could not store that a session stopped", "session", s.record().ID, "error", err)
	}
}

// Stop ends the caller's session. It returns false when they have none of that id.
func (b *Book) Stop(ctx context.Context, p auth.Principal, id string) bool {
	s := b.mine(p, id)
	if s == nil {
		return false
	}
	b.remove(context.WithoutCancel(ctx), s)
	return true
}

func (b *Book) mine(p auth.Principal, id string) *Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id == "home" {
		return b.homes[p.ID]
	}
	if s := b.sessions[id]; s != nil && s.record().Owner == p.ID {
		return s
	}
	return nil
}

// List returns the caller's sessions, oldest first; with an id that one alone.
func (b *Book) List(ctx context.Context, p auth.Principal, id string) ([]Info, error) {
	var mine []*Session
	if id != "" {
		s := b.mine(p, id)
		if s == nil {
			return nil, b.unknown(p.ID, id)
		}
		mine = append(mine, s)
	} else {
		for _, s := range b.all() {
			if s.record().Owner == p.ID {
				mine = append(mine, s)
			}
		}
	}
	infos := make([]Info, len(mine))
	var wg sync.WaitGroup
	for i, s := range mine {
		wg.Go(func() { infos[i] = s.info(ctx) })
	}
	wg.Wait()
	slices.SortFunc(infos, func(x, y Info) int { return x.Created.Compare(y.Created) })
	return infos, nil
}

// Live counts the sessions that have a sandbox.
func (b *Book) Live() (n int) {
	for _, s := range b.all() {
		if s.live() {
			n++
		}
	}
	return n
}

// Prewarm boots the home of a principal who connected, before they call.
func (b *Book) Prewarm(ctx context.Context, p auth.Principal) {
	if p.Service {
		return
	}
	if l, err := b.Open(ctx, p, Ask{ID: "home", quiet: true}); err == nil {
		l.Release()
	}
}

// Recover takes over what an earlier server left, and removes what belongs to
// nobody. It is called once, before the first Open.
func (b *Book) Recover(ctx context.Context, rt sandbox.Runtime) error {
	boxes, err := rt.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recovering sandboxes: %w", err)
	}
	byID := map[string]sandbox.Sandbox{}
	for _, box := range boxes {
		byID[box.Spec().ID] = box
	}
	records, err := b.Store.Sessions(ctx)
	if err != nil {
		return fmt.Errorf("reading the sessions: %w", err)
	}
	kept := map[string]bool{}
	for _, r := range records {
		if r.State == Removed { // as far as the last server came
			err = errors.Join(err, b.Pool.Shelf.Remove(r.Workspace), b.Store.RemoveSession(ctx, r.ID))
			continue
		}
		kept[r.Workspace] = true
		b.recover(r, byID)
	}
	var wg sync.WaitGroup
	for _, box := range byID { // owned by nobody: the old pool's, or made when the server died
		wg.Go(func() {
			if err := box.Stop(ctx); err != nil {
				b.Log.Error("could not remove an unowned sandbox", "sandbox", box.Spec().ID, "error", err)
			}
		})
	}
	wg.Wait()
	if err != nil { // it is tried again at the next start
		b.Log.Error("could not remove what is left of a session", "error", err)
	}
	all, err := b.Pool.Shelf.All()
	for _, id := range all {
		if !kept[id] {
			err = errors.Join(err, b.Pool.Shelf.Remove(id))
		}
	}
	return err
}

func (b *Book) recover(r Record, boxes map[string]sandbox.Sandbox) {
	s := &Session{book: b, gate: make(chan struct{}, 1), account: egress.NewAccount(r.Traffic), stored: r.Traffic, rec: r}
	if box := boxes[r.Sandbox]; box != nil && r.Sandbox != "" {
		t, f, err := b.resolve(r.Template, r.Flavor)
		if err == nil {
			delete(boxes, r.Sandbox)
			s.booted = b.Pool.Adopt(box, pool.Order{Workspace: r.Workspace, Template: t, Flavor: f})
			b.connect(s.booted, r, s.account)
			s.found = s.booted
		}
	}
	if s.booted == nil && r.Sandbox != "" {
		s.rec.Sandbox = ""
		if s.rec.Lost == "" {
			s.rec.Lost = "it ended while the server was away"
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[r.ID] = s
	if r.Home {
		b.homes[r.Owner] = s
	}
}

// Run looks at the clocks, and stores what sessions moved, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	var traffic sync.WaitGroup
	traffic.Go(func() { b.keepTraffic(ctx) }) // no sandbox that is slow to answer keeps it waiting
	defer traffic.Wait()
	tick := time.NewTicker(b.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.sweep(ctx, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

func (b *Book) sweep(ctx context.Context, now time.Time) {
	for _, s := range b.all() {
		r := s.record()
		switch {
		case s.live() && now.Sub(r.Used) > b.Idle:
			if !s.busy(ctx) && now.Sub(s.record().Used) > b.Idle {
				b.expire(ctx, s, fmt.Sprintf("it was idle for %s", b.Idle))
			}
		case s.live():
			s.persistUse(ctx)
		case !r.Home && now.Sub(r.Used) > b.Retention:
			b.lapse(ctx, s)
		}
	}
}

// persistUse stores when the session was used last.
func (s *Session) persistUse(ctx context.Context) {
	if err := s.enter(ctx); err != nil {
		return
	}
	defer s.leave()
	if s.gone() {
		return
	}
	if err := s.update(func(*Record) {}); err != nil {
		s.book.Log.Error("could not store a session's last use", "session", s.record().ID, "error", err)
	}
}

// Close lets go of all sandboxes; they live on, for the next server.
func (b *Book) Close(ctx context.Context) {
	for _, s := range b.all() {
		s.mu.Lock()
		booted := s.booted
		s.mu.Unlock()
		if booted != nil {
			s.persistUse(ctx)
			booted.LetGo()
		}
	}
	b.storeTraffic(ctx)
}

// Rest stops the sandboxes that this book booted, and keeps what is worth
// keeping of their sessions.
func (b *Book) Rest(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		s.mu.Lock()
		booted, found := s.booted, s.found
		s.mu.Unlock()
		if booted != nil && booted != found {
			wg.Go(func() { b.expire(ctx, s, "the program that served it ended") })
		}
	}
	wg.Wait()
}

// Owns says whether a session has that sandbox.
func (b *Book) Owns(sandbox string) bool {
	for _, s := range b.all() {
		if s.record().Sandbox == sandbox {
			return true
		}
	}
	return false
}

// StopAll ends all sessions of all principals; homes keep their files.
func (b *Book) StopAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		wg.Go(func() { b.remove(ctx, s) })
	}
	wg.Wait()
}
