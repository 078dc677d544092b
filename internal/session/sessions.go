package session

import (
	"cmp"
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

// Rules are the templates and flavors on offer, and the limits of sessions.
type Rules struct {
	DefaultTemplate string
	DefaultFlavor   string
	Templates       Templates
	Flavors         []image.Flavor
	MaxSessions     int           // live sessions of a principal, without the home
	MaxMemoryMB     int           // of all live sessions together; 0: no limit
	IdleTimeout     time.Duration // until a session's sandbox is stopped
	Retention       time.Duration // of a stopped session's workspace
	SweepInterval   time.Duration // between two checks for idle and old sessions
	EvictIdle       bool          // at a limit, stop an idle session to make room for a new one
	AgentTimeout    time.Duration // how long a call waits for an agent without a link
}

// Templates has the templates on offer. Its errors are faults that say what is known, or why a
// template cannot be used.
type Templates interface {
	// Find returns the template that a new session gets for a name: the one of that name, or else
	// one that provides it. It waits for one that is about to get ready, until ctx ends.
	Find(ctx context.Context, name string) (*image.Template, error)
	// Of returns the template of a session that was made with the template of that name. Exists is
	// false if there is none any more.
	Of(ctx context.Context, name string) (t *image.Template, exists bool, err error)
	// Exists says whether Of will find one, though perhaps one that is not ready.
	Exists(name string) bool
	// Check returns an error if no template has or provides the name.
	Check(name string) error
}

// Config configures Sessions.
type Config struct {
	Rules
	Pool  *pool.Pool
	Store Store
	Log   *slog.Logger
	// Egress is the sandboxes' access to the network; nil: they have none.
	Egress *egress.Broker
	// Events receives an event when a session is created, is removed, or gets or loses a
	// sandbox.
	Events *event.Stream
}

// publish publishes an event of a session. name is a detail, such as a flavor or the reason
// of a stop; it never contains a user's text.
func (b *Sessions) publish(r Record, operation, name string, took time.Duration) {
	b.Events.Publish(event.Event{Kind: event.Session, Principal: r.Owner, Session: r.ID,
		Operation: operation, Name: name, Outcome: event.OK, Duration: took})
}

// Sessions has all sessions of all principals.
type Sessions struct {
	Config
	policies     atomic.Pointer[Policies] // nil: sandboxes reach nothing
	traffic      sync.Mutex               // held to store the sessions' traffic
	unownedAdded chan struct{}            // receives when a sandbox is added to unowned

	mu       sync.Mutex
	unowned  []boxID // living sandboxes without a session; Run removes them
	sessions map[string]*Session
	homes    map[string]*Session // by owner
	reserved map[string]quota    // what sessions that are booting have reserved, by owner
}

// New returns Sessions without any session. Recover loads the stored ones.
func New(c Config) *Sessions {
	return &Sessions{Config: c, unownedAdded: make(chan struct{}, 1), sessions: map[string]*Session{},
		homes: map[string]*Session{}, reserved: map[string]quota{}}
}

// OpenRequest says which session a call is for.
type OpenRequest struct {
	ID       string // empty: the caller's default; "new"; "home"; or an id
	Template string // empty: any
	Flavor   string // empty: any
	// NewByDefault makes a new session the default, instead of the home.
	NewByDefault bool
	// keepNotice leaves Lease.Notice to the next call.
	keepNotice bool
}

// Open returns a lease of the session that the caller asks for, with a sandbox that answers.
// The caller releases the lease.
func (b *Sessions) Open(ctx context.Context, p auth.Principal, a OpenRequest) (*Lease, error) {
	s, created, err := b.findOrCreate(ctx, p, a)
	if err != nil {
		return nil, err
	}
	if created {
		defer b.commit(s)
	}
	s.mu.Lock()
	s.cur.active++
	s.mu.Unlock()
	l := &Lease{Session: s, Created: created}
	if l.Booted, l.Notice, err = s.ensureSandbox(ctx, a.keepNotice); err != nil {
		l.Release()
		if created {
			b.endSession(context.WithoutCancel(ctx), s)
		}
		return nil, err
	}
	b.setIdentity(ctx, p, l.Booted)
	return l, nil
}

// identityTimeout is the timeout to set the git identity of a sandbox.
const identityTimeout = 5 * time.Second

// setIdentity sets the git identity of a sandbox to the principal, unless that is the local
// user, for whom the default is right.
func (b *Sessions) setIdentity(ctx context.Context, p auth.Principal, booted *pool.Booted) {
	if p.ID == auth.Local.ID {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), identityTimeout)
	defer cancel()
	if err := b.Pool.SetIdentity(ctx, booted, identity(p)); err != nil {
		b.Log.Warn("could not tell a sandbox who its user is", "sandbox", booted.ID, "error", err)
	}
}

