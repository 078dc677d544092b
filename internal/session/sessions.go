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
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/secret"
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

// Config is what Sessions need.
type Config struct {
	Rules
	Pool  *pool.Pool
	Store Store
	Log   *slog.Logger
	// Egress is the sandboxes' way out; without it they have none.
	Egress *egress.Broker
	// Events are told when a session begins and ends, and gets or loses a sandbox.
	Events *event.Stream
}

// publish makes an event of what happened to a session; name says more, in words of
// this package or of the settings.
func (b *Sessions) publish(r Record, operation, name string, took time.Duration) {
	b.Events.Publish(event.Event{Kind: event.Session, Principal: r.Owner, Session: r.ID,
		Operation: operation, Name: name, Outcome: event.OK, Duration: took})
}

// Sessions keeps all sessions.
type Sessions struct {
	Config
	policies atomic.Pointer[Policies] // none is reached as long as there are none
	traffic  sync.Mutex               // held while sessions' traffic is stored
	orphaned chan struct{}            // told that there is one more in unowned

	mu       sync.Mutex
	unowned  []string // sandboxes that are nobody's any more and live; Run ends them
	sessions map[string]*Session
	homes    map[string]*Session // by owner
	reserved map[string]place    // of sessions that are being booted, by owner
}

// New returns Sessions without any; Recover fills them.
func New(c Config) *Sessions {
	return &Sessions{Config: c, orphaned: make(chan struct{}, 1), sessions: map[string]*Session{},
		homes: map[string]*Session{}, reserved: map[string]place{}}
}

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
func (b *Sessions) Open(ctx context.Context, p auth.Principal, a Ask) (*Lease, error) {
	s, created, commit, err := b.find(ctx, p, a)
	if err != nil {
		return nil, err
	}
	defer commit()
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
	b.introduce(ctx, p, l.Booted)
	return l, nil
}

// introduction is how long a sandbox may take to hear who its user is.
const introduction = 5 * time.Second

// introduce tells a sandbox who its user is. The local user is whom it takes for
// granted.
func (b *Sessions) introduce(ctx context.Context, p auth.Principal, booted *pool.Booted) {
	if p.ID == auth.Local.ID {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), introduction)
	defer cancel()
	if err := b.Pool.Introduce(ctx, booted, identity(p)); err != nil {
		b.Log.Warn("could not tell a sandbox who its user is", "sandbox", booted.ID, "error", err)
	}
}

// identity is who commits for a principal. Nobody gets mail there, unless the
// name is an address.
func identity(p auth.Principal) *agent.Identity {
	if name, host, ok := strings.Cut(p.Name, "@"); ok && name != "" && host != "" &&
		!strings.ContainsAny(p.Name, " <>") {
		return &agent.Identity{Name: name, Email: p.Name}
	}
	mailbox := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("._+-", r) {
			return r
		}
		return '-'
	}, p.Name)
	return &agent.Identity{Name: p.Name, Email: mailbox + "@sandlot.invalid"}
}

