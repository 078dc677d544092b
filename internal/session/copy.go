package session

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/state"
	"sandlot/internal/session/usage"
)

const (
	// idleTimeout is how long WhileStill waits for calls that use the session.
	idleTimeout = 10 * time.Second
	// stillTimeout is how long a sandbox stands still at most.
	stillTimeout = 5 * time.Minute
)

// WhileStill calls do while nothing runs in one of a principal's sessions, whose memory is in Content.Image by then.
// The image stays if do returns nil; the workspace is the session's own. The session goes on in any case.
func (s *Sessions) WhileStill(ctx context.Context, p auth.Principal, id string,
	do func(ctx context.Context, sessionID string, c Content, bytes int64) error) (err error) {
	if err := s.CanCopy(); err != nil {
		return err
	}
	if id == "new" {
		return fault.Argument("session_id", "session_id has to name a session that exists")
	}
	l, err := s.Open(ctx, p, OpenRequest{ID: id, KeepNotice: true})
	if err != nil {
		return err
	}
	l.Release()
	session := l.Session
	if _, err := s.Pool.HibernatorNamed(session.record().Runtime); err != nil {
		return fault.Wrap(fault.Configuration, err, "the session cannot be copied: %v", err).
			Advise("Copy the files that matter", "Ask the operator for a template with the runtime gvisor")
	}
	return session.own(ctx, unused|adopts, func() error { return s.whileStill(ctx, session, do) })
}

// whileStill is WhileStill for a session whose turn it is.
func (s *Sessions) whileStill(ctx context.Context, session *Session,
	do func(ctx context.Context, sessionID string, c Content, bytes int64) error) error {
	if err := session.ensureLinked(ctx); err != nil {
		return err
	}
	stillCtx, cancel := context.WithTimeout(ctx, stillTimeout)
	defer cancel()
	f, err := s.freeze(stillCtx, session)
	if errors.Is(err, errInUse) {
		return inUse(session.record().ID)
	}
	if err != nil {
		if ctx.Err() != nil {
			return fault.From(ctx.Err())
		}
		return reason.StateFault(err, "the session goes on, but could not be written to the disk").
			With("session_id", session.record().ID)
	}
	defer f.goOn(ctx)
	r := session.record()
	err = do(stillCtx, r.ID, Content{Image: f.image.Name, Workspace: r.Workspace, Runtime: r.Runtime,
		Template: r.Template, Flavor: r.Flavor, Network: r.Network, Secrets: r.Secrets, Scope: r.Scope}, f.image.Bytes)
	if err != nil {
		s.removeImage(ctx, r.Runtime, f.image.Name)
	}
	return err
}

// CanCopy returns a fault if the server makes no copies of sessions.
func (s *Sessions) CanCopy() error {
	if s.Hibernation.Enabled {
		return nil
	}
	return fault.New(fault.Configuration, "the memory of sessions is not written to the disk on this server "+
		"(hibernate.enabled is false), so no session can be copied, and no snapshot restored").
		Advise("Ask the operator to set hibernate.enabled: snapshots are kept meanwhile")
}

func inUse(id string) error {
	return fault.Wrap(fault.ResourceLimit, errInUse, "calls are using the session: it can only be copied or paused "+
		"between calls").With("session_id", id).Advise("Wait for the calls to end, or stop them, and try again",
		"Close interactive commands and terminals in it")
}

// MakeAsleep makes a session of a content, which is its own from then on, and which is of the session from.Session. It
// has the variables of that session, if that is the principal's. After an error the content is the caller's.
func (s *Sessions) MakeAsleep(ctx context.Context, p auth.Principal, c Content, from Parent) (id string, err error) {
	return s.makeAsleep(ctx, p, c, from, false)
}

