package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	quotas "sandlot/internal/quota"
	"sandlot/internal/secret"
	"sandlot/internal/session/property"
	"sandlot/internal/session/record"
	"sandlot/internal/session/state"
	"sandlot/internal/session/usage"
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
	Hibernation     Hibernation
	AgentTimeout    time.Duration // how long a call waits for an agent without a link
}

// Permits is what rules say of what calls do to sessions on their way.
type Permits interface {
	// MayCreateSession returns an error if a principal may not have a session of a template, which was asked
	// for by a name that it may only provide, by the call or the settings, or by none.
	MayCreateSession(ctx context.Context, p auth.Principal, template, asked string) error
	// MaySnapshot returns an error if a principal may not make a snapshot of a session before a call.
	MaySnapshot(ctx context.Context, p auth.Principal, session string) error
	// MayCopy returns an error if a principal may not have a copy of a session whose programs have got these secrets.
	// source is the session of a snapshot that another session gets; else it is empty.
	MayCopy(ctx context.Context, p auth.Principal, source string, secrets []string) error
}

// Keeper has what stays of sessions without them: snapshots.
type Keeper interface {
	// Kept returns the workspaces and the images, which belong to no session.
	Kept(ctx context.Context) (workspaces, images []string, err error)
	// Bytes returns how much of the disk a principal's have.
	Bytes(owner string) int64
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
	// HistoryStore stores what sessions use by days; nil: that is not counted.
	HistoryStore usage.HistoryStore
	// Egress is the sandboxes' access to the network; nil: they have none.
	Egress *egress.Broker
	// OnSandbox is called when a session gets a sandbox, or has one again that was used; nil: nobody wants to know.
	OnSandbox func(owner, session string, a *agent.Client, used bool) // it does not wait
	// Bound has the bound secrets of principals; nil: there are none.
	Bound Bound
	// Sealer seals the variables of sessions; nil: no session has any.
	Sealer Sealer
	// Quotas has what each principal may have; nil: as much as Rules allow.
	Quotas *quotas.Quotas
	// Permits is asked about new sessions; nil: all are allowed.
	Permits Permits
	// Keeper has the snapshots; nil: there are none.
	Keeper Keeper
	// Unexpected is called if something happens to a session that package state does not have; nil: the first one is
	// logged.
	Unexpected func(error)
	// Events receives an event when a session is created, is removed, or gets or loses a
	// sandbox.
	Events *event.Stream
}

// publish publishes an event of a session. name is a detail, such as a flavor or the reason
// of a stop; it never contains a user's text.
func (s *Sessions) publish(r Record, operation, name string, took time.Duration) {
	s.Events.Publish(event.Event{Kind: event.Session, Principal: r.Owner, Session: r.ID,
		Operation: operation, Name: name, Outcome: event.OK, Duration: took})
}

// Bound has what stands in sandboxes for bound secrets.
type Bound interface {
	// Version returns a number that changes when the bound secrets of a principal do; 0: there are none.
	Version(owner string) uint64
	// Settings returns what a session's sandbox gets for them.
	Settings(owner, session string) (*agent.Bound, error)
}

// Sessions has all sessions of all principals.
type Sessions struct {
	Config
	policies atomic.Pointer[Policies] // nil: sandboxes reach nothing
	left     *leftovers               // living sandboxes without a session; Run removes them
	canOpen  func() error             // returns an error if the server can open no more files

	storedMu sync.Mutex // held to store counts
	usage    *usage.Ledger
	history  *usage.History

	gone gone

	watch watcher // nil, but in tests

	logged sync.Map // what was unexpected, and is logged once

	endsChanged chan struct{} // wakes runEnds

	removedDays int64 // the store has no traffic of days before that one; used by sweep

	mu        sync.Mutex
	unensured error // why Recover could not make the folders of all workspaces
	sessions  map[string]*Session
	homes     map[string]*Session  // by owner
	names     map[nameKey]*Session // also of sessions that are not in sessions yet
}

