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
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/secret"
	"sandlot/internal/session/disk"
	"sandlot/internal/session/reason"
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
	if err := session.acquireIdle(ctx); err != nil {
		return err
	}
	defer session.release()
	if session.current().removed {
		return s.notFound(p.ID, id)
	}
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

// acquireIdle acquires the lock of a session that no call uses, and waits for calls that do.
func (s *Session) acquireIdle(ctx context.Context) error {
	for deadline := time.Now().Add(idleTimeout); ; {
		if err := s.acquire(ctx); err != nil {
			return err
		}
		if s.current().active == 0 {
			return nil
		}
		s.release()
		if time.Now().After(deadline) {
			return inUse(s.record().ID)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fault.From(ctx.Err())
		}
	}
}

func inUse(id string) error {
	return fault.New(fault.ResourceLimit, "calls are using the session: its state can only be copied between calls").
		With("session_id", id).Advise("Wait for the calls to end, or stop them, and try again",
		"Close interactive commands and terminals in it")
}

// MakeAsleep makes a session of a content, which is its own from then on, and which is of the session like. It has the
// variables of that session, if that is the principal's. After an error the content is the caller's.
func (s *Sessions) MakeAsleep(ctx context.Context, p auth.Principal, c Content, like string) (id string, err error) {
	if err := s.mayCreate(ctx, p, c.Template, ""); err != nil {
		return "", err
	}
	env, err := s.VariablesOf(p.ID, like)
	if err != nil {
		return "", err
	}
	now := time.Now().UTC()
	r := Record{ID: secret.ID(), Owner: p.ID, State: Asleep, Created: now, Used: now, Slept: now}
	r.Hold(c)
	r.Scope = policy.Narrow(c.Scope, p.Scope) // its programs run because p has asked for that
	if r.Network, err = s.networkOfCopy(p, c, NetworkOverride{}, like); err != nil {
		return "", err
	}
	if r.Variables, err = s.sealVariables(p.ID, r.ID, env); err != nil {
		return "", err
	}
	session := &Session{sessions: s, lock: semaphore.NewWeighted(1), cur: current{rec: r},
		disk: disk.New(c.Files, now), meter: egress.NewMeter(egress.Traffic{}, s.days.Meter(p.ID))}
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
// session from. What the session has had ends, whatever runs in it. A crash leaves the old content or the new one.
// After an error the content is the caller's.
func (s *Sessions) Replace(ctx context.Context, p auth.Principal, id string, c Content,
	from string) (sessionID string, err error) {
	session := s.ownedSession(p, id)
	if session == nil {
		return "", s.notFound(p.ID, id)
	}
	if err := session.acquire(ctx); err != nil {
		return "", err
	}
	defer session.release()
	if session.current().removed {
		return "", s.notFound(p.ID, id)
	}
	if err := session.adopt(ctx); err != nil {
		return "", err
	}
	if now := session.record().Template; now != c.Template {
		if err := s.mayCreate(ctx, p, c.Template, ""); err != nil {
			return "", err
		}
	}
	network, err := s.networkOfCopy(p, c, session.record().Network, from)
	if err != nil {
		return "", err
	}
	if now := session.current(); now.booted != nil || now.rec.Image != "" { // else it has nothing but files to lose
		if err := s.canWake(ctx, c); err != nil {
			return "", err
		}
	}
	session.mu.Lock()
	before, old := session.cur.rec, session.cur.booted
	session.cur.booted, session.cur.freezing = nil, old != nil
	session.mu.Unlock()
	err = session.update(func(r *Record) {
		r.State, r.Slept, r.Sandbox, r.Lost = Asleep, time.Now().UTC(), "", ""
		r.Hold(c)
		r.Network, r.Scope = network, policy.Narrow(c.Scope, p.Scope)
	})
	session.mu.Lock()
	if session.cur.freezing = false; err != nil {
		session.cur.booted = old
	} else {
		session.cur.asleepFor = 0
		session.disk.Replace(c.Files)
	}
	session.mu.Unlock()
	if err != nil {
		return "", err
	}
	session.applyPolicy()
	session.forget(ctx, before, old)
	return before.ID, nil
}

// canWake returns a fault if no sandbox can be made of a content.
func (s *Sessions) canWake(ctx context.Context, c Content) error {
	t, exists, err := s.Templates.Of(ctx, c.Template)
	if err != nil {
		return err
	}
	f, err := s.flavor(c.Flavor)
	if err != nil {
		return err
	}
	h, err := s.Pool.HibernatorNamed(c.Runtime)
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "nothing was changed, as no sandbox can be made of the snapshot: %v", err)
	}
	if !exists {
		return fault.New(fault.SessionState, "nothing was changed, as there is no template %s any more, of which the "+
			"snapshot's sandbox is", c.Template).
			Advise("Restore the snapshot into a new session (session_id \"new\"), which has its files")
	}
	if err := s.Pool.CanWake(ctx, h, pool.Request{Workspace: c.Workspace, Template: t, Flavor: f}, c.Image); err != nil {
		return reason.StateFault(err, "nothing was changed, as no sandbox can be made of the snapshot").
			Advise("Restore the snapshot into a new session (session_id \"new\"), which has its files")
	}
	return nil
}

// forget removes the content that a session has had: its record has another one.
func (s *Session) forget(ctx context.Context, before Record, old *pool.Booted) {
	if old != nil {
		if err := old.Destroy(); err != nil {
			s.sessions.Log.Error("could not remove a sandbox; it is tried again", "sandbox", old.ID, "error", err)
			s.sessions.left.Add(s.sessions.boxOf(before))
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
	s.reserveDisk.Lock()
	defer s.reserveDisk.Unlock()
	if err := s.diskReached(owner, max(bytes*a.Copies+a.More, 1)); err != nil {
		return 0, nil, err
	}
	done, err = s.copies.Add(owner, bytes*a.Copies, bytes*a.Temporary, s.Pool.Workspaces.Free)
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
func (s *Sessions) CheckDisk(owner string, bytes int64) error { return s.diskReached(owner, bytes) }

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