// makeAsleep does as MakeAsleep. A home has no variables; the error is errExists if it is there already.
func (s *Sessions) makeAsleep(ctx context.Context, p auth.Principal, c Content, from Parent,
	home bool) (id string, err error) {
	if err := s.mayCreate(ctx, p, c.Template, ""); err != nil {
		return "", err
	}
	var env map[string]string
	if !home {
		if env, err = s.VariablesOf(p.ID, from.Session); err != nil {
			return "", err
		}
	}
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, Home: home, State: Asleep, Created: now, Used: now, Slept: now, Parent: from}
	r.Hold(c)
	r.Scope = policy.Narrow(c.Scope, p.Scope) // its programs run because p has asked for that
	if r.Network, err = s.networkOfCopy(p, c, NetworkOverride{}, from.Session); err != nil {
		return "", err
	}
	if r.Variables, err = s.sealVariables(p.ID, r.ID, env); err != nil {
		return "", err
	}
	session := &Session{sessions: s, lock: semaphore.NewWeighted(1), disk: usage.NewDisk(c.Files, now),
		cur:   current{rec: r, Status: state.Of(state.Copied)},
		meter: egress.NewMeter(egress.Traffic{}, s.usage.Meter(p.ID))}
	session.disk.Changed()
	if err := s.add(ctx, session); err != nil {
		return "", err
	}
	session.applyPolicy() // it may have changed before the session was added
	s.publish(r, event.SessionCreated, r.Template, 0)
	return r.ID, nil
}

// networkOfCopy returns the operator's network setting of a session that gets a content of the session origin.
func (s *Sessions) networkOfCopy(p auth.Principal, c Content, own NetworkOverride,
	origin string) (NetworkOverride, error) {
	var now NetworkOverride
	if session := s.ownedSession(p, origin); session != nil {
		now = session.record().Network
	}
	base := egress.None
	if policy := s.TemplatePolicy(c.Template); policy != nil {
		base = policy.Mode
	}
	return c.NetworkIn(own, now, base)
}

// Replace gives one of a principal's sessions another content, which is its own from then on, and which is of the
// session from.Session. What the session has had ends, whatever runs in it, as soon as the sandbox of the new content
// answers: until then, and after an error, the session has it. A session that has nothing but files gets the new content asleep.
// A crash leaves the old content or the new one. After an error the content is the caller's. A home that was not used yet
// is made.
func (s *Sessions) Replace(ctx context.Context, p auth.Principal, id string, c Content,
	from Parent) (sessionID string, err error) {
	session := s.ownedSession(p, id)
	if session == nil && id == "home" {
		if sessionID, err = s.makeAsleep(ctx, p, c, from, true); !errors.Is(err, errExists) {
			return sessionID, err
		}
		session = s.ownedSession(p, id) // another call has made it at the same time
	}
	if session == nil {
		return "", s.notFound(p.ID, id)
	}
	return session.record().ID, session.own(ctx, waits|adopts, func() error { return s.replace(ctx, p, session, c, from) })
}

// replace is Replace for a session whose turn it is.
func (s *Sessions) replace(ctx context.Context, p auth.Principal, session *Session, c Content, from Parent) error {
	if session.current().State.IsPaused() {
		return session.pausedFault()
	}
	if now := session.record().Template; now != c.Template {
		if err := s.mayCreate(ctx, p, c.Template, ""); err != nil {
			return err
		}
	}
	network, err := s.networkOfCopy(p, c, session.record().Network, from.Session)
	if err != nil {
		return err
	}
	hold := func(r *Record) {
		r.State, r.Slept, r.Sandbox, r.Lost = Asleep, time.Now().UTC(), "", ""
		r.Hold(c)
		r.Network, r.Scope = network, policy.Narrow(c.Scope, p.Scope)
	}
	began := time.Now()
	var woken *pool.Booted
	if now := session.current(); now.booted != nil || now.rec.Image != "" { // else it has nothing but files to lose
		h, request, err := s.canWake(ctx, c)
		if err != nil {
			return err
		}
		unreserve, err := session.reserveBeside(ctx, s.Pool.WakesAs(ctx, h, c.Image, request.Flavor))
		if err != nil {
			return err
		}
		defer unreserve()
		if woken, err = session.wakeBeside(ctx, h, request, c, hold); err != nil {
			return err
		}
	}
	before, old, err := session.exchange(woken, hold, c.Files)
	if err != nil {
		session.discard(woken, c)
		return err
	}
	session.applyPolicy()
	if woken != nil {
		s.removeImage(ctx, c.Runtime, c.Image) // so that it is not used twice in any case
		s.publish(session.record(), event.SessionWoken, woken.Flavor.Name, time.Since(began))
	}
	session.forget(ctx, before, old)
	return nil
}