// New returns Sessions without any session. Recover loads the stored ones.
func New(c Config) *Sessions {
	s := &Sessions{Config: c, left: newLeftovers(c.Pool, c.Log), sessions: map[string]*Session{},
		homes: map[string]*Session{}, names: map[nameKey]*Session{}, canOpen: openOne, endsChanged: make(chan struct{}, 1)}
	s.usage = usage.New(holder{s})
	s.history = usage.NewHistory(c.HistoryStore)
	return s
}

// openOne opens a file and closes it.
func openOne() error {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	return f.Close()
}

// OpenRequest says which session a call is for.
type OpenRequest struct {
	ID       string // empty: the caller's default; "new"; "home"; or an id
	Template string // empty: any
	Flavor   string // empty: any
	// Env are variables of the session, which has to be a new one, and not the home. Lease.UseVariables has to follow.
	Env map[string]string
	// Set is what is set of the session, which has to be a new one, and not the home.
	Set property.Change
	// NewByDefault makes a new session the default, instead of the home.
	NewByDefault bool
	// KeepNotice leaves Lease.Notice to the next call: for whoever cannot show it.
	KeepNotice bool
}

// Wanted returns which session a principal's request is for: "new", "home", or an id.
func (a OpenRequest) Wanted(p auth.Principal) string {
	switch {
	case a.ID == "" && (a.NewByDefault || p.Service):
		return "new"
	case a.ID == "":
		return "home"
	}
	return a.ID
}

// Open returns a lease of the session that the caller asks for, with a sandbox that answers.
// The caller releases the lease.
func (s *Sessions) Open(ctx context.Context, p auth.Principal, a OpenRequest) (*Lease, error) {
	session, created, err := s.findOrCreate(ctx, p, a)
	if err != nil {
		return nil, err
	}
	if created {
		defer session.commit()
	}
	session.mu.Lock()
	session.on(state.Leased)
	session.mu.Unlock()
	l := &Lease{Session: session, Created: created}
	opened := false
	defer func() {
		if !opened {
			l.Release()
		}
	}()
	if l.Booted, l.told, err = session.ensureSandbox(ctx, a.KeepNotice); err != nil {
		l.Release()
		if created {
			_ = s.endSession(context.WithoutCancel(ctx), session, byUser)
		}
		return nil, err
	}
	if l.Notice = l.told; !a.KeepNotice {
		l.Notice = strings.TrimSpace(l.told + " " + endNotice(session.record(), time.Now()))
	}
	s.setIdentity(ctx, p, l.Booted)
	s.applyBound(ctx, session.record(), l.Booted)
	opened = true
	return l, nil
}

// applyBound gives a sandbox the placeholders of its principal's bound secrets, when they have changed.
func (s *Sessions) applyBound(ctx context.Context, r Record, booted *pool.Booted) {
	if s.Bound == nil {
		return
	}
	version := s.Bound.Version(r.Owner)
	if version == 0 && booted.Used { // it may have some that were removed while no server ran, or while it slept
		version = noneBound
	}
	if version == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boundTimeout)
	defer cancel()
	settings := func() (*agent.Bound, error) { return s.Bound.Settings(r.Owner, r.ID) }
	err := s.Pool.SetBound(ctx, booted, version, settings)
	if err != nil { // the next call tries again
		s.Log.Warn("could not give a sandbox the placeholders of bound secrets", "sandbox", booted.ID, "error", err)
	}
}

const (
	noneBound       = math.MaxUint64   // the version of no bound secrets, for a sandbox that may have some
	boundTimeout    = 10 * time.Second // to give a sandbox the placeholders of bound secrets
	identityTimeout = 5 * time.Second  // to set the git identity of a sandbox
)

// setIdentity sets the git identity of a sandbox to the principal, unless that is the local
// user, for whom the default is right.
func (s *Sessions) setIdentity(ctx context.Context, p auth.Principal, booted *pool.Booted) {
	if p.ID == auth.Local.ID {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), identityTimeout)
	defer cancel()
	if err := s.Pool.SetIdentity(ctx, booted, agent.IdentityOf(p.Name)); err != nil {
		s.Log.Warn("could not tell a sandbox who its user is", "sandbox", booted.ID, "error", err)
	}
}

