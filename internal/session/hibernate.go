package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/agent"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/record"
	"sandlot/internal/session/state"
	"sandlot/internal/session/usage"
)

// Package state has the states of a session that sleeps, and the order of the steps. freeze and still are what snapshots
// and forks need as well: the workspace can be copied between freeze and goOn, while nothing runs in the sandbox.

// Hibernation says whether and how idle sessions sleep.
type Hibernation struct {
	Enabled    bool
	Background Background    // which background processes keep a session awake
	Jobs       time.Duration // for how long one without a time limit does while it only waits
	ImageBytes int64         // of one session at most
	DiskBytes  int64         // of all sessions; see limitImages
	Keep       time.Duration // of an image
	PackAfter  time.Duration // after so long asleep images are compressed
}

// errInUse means that a session is used, or has nothing that could sleep.
var errInUse = errors.New("it is in use")

// sleepTimeout is the timeout to put a session to sleep, or to let it go on when that failed.
const sleepTimeout = time.Minute

// idle returns for how long a session with that usage is idle, and whether it has to stay awake now.
func (s *Sessions) idle(r Record, u agent.Usage) (since time.Duration, busy bool) {
	background := s.Hibernation.Background
	if _, unable := s.Pool.HibernatorNamed(r.Runtime); unable != nil || !s.Hibernation.Enabled {
		background = BackgroundAll // what runs would end
	}
	return idleOf(u, background, s.IdleTimeout)
}

// still is a session whose sandbox stands still, and was written to an image. Either goOn or end follows. The session's
// lock is held meanwhile.
type still struct {
	session *Session
	runtime sandbox.Freezer
	booted  *pool.Booted // which the session does not have meanwhile
	image   sandbox.FrozenImage
}

// freeze writes the image of a session that no call uses. The error says why that could not be done, in words that can
// end a sentence; the session then goes on, unless its sandbox has died. It is the session's turn.
func (s *Sessions) freeze(ctx context.Context, session *Session) (*still, error) {
	h, err := s.Pool.HibernatorNamed(session.record().Runtime)
	if err != nil {
		return nil, err
	}
	session.mu.Lock()
	f, owner := &still{session: session, runtime: h, booted: session.cur.booted}, session.cur.rec.Owner
	if !session.may(state.Freeze) {
		session.mu.Unlock()
		return nil, errInUse
	}
	session.on(state.Freeze)
	session.disk.Changed()
	session.mu.Unlock()
	f.booted.Detach()
	if f.image, err = h.Freeze(ctx, f.booted.Box, owner, s.Hibernation.ImageBytes); err != nil {
		f.goOn(ctx)
		return nil, err
	}
	return f, nil
}

// goOn gives the session its sandbox back, which goes on, also if ctx has ended. The image stays.
func (f *still) goOn(ctx context.Context) {
	s, old := f.session, f.booted
	err := f.runtime.Thaw(context.WithoutCancel(ctx), old.Box)
	if reason.Passes(err) && !s.lateOnceTooOften(err) {
		f.leave(err)
		return
	}
	b := s.sessions.Pool.Adopt(old.Box, pool.Request{Workspace: old.Workspace, Template: old.Template,
		Flavor: old.Flavor})
	s.mu.Lock()
	s.sessions.connectOutlet(b, s.cur.rec, s.meter)
	s.live(state.Thawed, b)
	s.mu.Unlock()
	if err != nil {
		s.sessions.Log.Error("a sandbox that could not be put to sleep does not go on", "sandbox", b.ID, "error", err)
		s.dropSandbox(b, "it could not be put to sleep, and did not go on")
	}
}

// leave leaves a sandbox that cannot go on now to whoever needs it next, and to Run: they take it over as that of an
// earlier server.
func (f *still) leave(cause error) {
	s := f.session
	s.sessions.Log.Error("a sandbox that could not be put to sleep stands still; it is tried again", "sandbox", f.booted.ID,
		"error", cause)
	s.note(state.StandsStill)
	s.sessions.left.add()
}