// exchange stores what hold makes of the session's record, and gives the session the sandbox woken; nil: it sleeps.
// It returns the record and the sandbox that the session has had. After an error it has them.
func (s *Session) exchange(woken *pool.Booted, hold func(*Record), files int64) (before Record, old *pool.Booted,
	err error) {
	s.mu.Lock()
	if before, old = s.cur.rec, s.cur.booted; old != nil {
		s.on(state.Exchange)
	}
	s.mu.Unlock()
	err = s.update(func(r *Record) {
		if hold(r); woken != nil {
			r.State, r.Sandbox, r.Image = Live, woken.ID, ""
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if old != nil {
			s.live(state.Thawed, old)
		}
		return before, old, err
	}
	if s.cur.State == state.Stopping { // its user has just stopped what it had
		s.sessions.left.add(s.sessions.boxOf(before))
	}
	if woken != nil {
		s.live(state.Replaced, woken)
	} else {
		s.on(state.ReplacedAsleep)
	}
	s.cur.asleepFor = 0
	if old != nil {
		s.cur.ended, s.cur.restored = old.ID, true
	}
	s.cur.warned, s.cur.warning = false, ""
	s.disk.Replace(files)
	return before, old, nil
}

// canWake returns the runtime that can make a sandbox of a content, and the request for it, or a fault if none can.
func (s *Sessions) canWake(ctx context.Context, c Content) (h sandbox.Freezer, r pool.Request, err error) {
	t, exists, err := s.Templates.Of(ctx, c.Template)
	if err != nil {
		return nil, r, err
	}
	f, err := s.flavorOf(c.Flavor)
	if err != nil {
		return nil, r, err
	}
	h, err = s.Pool.HibernatorNamed(c.Runtime)
	if err != nil {
		return nil, r, fault.Wrap(fault.Configuration, err, "%s: %v", unchanged, err)
	}
	if !exists {
		return nil, r, fault.New(fault.SessionState, "nothing was changed: the snapshot's template %s is not there any "+
			"more", c.Template).Advise(restoreNew)
	}
	r = pool.Request{ID: secret.ID(), Workspace: c.Workspace, Template: t, Flavor: f}
	if err := s.Pool.CanWake(ctx, h, r, c.Image); err != nil {
		return nil, r, reason.StateFault(err, unchanged).Advise(restoreNew)
	}
	return h, r, nil
}

const (
	unchanged  = "nothing was changed, as no sandbox can be made of the snapshot"
	restoreNew = "Restore the snapshot into a new session (session_id \"new\"), which has its files"
)

// reserveBeside reserves what the session needs with a sandbox of a flavor, besides what it has now, until done is
// called. While both sandboxes run, the session counts once.
func (s *Session) reserveBeside(ctx context.Context, f image.Flavor) (done func(), err error) {
	now := s.current()
	want := usage.Of(now.rec.Home, f)
	if now.booted != nil {
		want = want.Beyond(usage.Of(now.rec.Home, now.booted.Flavor))
	}
	return s.sessions.usage.Reserve(ctx, now.rec.Owner, want)
}

// wakeBeside makes a sandbox of a content, while the session still has what it has had. hold makes the session's record
// have the content. After an error there is no such sandbox.
func (s *Session) wakeBeside(ctx context.Context, h sandbox.Freezer, request pool.Request, c Content,
	hold func(*Record)) (*pool.Booted, error) {
	r := s.record()
	hold(&r)
	b, err := s.sessions.Pool.Wake(ctx, h, request, c.Image,
		func(b *pool.Booted) { s.sessions.connectOutlet(b, r, s.meter) })
	if errors.Is(err, sandbox.ErrRemains) {
		s.sessions.left.add(boxID{Runtime: c.Runtime, Sandbox: request.ID})
	}
	if err != nil {
		s.sessions.Log.Error("could not wake what a session was to get, which stays as it is", "session", r.ID, "error",
			err)
		return nil, reason.StateFault(err, unchanged).Advise(restoreNew)
	}
	return b, nil
}

// discard ends the sandbox of a content that the session does not get; nil: there is none.
func (s *Session) discard(b *pool.Booted, c Content) {
	if b == nil {
		return
	}
	if err := b.Destroy(); err != nil {
		s.sessions.Log.Error("could not remove a sandbox; it is tried again", "sandbox", b.ID, "error", err)
		s.sessions.left.add(boxID{Runtime: c.Runtime, Sandbox: b.ID})
	}
}

// forget removes the content that a session has had: its record has another one.
func (s *Session) forget(ctx context.Context, before Record, old *pool.Booted) {
	if old != nil {
		if err := old.Destroy(); err != nil {
			s.sessions.Log.Error("could not remove a sandbox; it is tried again", "sandbox", old.ID, "error", err)
			s.sessions.left.add(s.sessions.boxOf(before))
		}
	}
	s.sessions.RemoveContent(ctx, Content{Runtime: before.Runtime, Image: before.Image, Workspace: before.Workspace})
}

// kept returns the workspaces and images that belong to no session, and stay.
func (s *Sessions) kept(ctx context.Context) (workspaces, images []string, err error) {
	if s.Kept == nil {
		return nil, nil, nil
	}
	return s.Kept(ctx)
}

// Copy makes a content of copies of another one.
func (s *Sessions) Copy(ctx context.Context, c Content) (copied Content, err error) {
	h, err := s.Pool.HibernatorNamed(c.Runtime)
	if err != nil {
		return copied, fault.Wrap(fault.Configuration, err, "the copy cannot be used: %v", err)
	}
	copied = c
	if copied.Workspace, copied.Files, err = s.CopyWorkspace(ctx, c.Workspace); err != nil {
		return copied, err
	}
	image, err := h.CopyFrozen(ctx, c.Image)
	if err != nil {
		return copied, errors.Join(reason.StateFault(err, "its memory could not be copied"),
			s.Pool.RemoveWorkspace(copied.Workspace))
	}
	copied.Image = image.Name
	return copied, nil
}

// Plan says how many copies of a workspace are to be made.
type Plan struct {
	Workspace string
	Copies    int64 // which stay
	Temporary int64 // which do not, and are not in the quota of the owner
	More      int64 // how many bytes the owner has besides the copies then; negative: how many the owner has not
}

// ReserveCopies makes copies count in the quota of their owner, and on the server's disk, until done is called. The
// error is a fault if one of both does not allow them. bytes is the size of one.
func (s *Sessions) ReserveCopies(ctx context.Context, owner string, a Plan) (bytes int64, done func(), err error) {
	bytes, _, err = s.Pool.WorkspaceBytes(ctx, a.Workspace)
	if err != nil {
		return 0, nil, fault.Wrap(fault.FileAccess, err, "the session's files could not be measured: %s",
			reason.Files(err))
	}
	done, err = s.usage.Reserve(ctx, owner, usage.Amount{Disk: max(bytes*a.Copies+a.More, 1),
		Copies: max(bytes*(a.Copies+a.Temporary), 1)})
	return bytes, done, err
}

// CopyWorkspace makes a workspace with a copy of the files of another one.
func (s *Sessions) CopyWorkspace(ctx context.Context, id string) (copied string, bytes int64, err error) {
	copied, bytes, err = s.Pool.Workspaces.Copy(ctx, id)
	if err != nil {
		return copied, bytes, fault.Wrap(fault.FileAccess, err, "the session's files could not be copied: %s",
			reason.Files(err)).Advise("Remove files that are not needed, and try again")
	}
	return copied, bytes, nil
}

// RemoveContent removes a content that no session has. What cannot be removed now, the next start removes.
func (s *Sessions) RemoveContent(ctx context.Context, c Content) {
	s.removeImage(ctx, c.Runtime, c.Image)
	if c.Workspace != "" {
		if err := s.Pool.RemoveWorkspace(c.Workspace); err != nil {
			s.Log.Error("could not remove a workspace; the next start does", "workspace", c.Workspace, "error", err)
		}
	}
}

// CheckDisk returns a fault if a principal's quota of the disk does not allow so many more bytes.
func (s *Sessions) CheckDisk(owner string, bytes int64) error { return s.usage.CheckDisk(owner, bytes) }

// Publish publishes an event of a session, as package session does.
func (s *Sessions) Publish(owner, id, operation, name string, took time.Duration) {
	s.publish(Record{Owner: owner, ID: id}, operation, name, took)
}

// SizeOf returns the size of a session's workspace as far as it is known; 0: it was not measured.
func (s *Sessions) SizeOf(p auth.Principal, id string) int64 {
	if session := s.ownedSession(p, id); session != nil {
		return session.disk.Bytes()
	}
	return 0
}