// findOrCreate returns the session that a asks for, and creates it if necessary.
func (s *Sessions) findOrCreate(ctx context.Context, p auth.Principal,
	a OpenRequest) (session *Session, created bool, err error) {
	if err := checkVariables(a.Env); err != nil {
		return nil, false, err
	}
	wanted := a.Wanted(p)
	if len(a.Env) > 0 && wanted != "new" {
		return nil, false, fault.Argument("env", "variables are given to a new session: use session_id \"new\"").
			Advise("Create another session with them", "In a session that exists, set them in the code, or pass env "+
				"to execute_command")
	}
	if !a.Set.Empty() && wanted != "new" {
		return nil, false, fault.Argument("name", "name, labels, ends_at, ends_in and on_end are given to a new session "+
			"here: use session_id \"new\"").Advise("Change them of a session that exists with `sandlot sessions set`, or " +
			"PATCH /v1/sessions/ID")
	}
	switch wanted {
	case "new":
		session, err = s.create(ctx, p, a, false)
		return session, true, err
	case "home":
		if session = s.ownedSession(p, "home"); session == nil {
			session, err = s.create(ctx, p, a, true)
			if errors.Is(err, errExists) {
				return s.findOrCreate(ctx, p, a) // another call has created it at the same time
			}
			return session, true, err
		}
	default:
		if session = s.ownedSession(p, a.ID); session == nil {
			return nil, false, s.notFound(p.ID, a.ID)
		}
	}
	return session, false, s.checkProvides(ctx, p, session, a)
}

var errExists = errors.New("the home exists")

// newSession returns a session that is in no map yet. e is the event by which it comes to be.
func (s *Sessions) newSession(r Record, e state.Event, d *usage.Disk) *Session {
	return &Session{sessions: s, lock: semaphore.NewWeighted(1), stored: r.Traffic, storedDisk: r.DiskBytes, disk: d,
		counted: counted{traffic: r.Traffic},
		meter:   egress.NewMeter(r.Traffic, s.usage.Meter(r.Owner)), cur: current{rec: r, Status: state.Of(e)}}
}

// create makes a session in the store and in memory, with a warm sandbox from the pool if
// there is one. The session's quota stays reserved until commit, which Open calls.
func (s *Sessions) create(ctx context.Context, p auth.Principal, a OpenRequest, home bool) (*Session, error) {
	asked := cmp.Or(a.Template, s.DefaultTemplate)
	t, err := s.Templates.Find(ctx, asked)
	if err != nil {
		return nil, err
	}
	f, err := s.flavor(cmp.Or(a.Flavor, t.Flavor))
	if err != nil {
		return nil, err
	}
	// The home is always there, unless somebody wants it to be of a certain template.
	if !home || a.Template != "" {
		if err := s.mayCreate(ctx, p, t.Name, asked); err != nil {
			return nil, err
		}
	}
	rt, err := s.Pool.RuntimeOf(t)
	if err != nil {
		return nil, fault.Wrap(fault.SandboxCreation, err, "%v", err)
	}
	if !home { // without its home a principal could remove nothing in it
		if err := s.DiskReached(p.ID); err != nil {
			return nil, err
		}
	}
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, Home: home, Template: t.Name, Flavor: f.Name, State: record.Live,
		Created: now, Used: now}
	if err := a.Set.Apply(&r, now); err != nil {
		return nil, err
	}
	if err := s.checkEnd(Record{}, Record{OnEnd: r.OnEnd, Runtime: rt.Name()}); err != nil {
		return nil, err
	}
	session := s.newSession(r, state.Opened, usage.NewDisk(0, now))
	if err := s.takeName(r, session); err != nil { // before anything is made for it
		return nil, err
	}
	var booted *pool.Booted
	added := false
	defer func() {
		if !added {
			s.dropName(r, session)
			session.commit()
			s.discard(booted, r.Workspace)
		}
	}()
	if err := session.reserve(ctx, usage.Of(home, f)); err != nil {
		return nil, err
	}
	if r.Variables, err = s.sealVariables(p.ID, r.ID, a.Env); err != nil {
		return nil, err
	}
	begins := state.Opened
	if booted = s.Pool.Take(t, f); booted != nil {
		begins = state.Taken
		r.Sandbox, r.Runtime, r.Workspace = booted.ID, rt.Name(), booted.Workspace
		s.connectOutlet(booted, r, session.meter)
	} else if r.Workspace, err = s.Pool.Workspaces.New(); err != nil {
		return nil, fault.Wrap(fault.SandboxCreation, err, "a workspace could not be made on the server's disk")
	}
	session.mu.Lock() // another call may look whose its name is
	session.cur.rec, session.cur.Status, session.cur.booted = r, state.Of(begins), booted
	session.mu.Unlock()
	if err := s.add(ctx, session); err != nil {
		return nil, err
	}
	added = true
	s.announceEnd()
	session.applyPolicy() // it may have changed before the session was added
	s.publish(r, event.SessionCreated, r.Template, 0)
	return session, nil
}