// identity is the git author for a principal. The e-mail address is invalid, unless the
// principal's name is an address.
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

// findOrCreate returns the session that a asks for, and creates it if necessary.
func (b *Sessions) findOrCreate(ctx context.Context, p auth.Principal,
	a OpenRequest) (s *Session, created bool, err error) {
	switch {
	case a.ID == "new", a.ID == "" && (a.NewByDefault || p.Service):
		s, err = b.create(ctx, p, a, false)
		return s, true, err
	case a.ID == "", a.ID == "home":
		if s = b.ownedSession(p, "home"); s == nil {
			s, err = b.create(ctx, p, a, true)
			if errors.Is(err, errExists) {
				return b.findOrCreate(ctx, p, a) // another call has created it at the same time
			}
			return s, true, err
		}
	default:
		if s = b.ownedSession(p, a.ID); s == nil {
			return nil, false, b.notFound(p.ID, a.ID)
		}
	}
	return s, false, b.checkProvides(ctx, s, a)
}

var errExists = errors.New("the home exists")

// create makes a session in the store and in memory, with a warm sandbox from the pool if
// there is one. The session's quota stays reserved until commit.
func (b *Sessions) create(ctx context.Context, p auth.Principal, a OpenRequest, home bool) (*Session, error) {
	t, err := b.Templates.Find(ctx, cmp.Or(a.Template, b.DefaultTemplate))
	if err != nil {
		return nil, err
	}
	f, err := b.flavor(cmp.Or(a.Flavor, t.Flavor))
	if err != nil {
		return nil, err
	}
	rt, err := b.Pool.RuntimeOf(t)
	if err != nil {
		return nil, fault.Wrap(fault.SandboxCreation, err, "%v", err)
	}
	reserved, err := b.reserve(ctx, p.ID, home, f)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, Home: home, Template: t.Name, Flavor: f.Name, State: Live, Created: now,
		Used: now}
	meter := new(egress.Meter)
	booted := b.Pool.Take(t, f)
	if booted != nil {
		r.Sandbox, r.Runtime, r.Workspace = booted.ID, rt.Name(), booted.Workspace
		b.connectOutlet(booted, r, meter)
	} else if r.Workspace, err = b.Pool.Workspaces.New(); err != nil {
		b.unreserve(p.ID, reserved)
		return nil, fault.Wrap(fault.SandboxCreation, err, "a workspace could not be made on the server's disk")
	}
	s := &Session{sessions: b, lock: semaphore.NewWeighted(1), meter: meter,
		cur: current{rec: r, booted: booted, reserved: reserved}}
	if err := b.add(ctx, s); err != nil {
		b.commit(s)
		b.discard(booted, r.Workspace)
		return nil, err
	}
	s.applyPolicy() // it may have changed before the session was added
	b.publish(r, event.SessionCreated, r.Template, 0)
	return s, nil
}