// end ends the sandbox, also if ctx has ended. The session's record does not have it any more.
func (f *still) end(ctx context.Context) {
	s := f.session
	if err := f.booted.Box.Stop(context.WithoutCancel(ctx)); err != nil {
		s.sessions.Log.Error("could not remove the sandbox of a session that sleeps; it is tried again", "sandbox",
			f.booted.ID, "error", err)
		s.sessions.left.add(boxID{Runtime: cmp.Or(s.record().Runtime, s.sessions.Pool.Runtime.Name()),
			Sandbox: f.booted.ID})
	}
}

// putToSleep puts a session that no call uses to sleep. The error says why it was not, as that of freeze; the session
// then goes on. It is the session's turn.
func (s *Sessions) putToSleep(ctx context.Context, session *Session) error {
	return s.freezeFor(ctx, session, "")
}

// freezeFor is putToSleep, and pauses the session for whom pausedBy names; empty: any use wakes it.
func (s *Sessions) freezeFor(ctx context.Context, session *Session, pausedBy string) error {
	ctx, cancel := context.WithTimeout(ctx, sleepTimeout)
	defer cancel()
	session.sample(ctx, session.current().booted)
	began := time.Now()
	f, err := s.freeze(ctx, session)
	if err != nil {
		return err
	}
	frozen, published := state.Frozen, event.SessionHibernated
	if pausedBy != "" {
		frozen, published = state.FrozenPaused, event.SessionPaused
	}
	if err := session.move(frozen, func(r *Record) {
		now := time.Now().UTC()
		r.State, r.Image, r.Slept, r.Sandbox = record.Asleep, f.image.Name, now, ""
		if pausedBy != "" {
			r.Pause(pausedBy, now)
		}
	}); err != nil {
		s.removeImage(ctx, session.record().Runtime, f.image.Name)
		f.goOn(ctx)
		return fmt.Errorf("%w: %w", sandbox.ErrLater, err)
	}
	took := time.Since(began) // from now on the session sleeps, whatever happens
	session.setUnkept(f.image.Unkept)
	f.end(ctx)
	s.publish(session.record(), published, fmt.Sprintf("%d MB", usage.Megabytes(f.image.Bytes)), took)
	return nil
}

// EndAll puts all sessions to sleep before the server ends, with hibernate, those with most to lose first, until ctx ends;
// what has begun by then may take overtime. Sandboxes of sessions that can sleep, and do not, whatever the reason, run on
// for the next server. All others end: their sessions keep their files, and their records say why they have no more.
func (s *Sessions) EndAll(ctx context.Context, hibernate bool, overtime time.Duration) {
	hardCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(overtime, cancel) })()
	calls, cancelCalls := context.WithTimeout(hardCtx, lastCalls)
	defer cancelCalls()
	var mu sync.Mutex
	var rest []liveSession
	whys := map[*Session]string{}
	var work errgroup.Group
	work.SetLimit(sleepAtOnce())
	for _, l := range s.mostToLose(ctx) {
		work.Go(func() error {
			why := s.sleepNow(ctx, hardCtx, calls, l.session, hibernate)
			mu.Lock()
			defer mu.Unlock()
			if why != "" {
				rest, whys[l.session] = append(rest, l), why
			}
			return nil
		})
	}
	_ = work.Wait() // there are no errors
	_ = each(context.WithoutCancel(ctx), rest, func(_ context.Context, l liveSession) error {
		s.endNow(l.session, whys[l.session])
		return nil
	})
}