// add adds a new session to the store and to memory.
func (s *Sessions) add(ctx context.Context, session *Session) error {
	r := session.record()
	// Another call may find a home as soon as it is in homes, boot its sandbox, and store
	// the record. storing makes that call wait until the new record is stored.
	session.storing.Lock()
	defer session.storing.Unlock()
	s.mu.Lock()
	if r.Home && s.homes[r.Owner] != nil {
		s.mu.Unlock()
		return errExists
	}
	if r.Home {
		s.homes[r.Owner] = session
	}
	s.mu.Unlock()
	err := s.Store.PutSession(context.WithoutCancel(ctx), r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.sessions[r.ID] = session
		return nil
	}
	if r.Home {
		delete(s.homes, r.Owner)
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	session.on(state.Unstored) // other calls may have found the home meanwhile
	return fmt.Errorf("storing the new session: %w", err)
}

// discard removes the sandbox and the workspace of a session that was not made, as far as it has them.
func (s *Sessions) discard(booted *pool.Booted, workspace string) {
	if booted != nil {
		if err := booted.Destroy(); err != nil {
			s.Log.Error("could not remove a sandbox", "sandbox", booted.ID, "error", err)
		}
	}
	if workspace == "" {
		return
	}
	if err := s.Pool.RemoveWorkspace(workspace); err != nil {
		s.Log.Error("could not remove a workspace", "workspace", workspace, "error", err)
	}
}

func (s *Sessions) flavor(name string) (image.Flavor, error) {
	name = cmp.Or(name, s.DefaultFlavor)
	var known []string
	for _, f := range s.Flavors {
		if f.Name == name {
			return f, nil
		}
		known = append(known, f.Name)
	}
	return image.Flavor{}, unknownName("flavor", name, known)
}

// flavorOf returns the flavor of that name, or, if the settings do not have it any more, the default one.
func (s *Sessions) flavorOf(name string) (image.Flavor, error) {
	if f, err := s.flavor(name); err == nil {
		return f, nil
	}
	return s.flavor(s.DefaultFlavor)
}

func unknownName(what, name string, known []string) error {
	return fault.New(fault.InvalidParameters, "%s %q is not known; known are: %s", what, name,
		strings.Join(known, ", ")).
		With("argument", what).With("given", name).With("allowed", known)
}

// checkProvides returns a fault if an existing session does not have the template or the flavor
// that the call asks for. A session whose template was removed gets the one that the call asks for.
func (s *Sessions) checkProvides(ctx context.Context, p auth.Principal, session *Session, a OpenRequest) error {
	if err := s.openEnded(ctx, session); err != nil {
		return err
	}
	r := session.record()
	if session.current().State.IsPaused() {
		return session.pausedFault()
	}
	if a.Template != "" {
		if err := s.Templates.Check(a.Template); err != nil {
			return err
		}
		if !s.Templates.Exists(r.Template) {
			return session.replaceTemplate(ctx, p, a.Template)
		}
		t, err := session.template(ctx)
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
	want, err := s.flavor(a.Flavor)
	if err != nil {
		return err
	}
	has, err := s.flavorOf(r.Flavor)
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
func (s *Sessions) notFound(owner, id string) error {
	live := []string{}
	for _, session := range s.filter(func(c current) bool { return c.rec.Owner == owner && c.rec.ID != id }) {
		live = append(live, session.record().ID)
	}
	slices.Sort(live)
	if id == "home" {
		return fault.New(fault.SessionNotFound, "home, which nothing has used yet: its first use makes it").
			With("session_id", id).With("live_sessions", live).
			Advise("Call execute_code or execute_command with session_id \"home\"")
	}
	what := fault.Printable(id, 80)
	if why := s.gone.why(owner, id); why != "" {
		what += ": it was removed, with all that it had, as " + why
	}
	return fault.New(fault.SessionNotFound, "%s", what).With("session_id", fault.Printable(id, 80)).
		With("live_sessions", live)
}

func (s *Sessions) all() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sessions))
}