// find returns the session, and what to call when it has booted, or failed to.
func (b *Sessions) find(ctx context.Context, p auth.Principal, a Ask) (s *Session, created bool, commit func(), err error) {
	switch {
	case a.ID == "new", a.ID == "" && (a.Fresh || p.Service):
		s, commit, err = b.create(ctx, p, a, false)
		return s, true, commit, err
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
func (b *Sessions) home(ctx context.Context, p auth.Principal, a Ask) (*Session, bool, func(), error) {
	s, commit, err := b.create(ctx, p, Ask{Template: a.Template, Flavor: a.Flavor}, true)
	if errors.Is(err, errExists) {
		return b.find(ctx, p, a) // another call was faster, or has failed by now
	}
	return s, true, commit, err
}

var errExists = errors.New("the home exists")

// create makes a session, with a warm sandbox if there is one. Its reservation
// is held until commit.
func (b *Sessions) create(ctx context.Context, p auth.Principal, a Ask, home bool) (*Session, func(), error) {
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
func (b *Sessions) record(ctx context.Context, p auth.Principal, t *image.Template, f image.Flavor,
	home bool) (*Session, error) {
	var err error
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, Home: home, Template: t.Name, Flavor: f.Name, State: Live, Created: now,
		Used: now}
	meter := new(egress.Meter)
	booted := b.Pool.Take(t, f)
	if booted != nil {
		r.Sandbox, r.Workspace = booted.ID, booted.Workspace
		b.connect(booted, r, meter)
	} else if r.Workspace, err = b.Pool.Workspaces.New(); err != nil {
		return nil, fault.Wrap(fault.SandboxCreation, err, "a workspace could not be made on the server's disk")
	}
	s := &Session{sessions: b, lock: semaphore.NewWeighted(1), meter: meter, rec: r, booted: booted, reserved: true}
	// Another call may find the home from now on and boot its sandbox: what that call
	// stores comes after the new record, and is not overwritten by it.
	s.storing.Lock()
	defer s.storing.Unlock()
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
	b.publish(r, event.SessionCreated, r.Template, 0)
	return s, nil
}

func (b *Sessions) waste(booted *pool.Booted, workspace string) {
	if booted != nil {
		if err := booted.Destroy(); err != nil {
			b.Log.Error("could not remove a sandbox", "sandbox", booted.ID, "error", err)
		}
	}
	if err := b.Pool.Workspaces.Remove(workspace); err != nil {
		b.Log.Error("could not remove a workspace", "workspace", workspace, "error", err)
	}
}

// resolve finds the template and flavor for their names; empty means default.
func (b *Sessions) resolve(template, flavor string) (*image.Template, image.Flavor, error) {
	t, err := b.template(template)
	if err != nil {
		return nil, image.Flavor{}, err
	}
	f, err := b.flavor(flavor)
	return t, f, err
}

func (b *Sessions) template(name string) (*image.Template, error) {
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
	return nil, fault.New(fault.InvalidParameters, "template %q is not known; known are: %s", name,
		strings.Join(slices.Sorted(maps.Keys(known)), ", ")).
		With("argument", "template").With("given", name).With("allowed", slices.Sorted(maps.Keys(known)))
}

func (b *Sessions) flavor(name string) (image.Flavor, error) {
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
	return image.Flavor{}, fault.New(fault.InvalidParameters, "flavor %q is not known; known are: %s", name,
		strings.Join(known, ", ")).
		With("argument", "flavor").With("given", name).With("allowed", known)
}

// serves says whether an existing session provides what the call asks for.
func (b *Sessions) serves(s *Session, a Ask) error {
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
			return fault.New(fault.InvalidParameters,
				"session %s has the template %q, which does not provide %q; leave template out, or use session_id "+
					"\"new\"", r.ID, t.Name, a.Template).
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
		return fault.New(fault.InvalidParameters,
			"session %s has the flavor %s, which is smaller than %s; leave flavor out, or use session_id \"new\"", r.ID,
			has, want).
			With("argument", "flavor").With("session_id", r.ID).With("flavor", has.Name).With("asked", want.Name)
	}
	return nil
}

// unknown is the answer for an id that is not the caller's: the same whether it
// is someone else's or nobody's.
func (b *Sessions) unknown(owner, id string) error {
	live := []string{}
	b.mu.Lock()
	for _, s := range b.sessions {
		if r := s.record(); r.Owner == owner && r.ID != id {
			live = append(live, r.ID)
		}
	}
	b.mu.Unlock()
	slices.Sort(live)
	return fault.New(fault.SessionNotFound, "%s", fault.Printable(id, 80)).With("session_id", fault.Printable(id, 80)).
		With("live_sessions", live)
}

func (b *Sessions) all() []*Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.sessions))
}

func (b *Sessions) mine(p auth.Principal, id string) *Session {
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
func (b *Sessions) List(ctx context.Context, p auth.Principal, id string) ([]Info, error) {
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
func (b *Sessions) Live() (n int) {
	for _, s := range b.all() {
		if s.live() {
			n++
		}
	}
	return n
}

// Prewarm boots the home of a principal who connected, before they call.
func (b *Sessions) Prewarm(ctx context.Context, p auth.Principal) {
	if p.Service {
		return
	}
	if l, err := b.Open(ctx, p, Ask{ID: "home", quiet: true}); err == nil {
		l.Release()
	}
}

// Owns says whether a session has that sandbox.
func (b *Sessions) Owns(sandbox string) bool {
	for _, s := range b.all() {
		if s.record().Sandbox == sandbox {
			return true
		}
	}
	return false
}