// sleepNow puts one session to sleep, if hibernate and ctx allow to begin, until hardCtx ends. Calls
// that use it may end until the context calls does. Empty: the session sleeps, has nothing that could, or is left to the
// next server; else the session's sandbox is to end, and why says why.
func (s *Sessions) sleepNow(ctx, hardCtx, calls context.Context, session *Session, hibernate bool) (why string) {
	_, unable := s.Pool.HibernatorNamed(session.record().Runtime)
	switch {
	case !hibernate || !s.Hibernation.Enabled:
		return stoppedByServer
	case unable != nil:
		return unslept(unable)
	case ctx.Err() != nil:
		session.leaveToNext(noTime, ctx.Err())
		return ""
	}
	session.awaitCalls(calls)
	if session.current().Calls > 0 {
		session.leaveToNext(inCalls, errInUse)
		return ""
	}
	err := session.own(hardCtx, tries, func() error {
		if session.current().booted == nil {
			return nil
		}
		return s.putToSleep(hardCtx, session)
	})
	switch {
	case err == nil, session.current().removed():
		return ""
	case hardCtx.Err() != nil:
		session.leaveToNext(noTime, err)
		return ""
	case errors.Is(err, errInUse):
		session.leaveToNext(inCalls, err)
		return ""
	}
	session.leaveToNext("it could not be put to sleep: "+reason.State(err), err)
	return ""
}

// unslept is the reason for the loss of a sandbox that never sleeps, and ended with its server.
func unslept(err error) string {
	return stoppedByServer + ", and it could not be put to sleep: " + reason.State(err)
}

// lastCalls is how long all sessions together wait at the stop of the server for calls that are just ending.
const lastCalls = 3 * time.Second

// inCalls is why a session that a call uses does not sleep.
const inCalls = "calls were using it"