// byID returns the session of that id, whoever owns it, or nil.
func (s *Sessions) byID(id string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// filter returns the sessions that meet a condition, the one used longest ago first.
func (s *Sessions) filter(matches func(current) bool) []*Session {
	list := slices.DeleteFunc(s.all(), func(session *Session) bool { return !matches(session.current()) })
	slices.SortFunc(list, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	return list
}

// ownedSession returns the principal's session with that id or name, or nil. "home" stands for the home.
func (s *Sessions) ownedSession(p auth.Principal, id string) *Session { return s.owned(p.ID, id) }

// owned is ownedSession for the id of a principal. An id goes before a name.
func (s *Sessions) owned(owner, id string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "home" {
		return s.homes[owner]
	}
	if session := s.sessions[id]; session != nil && session.record().Owner == owner {
		return session
	}
	if session := s.names[nameKey{owner, id}]; session != nil && s.sessions[session.record().ID] == session {
		return session
	}
	return nil
}

// List returns the principal's sessions, oldest first, or only the one with the id.
func (s *Sessions) List(ctx context.Context, p auth.Principal, id string) ([]Info, error) {
	list := s.filter(func(c current) bool { return c.rec.Owner == p.ID })
	if id != "" {
		session := s.ownedSession(p, id)
		if session == nil {
			return nil, s.notFound(p.ID, id)
		}
		list = []*Session{session}
	}
	infos := make([]Info, len(list))
	var wg sync.WaitGroup
	for i, session := range list {
		wg.Go(func() { infos[i] = session.info(ctx) })
	}
	wg.Wait()
	slices.SortFunc(infos, func(x, y Info) int { return x.Created.Compare(y.Created) })
	return infos, nil
}

// Live counts the sessions that have a sandbox.
func (s *Sessions) Live() int { return len(s.filter(current.hasSandbox)) }

// CountByOwner returns how many sessions each principal has, asleep ones too.
func (s *Sessions) CountByOwner() map[string]int {
	counts := map[string]int{}
	for _, session := range s.all() {
		counts[session.record().Owner]++
	}
	return counts
}

// Prewarm boots the home of a principal who has connected, so that the first call need not
// wait for it. It does so only while there is room: no other session ends for it.
func (s *Sessions) Prewarm(ctx context.Context, p auth.Principal) {
	if p.Service || !s.hasRoom(ctx, p.ID) {
		return
	}
	if l, err := s.Open(ctx, p, OpenRequest{ID: "home", KeepNotice: true}); err == nil {
		l.Release()
	}
}

// Owns says whether a session has that sandbox.
func (s *Sessions) Owns(sandbox string) bool {
	return len(s.filter(func(c current) bool { return c.rec.Sandbox == sandbox })) > 0
}