// add adds a new session to the store and to memory.
func (b *Sessions) add(ctx context.Context, s *Session) error {
	r := s.record()
	// Another call may find a home as soon as it is in homes, boot its sandbox, and store
	// the record. storing makes that call wait until the new record is stored.
	s.storing.Lock()
	defer s.storing.Unlock()
	b.mu.Lock()
	if r.Home && b.homes[r.Owner] != nil {
		b.mu.Unlock()
		return errExists
	}
	if r.Home {
		b.homes[r.Owner] = s
	}
	b.mu.Unlock()
	err := b.Store.PutSession(context.WithoutCancel(ctx), r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.sessions[r.ID] = s
		return nil
	}
	if r.Home {
		delete(b.homes, r.Owner)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.removed, s.cur.booted = true, nil // other calls may have found the home meanwhile
	return fmt.Errorf("storing the new session: %w", err)
}

// discard removes the sandbox and the workspace of a session that could not be stored.
func (b *Sessions) discard(booted *pool.Booted, workspace string) {
	if booted != nil {
		if err := booted.Destroy(); err != nil {
			b.Log.Error("could not remove a sandbox", "sandbox", booted.ID, "error", err)
		}
	}
	if err := b.Pool.Workspaces.Remove(workspace); err != nil {
		b.Log.Error("could not remove a workspace", "workspace", workspace, "error", err)
	}
}

func (b *Sessions) flavor(name string) (image.Flavor, error) {
	name = cmp.Or(name, b.DefaultFlavor)
	var known []string
	for _, f := range b.Flavors {
		if f.Name == name {
			return f, nil
		}
		known = append(known, f.Name)
	}
	return image.Flavor{}, unknownName("flavor", name, known)
}

func unknownName(what, name string, known []string) error {
	return fault.New(fault.InvalidParameters, "%s %q is not known; known are: %s", what, name,
		strings.Join(known, ", ")).
		With("argument", what).With("given", name).With("allowed", known)
}

// checkProvides returns a fault if an existing session does not have the template or the flavor
// that the call asks for. A session whose template was removed gets the one that the call asks for.
func (b *Sessions) checkProvides(ctx context.Context, s *Session, a OpenRequest) error {
	r := s.record()
	if a.Template != "" {
		if err := b.Templates.Check(a.Template); err != nil {
			return err
		}
		if !b.Templates.Exists(r.Template) {
			return s.replaceTemplate(ctx, a.Template)
		}
		t, err := s.template(ctx)
		if err != nil {
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

// notFound is the fault for an id that is not one of owner's sessions. It does not reveal
// whether the id is another principal's session.
func (b *Sessions) notFound(owner, id string) error {
	live := []string{}
	for _, s := range b.filter(func(c current) bool { return c.rec.Owner == owner && c.rec.ID != id }) {
		live = append(live, s.record().ID)
	}
	slices.Sort(live)
	return fault.New(fault.SessionNotFound, "%s", fault.Printable(id, 80)).With("session_id", fault.Printable(id, 80)).
		With("live_sessions", live)
}

func (b *Sessions) all() []*Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.sessions))
}

// byID returns the session of that id, whoever owns it, or nil.
func (b *Sessions) byID(id string) *Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id]
}

// filter returns the sessions that meet a condition, the one used longest ago first.
func (b *Sessions) filter(matches func(current) bool) []*Session {
	list := slices.DeleteFunc(b.all(), func(s *Session) bool { return !matches(s.current()) })
	slices.SortFunc(list, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	return list
}

// ownedSession returns the principal's session with that id, or nil. "home" stands for the home.
func (b *Sessions) ownedSession(p auth.Principal, id string) *Session {
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

// List returns the principal's sessions, oldest first, or only the one with the id.
func (b *Sessions) List(ctx context.Context, p auth.Principal, id string) ([]Info, error) {
	list := b.filter(func(c current) bool { return c.rec.Owner == p.ID })
	if id != "" {
		s := b.ownedSession(p, id)
		if s == nil {
			return nil, b.notFound(p.ID, id)
		}
		list = []*Session{s}
	}
	infos := make([]Info, len(list))
	var wg sync.WaitGroup
	for i, s := range list {
		wg.Go(func() { infos[i] = s.info(ctx) })
	}
	wg.Wait()
	slices.SortFunc(infos, func(x, y Info) int { return x.Created.Compare(y.Created) })
	return infos, nil
}

// Live counts the sessions that have a sandbox.
func (b *Sessions) Live() int { return len(b.filter(current.hasSandbox)) }

// Prewarm boots the home of a principal who has connected, so that the first call need not
// wait for it.
func (b *Sessions) Prewarm(ctx context.Context, p auth.Principal) {
	if p.Service {
		return
	}
	if l, err := b.Open(ctx, p, OpenRequest{ID: "home", keepNotice: true}); err == nil {
		l.Release()
	}
}

// Owns says whether a session has that sandbox.
func (b *Sessions) Owns(sandbox string) bool {
	return len(b.filter(func(c current) bool { return c.rec.Sandbox == sandbox })) > 0
}