// awaitCalls waits until no call uses the session, or ctx ends.
func (s *Session) awaitCalls(ctx context.Context) {
	for s.current().Calls > 0 {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// noTime is why a session that the server left to the next one does not sleep.
const noTime = "there was no time to put it to sleep"

// leaveToNext notes that the session's sandbox runs on without a server: for the next one, or until it ends itself. why
// is the reason, should it be lost. The sandbox lives on also if that cannot be stored.
func (s *Session) leaveToNext(why string, cause error) {
	s.sessions.Log.Error("could not put a session to sleep; its sandbox keeps running for the next server", "session",
		s.record().ID, "error", cause)
	s.updateOrLog("why a session does not sleep", func(r *Record) {
		if r.Sandbox != "" && r.Lost == "" && r.State == record.Live {
			r.State, r.Lost = record.Left, stoppedByServer+", and "+why
		}
	})
}

// endNow ends the sandbox of a session.
func (s *Sessions) endNow(session *Session, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	err := session.own(ctx, tries, func() error {
		if booted := session.current().booted; booted != nil {
			session.endSandbox(booted, state.Stop, why)
			session.updateOrLog("that a session stopped", func(r *Record) { r.State = record.Stopped })
		}
		return nil
	})
	if err != nil && !session.current().removed() {
		s.Log.Error("a session's sandbox lives on: it is being started or ended", "session", session.record().ID,
			"error", err)
	}
}

// endTimeout is for how long endNow waits for a session that is being started or ended.
const endTimeout = 10 * time.Second

// liveSession is a session with a sandbox, and what that uses, as far as its agent says.
type liveSession struct {
	session *Session
	usage   agent.Usage
}

func (l liveSession) owner() string { return l.session.owner() }

// mostToLose returns the sessions with a sandbox: first those in which something runs, then those with much in their
// memory.
func (s *Sessions) mostToLose(ctx context.Context) (all []liveSession) {
	for _, session := range s.filter(current.hasSandbox) {
		all = append(all, liveSession{session: session})
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var work sync.WaitGroup
	for i, l := range all {
		if b := l.session.current().booted; b != nil { // else it is an earlier server's
			work.Go(func() { all[i].usage, _ = b.Agent.Usage(ctx) })
		}
	}
	work.Wait()
	slices.SortStableFunc(all, func(x, y liveSession) int {
		switch {
		case x.usage.Busy && !y.usage.Busy:
			return -1
		case y.usage.Busy && !x.usage.Busy:
			return 1
		}
		return cmp.Compare(y.usage.MemoryBytes, x.usage.MemoryBytes)
	})
	return inTurns(all, liveSession.owner)
}

// stoppedByServer is the reason for the loss of a sandbox that ended with its server.
const stoppedByServer = "its server was stopped"

// wake makes a sandbox of the image in which the session sleeps. If that can never be done, the session has only its
// files from then on, and its record says why. The error is that of a session that sleeps on, or that cannot boot a sandbox
// either. It is the session's turn, and has reserved what the session needs.
func (s *Session) wake(ctx context.Context, t *image.Template, f image.Flavor) (woken bool, err error) {
	r := s.record()
	id, began := secret.ID(), time.Now()
	ctx = context.WithoutCancel(ctx) // other calls may wait for the same sandbox
	h, err := s.sessions.Pool.HibernatorNamed(r.Runtime)
	var b *pool.Booted
	if err == nil {
		if err := s.begin(func(r *Record) { r.Sandbox, r.State = id, record.Live }); err != nil {
			return false, err
		}
		defer s.unmade()
		b, err = s.sessions.Pool.Wake(ctx, h, pool.Request{ID: id, Workspace: r.Workspace, Template: t, Flavor: f},
			r.Image, func(b *pool.Booted) { s.sessions.connectOutlet(b, r, s.meter) })
	}
	if reason.Passes(err) && !s.lateOnceTooOften(err) {
		return false, s.sleepOn(id, err)
	}
	if err != nil {
		return false, s.stayStopped(ctx, id, err)
	}
	s.updateAnyway("a session is awake", func(r *Record) { r.Image = "" })
	s.sessions.removeImage(ctx, r.Runtime, r.Image) // so that it is not used twice in any case
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.late, s.cur.notices.wokeWithout, s.cur.unkept = 0, s.cur.unkept, nil
	if s.live(state.Woken, b); b.Outlet != nil {
		b.Outlet.SetPolicy(s.sessions.policy(s.cur.rec)) // it may have changed meanwhile
	}
	if !sandbox.IsCopy(r.Image) {
		s.cur.notices.wake(r.Slept)
	}
	s.sessions.publish(s.cur.rec, event.SessionWoken, f.Name, time.Since(began))
	return true, nil
}

// maxLate is how often in a row a sandbox may take too long to wake, or to go on. A busy machine is no reason to lose it;
// one that never answers would keep the session from its files for ever.
const maxLate = 3

// lateOnceTooOften notes why a sandbox does not wake or go on; nil: it does. It reports whether that has taken too long
// once too often.
func (s *Session) lateOnceTooOften(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause == nil {
		s.cur.late = 0
	}
	if !errors.Is(cause, context.DeadlineExceeded) {
		return false
	}
	s.cur.late++
	return s.cur.late >= maxLate
}

// sleepOn notes that the session cannot be woken now, for a cause that passes: it sleeps on, in its image. What is left of
// the sandbox of that id is removed first.
func (s *Session) sleepOn(id string, cause error) error {
	r := s.record()
	s.sessions.Log.Error("could not wake a session, which sleeps on", "session", r.ID, "error", cause)
	if errors.Is(cause, sandbox.ErrRemains) {
		s.note(state.WakeRemains)
		s.sessions.left.add()
	} else {
		s.updateAnyway("a session sleeps on", func(r *Record) { r.Sandbox, r.State = "", record.Asleep })
		s.note(state.WakeLater)
	}
	advice := []string{"Try again in a while", "If that does not help, the operator of the server finds the cause in its log"}
	if r.Home {
		advice = append(advice, "To go on without its variables and processes, call stop_session: files in /workspace are kept")
	}
	return reason.StateFault(cause, "nothing of the session is lost, but it cannot be woken now").With("session_id", r.ID).
		Advise(advice...)
}

// setUnkept notes the files of the machine without which the session does not wake.
func (s *Session) setUnkept(paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.unkept = paths
}

// stayStopped notes that the session could not be woken in the sandbox of that id.
func (s *Session) stayStopped(ctx context.Context, id string, cause error) error {
	r, why := s.record(), "it could not be woken: "+reason.State(cause)
	s.sessions.Log.Error("could not wake a session, which keeps its files", "session", r.ID, "error", cause)
	remains := errors.Is(cause, sandbox.ErrRemains)
	if remains {
		s.mu.Lock()
		s.giveUp(state.WakeLostRemains, why)
		s.mu.Unlock()
		s.sessions.left.add()
	}
	err := s.update(func(r *Record) {
		r.Image, r.Lost, r.State = "", cmp.Or(r.Lost, why), record.Live
		r.EndSandbox(id, !remains)
	})
	if err != nil { // the record still has the image
		return err
	}
	if !remains {
		s.note(state.WakeLost)
	}
	s.sessions.removeImage(ctx, r.Runtime, r.Image)
	if remains {
		return fault.Wrap(fault.SandboxCreation, cause, "the session could not be woken, and what is left of "+
			"that could not be removed yet: try again later")
	}
	return nil
}

// loseImage makes a session that sleeps, or is paused, one that has only its files.
func (s *Session) loseImage(ctx context.Context, why string) {
	_ = s.own(ctx, atOnce, func() error { // else it wakes
		s.loseImageLocked(ctx, why)
		return nil
	})
}

// loseImageLocked is loseImage for a session whose turn it is.
func (s *Session) loseImageLocked(ctx context.Context, why string) {
	r := s.record()
	if !r.Sleeps() {
		return
	}
	if err := s.move(state.ImageLost, func(r *Record) {
		if r.Image, r.Lost = "", why; r.State == record.Asleep {
			r.State = record.Stopped
		}
	}); err != nil {
		s.sessions.Log.Error("could not store that a session sleeps no more", "session", r.ID, "error", err)
		return
	}
	s.sessions.removeImage(ctx, r.Runtime, r.Image)
	s.sessions.publish(r, event.SessionStopped, why, 0)
}

// removeImage removes an image that no session needs any more, also if ctx has ended. The next start tries again.
func (s *Sessions) removeImage(ctx context.Context, madeBy, name string) {
	h, err := s.Pool.HibernatorNamed(madeBy)
	if h != nil && name != "" {
		err = h.RemoveFrozen(context.WithoutCancel(ctx), name)
	}
	if err != nil && name != "" {
		s.Log.Error("could not remove the image of a session; the next start does", "image", name, "error", err)
	}
}

// thaw lets the sandbox of an earlier server go on that stood still, when that server ended while it put the session
// to sleep. One that does not is ended, unless the cause passes.
func (s *Session) thaw(ctx context.Context, id boxID, box sandbox.Sandbox) error {
	h := s.sessions.Pool.Capabilities(id.Runtime).Freezer
	if h == nil {
		return nil
	}
	err := h.Thaw(ctx, box)
	if late := s.lateOnceTooOften(err); err == nil || reason.Passes(err) && !late {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return errors.Join(err, endBox(ctx, box))
}

// removeUnownedImages removes the images that no session sleeps in, and that are no snapshot's. It is called before the
// first session is put to sleep.
func (s *Sessions) removeUnownedImages(ctx context.Context) {
	_, kept, err := s.kept(ctx)
	if err != nil {
		s.Log.Error("could not find out which images snapshots have, so none is removed", "error", err)
		return
	}
	owned := map[string]bool{}
	for _, name := range kept {
		owned[name] = true
	}
	asleep := map[string]*Session{}
	for _, session := range s.all() {
		asleep[session.record().Image] = session
	}
	for _, h := range s.Pool.Hibernators() {
		images, err := h.FrozenImages(ctx)
		for _, i := range images {
			if session := asleep[i.Name]; session != nil {
				session.setUnkept(i.Unkept)
			} else if !owned[i.Name] {
				err = errors.Join(err, h.RemoveFrozen(ctx, i.Name))
			}
		}
		if err != nil {
			s.Log.Error("could not remove the images that belong to nobody; the next start does", "error", err)
		}
	}
}
