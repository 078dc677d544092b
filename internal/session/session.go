// Package session owns the sessions of principals. A session has a workspace, and a sandbox
// while it is used: the package decides to which session a call goes, when its sandbox
// boots, when an idle one stops, and what stays after that. A principal's home is the
// session that calls use by default; it is never removed.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/agent"
	"sandlot/internal/atomicfile"
	"sandlot/internal/egress"
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

// What is stored of a session, and what it consists of.
type (
	Record          = record.Record
	Counts          = record.Counts
	Content         = record.Content
	NetworkOverride = record.NetworkOverride
	Policies        = record.Policies
	Parent          = record.Parent
)

// Store stores records.
type Store interface {
	PutSession(ctx context.Context, r Record) error
	// PutCounts stores counts that have changed. It ignores ids of sessions that are not stored.
	PutCounts(ctx context.Context, c Counts) error
	// Days returns the traffic of principals on that day and later ones, by their ids.
	Days(ctx context.Context, since int64) (map[string]egress.Day, error)
	// RemoveDays removes the traffic of days before that one.
	RemoveDays(ctx context.Context, before int64) error
	Sessions(ctx context.Context) ([]Record, error)
	RemoveSession(ctx context.Context, id string) error
}

// Session is one session. Lock order: lock, Sessions.storedMu, storing, the mutex of usage.Ledger, Sessions.mu, mu.
// While one of the last three is held, nothing waits for a sandbox, the store or a client.
type Session struct {
	sessions *Sessions
	lock     *semaphore.Weighted // held to boot, stop or remove the session

	meter *egress.Meter // counts the traffic of all its sandboxes
	// The counts in the store; guarded by Sessions.storedMu.
	stored     egress.Traffic
	counted    counted
	storedDisk int64

	storing sync.Mutex // held to change the record, in memory and in the store

	mu   sync.Mutex
	cur  current
	disk *usage.Disk
}

// current is the changing state of a session.
type current struct {
	rec          Record
	state.Status              // which on changes
	booted       *pool.Booted // nil, but while the state is state.Live
	life         uint64       // counts when its programs were replaced by none, or by others
	notices      notices
	// awakeUntil: until then it is not put to sleep again, as that failed, and something runs that would end.
	awakeUntil time.Time
	// jobsUntil: until then it stays awake while something runs in the background.
	jobsUntil time.Time
	// endAgain: until then it is not tried again to pause it at its end, which has failed with endErr.
	endAgain   time.Time
	endErr     error
	unanswered int // the number of leases in a row, the last ones, in which the agent let a call's limit pass
	// late is how often in a row its sandbox did not wake, or go on, in time.
	late int
	// unkept are files of the machine without which it does not wake; see sandbox.FrozenImage.
	unkept   []string
	ended    ended
	reserved func() // ends what is reserved for the session; nil: nothing is, as after commit
}

// ended is how a session's sandbox ended last that calls were perhaps using.
type ended struct {
	sandbox  string // its id; empty: there was none
	restored bool   // its user has restored a snapshot; else they have stopped the session,
	atEnd    bool   // or it has reached the end of its life
}

// hasSandbox says whether the session has a sandbox, which may still boot, or belong to an earlier
// server.
func (c current) hasSandbox() bool { return c.State.HasSandbox() }

// untaken says whether it has a sandbox that has to be taken over, or ended, first.
func (c current) untaken() bool { return c.State.Untaken() }

// removed says whether the session is removed.
func (c current) removed() bool { return c.State == state.Removed }

func (s *Session) current() current {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

func (s *Session) record() Record { return s.current().rec }

func (s *Session) owner() string { return s.record().Owner }

// update changes the record, first in the store, then in memory. It does nothing for a
// session that is removed.
func (s *Session) update(change func(*Record)) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	c := s.current()
	r := c.rec
	if c.removed() {
		return s.sessions.notFound(r.Owner, r.ID)
	}
	change(&r)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.sessions.Store.PutSession(ctx, r); err != nil {
		return fmt.Errorf("storing session: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.rec.Used.After(r.Used) {
		r.Used = s.cur.rec.Used
	}
	s.cur.rec = r
	return nil
}

// updateOrLog is update for a caller that cannot handle an error: it logs the error.
func (s *Session) updateOrLog(what string, change func(*Record)) {
	if err := s.update(change); err != nil {
		s.sessions.Log.Error("could not store "+what, "session", s.record().ID, "error", err)
	}
}

// updateAnyway is update for what is so even if it cannot be stored: the next update stores it.
func (s *Session) updateAnyway(what string, change func(*Record)) {
	err := s.update(change)
	if err == nil || s.current().removed() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.cur.rec)
	s.sessions.Log.Error("could not store that "+what, "session", s.cur.rec.ID, "error", err)
}

// ensureSandbox makes sure that the session has a sandbox that answers. The notice is that of takeNotice; with
// keepNotice it is left to the next call.
func (s *Session) ensureSandbox(ctx context.Context, keepNotice bool) (b *pool.Booted, notice string, err error) {
	if c := s.current(); c.booted != nil && c.rec.Lost == "" &&
		(c.notices.none() || keepNotice) && !c.removed() && c.booted.Agent.Linked() {
		return c.booted, "", nil
	}
	err = s.own(ctx, waits, func() (err error) {
		if err = s.ensureLinked(ctx); err != nil {
			return err
		}
		if b = s.current().booted; b == nil {
			return fault.New(fault.SandboxCreation, "another call has just stopped the session: call again, and it "+
				"gets a new sandbox")
		}
		if !keepNotice {
			notice, err = s.takeNotice()
		}
		return err
	})
	return b, notice, err
}

// ensureLinked makes sure that the session has a sandbox whose agent is linked: that of an earlier server, the one that it
// has, or a new one. It is the session's turn.
func (s *Session) ensureLinked(ctx context.Context) error {
	if err := s.adopt(ctx); err != nil {
		return err
	}
	if s.current().State.IsPaused() {
		return s.pausedFault()
	}
	if b := s.current().booted; b != nil {
		waitCtx, cancel := context.WithTimeout(ctx, s.sessions.AgentTimeout)
		err := b.Agent.Wait(waitCtx)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fault.From(ctx.Err())
		}
		why := "its agent stopped answering"
		if errors.Is(err, sandbox.ErrGone) {
			why = reason.Death(b)
		} else if err := s.sessions.canOpen(); atomicfile.IsPassing(err) { // the agent may dial, and nobody hears it
			return reason.StateFault(err, "nothing of the session is lost, but its sandbox cannot be reached now").
				Advise("Try again in a while")
		} else if isUnknown(b) {
			return runtimeAway(err)
		}
		s.dropSandbox(b, why)
	}
	if err := s.adopt(ctx); err != nil { // what was dropped, or stopped meanwhile, has the workspace until it has ended
		return err
	}
	return s.boot(ctx)
}

// isUnknown reports whether a sandbox's runtime does not say what has come of it: then the silence of the agent says
// nothing, either.
func isUnknown(b *pool.Booted) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return isSilent(b.Box.Status(ctx))
}

// isSilent reports whether an answer of a runtime about a sandbox does not say what has come of it.
func isSilent(st sandbox.Status, err error) bool {
	return err != nil && st.State != sandbox.Running && !errors.Is(err, sandbox.ErrGone)
}

// runtimeAway returns the fault for a sandbox whose runtime does not answer.
func runtimeAway(err error) *fault.Error {
	return fault.Wrap(fault.SandboxCreation, err, "the runtime of the session's sandbox does not answer. The "+
		"sandbox may live on, and is used again as soon as the runtime answers: try again later. On the server's "+
		"machine `sandlot doctor` says more")
}

// boot makes a sandbox with the session's workspace: of the image in which the session sleeps, or a new one. It is the
// session's turn.
func (s *Session) boot(ctx context.Context) error {
	c := s.current()
	r := c.rec
	t, f, err := s.made(ctx)
	if err != nil {
		return err
	}
	rt, err := s.sessions.Pool.RuntimeOf(t)
	if err != nil {
		return fault.Wrap(fault.SandboxCreation, err, "%v", err)
	}
	if c.reserved == nil { // else create has reserved it, and Open commits
		if err := s.reserveBoot(ctx, r, f); err != nil {
			return err
		}
		defer s.commit()
	}
	if err := s.sessions.Pool.Workspaces.Ensure(r.Workspace); err != nil {
		return fault.Wrap(fault.SandboxCreation, err, "its workspace cannot be opened")
	}
	if c.State == state.Asleep {
		if woken, err := s.wake(ctx, t, f); woken || err != nil {
			return err
		}
	}
	return s.bootNew(ctx, t, f, rt.Name())
}

// bootNew is boot for a session that has only its files. It has reserved what the session needs.
func (s *Session) bootNew(ctx context.Context, t *image.Template, f image.Flavor, runtime string) error {
	id := secret.ID()
	if err := s.begin(func(r *Record) { r.Begin(id, runtime) }); err != nil {
		return err
	}
	defer s.unmade()
	began := time.Now()
	// Other calls may wait for the same boot: it goes on when this caller's context ends.
	b, err := s.sessions.Pool.Boot(context.WithoutCancel(ctx), pool.Request{ID: id, Workspace: s.record().Workspace,
		Template: t, Flavor: f, SkipProbe: true})
	if err != nil {
		return s.bootFailed(id, err)
	}
	s.mu.Lock()
	s.sessions.connectOutlet(b, s.cur.rec, s.meter)
	wanted := s.live(state.Booted, b)
	r := s.cur.rec
	s.mu.Unlock()
	if !wanted {
		return s.unwanted(b)
	}
	s.sessions.publish(r, event.SessionBooted, f.Name, time.Since(began))
	return nil
}

// bootFailed notes that the sandbox of that id could not be made.
func (s *Session) bootFailed(id string, cause error) error {
	remains := errors.Is(cause, sandbox.ErrRemains)
	if remains {
		s.mu.Lock()
		s.giveUp(state.BootRemains, cmp.Or(s.cur.rec.Lost, "it did not get ready"))
		s.mu.Unlock()
		s.sessions.left.add()
	}
	err := errors.Join(cause, s.update(func(r *Record) { r.EndSandbox(id, !remains) }))
	return fault.Wrap(fault.SandboxCreation, err, "%s", reason.Start(err))
}

// unmade notes that no sandbox was made, if the session is still in a state in which one is being made: also after a
// panic.
func (s *Session) unmade() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch is, image := s.cur.State, s.cur.rec.Image; {
	case is == state.Booting:
		s.on(state.BootFailed)
	case is == state.Waking && image == "":
		s.on(state.WakeLost)
	case is == state.Waking:
		s.on(state.WakeLater)
	}
}

// dropSandbox is endSandbox for a sandbox that has died.
func (s *Session) dropSandbox(b *pool.Booted, why string) { s.endSandbox(b, state.Died, why) }

// endSandbox destroys the session's sandbox after an event, and stores why. It does nothing when b is nil, or is
// not the session's sandbox any more.
func (s *Session) endSandbox(b *pool.Booted, e state.Event, why string) {
	s.mu.Lock()
	if b == nil || s.cur.booted != b {
		s.mu.Unlock()
		return
	}
	s.giveUp(e, why)
	s.mu.Unlock()
	ended := s.destroy(b)
	s.updateAnyway("a sandbox ended", func(r *Record) { // the user is told in any case
		r.Lost = why
		r.EndSandbox(b.ID, ended)
	})
	s.sessions.publish(s.record(), event.SessionStopped, why, 0)
}

// giveUp takes the session's sandbox away from it after an event. Until the sandbox has ended, the session boots no other
// one, which would have the same workspace. The caller holds mu.
func (s *Session) giveUp(e state.Event, why string) {
	s.on(e)
	s.cur.notices.sandboxEnds()
	s.disk.Changed()
	s.cur.rec.Lost = why
}

// destroy ends a sandbox after giveUp, and reports whether it has ended. If not, Run tries again, and so does each call
// that needs a sandbox.
func (s *Session) destroy(b *pool.Booted) (ended bool) {
	s.sample(context.Background(), b)
	err := b.Destroy()
	if err != nil {
		s.sessions.Log.Error("could not remove a sandbox; it is tried again", "sandbox", b.ID, "error", err)
		s.sessions.left.add()
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.rec.Sandbox == b.ID && s.cur.State == state.Stopping {
		s.on(state.Gone)
	}
	return true
}

// Lease is the use of a session for one call. Release ends it.
type Lease struct {
	*Session
	Booted  *pool.Booted
	Created bool // the session is new
	// Snapshot is the name of the snapshot that was made for the call before it; empty: none was.
	Snapshot string
	Notice   string // what the user is to be told about the time since the last call; empty: nothing
	told     string // the part of Notice that is told once
	once     sync.Once
	late     atomic.Bool // the agent has let a call's limit pass, and says that it lives
}

// ID returns the session's id.
func (l *Lease) ID() string { return l.record().ID }

// IsHome reports whether it is the owner's home session.
func (l *Lease) IsHome() bool { return l.record().Home }

// RootIsCapable reports whether root in the sandbox can give files to other users and become them.
func (l *Lease) RootIsCapable() bool {
	users := l.sessions.Pool.Capabilities(l.record().Runtime).Users
	return users != nil && users.RootIsCapable(l.Booted.Template)
}

// Agent returns the sandbox's agent.
func (l *Lease) Agent() *agent.Client { return l.Booted.Agent }

// Release ends the use of the session, and restarts its idle timeout. It may be called more
// than once.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.on(state.Released)
		if l.late.Load() {
			l.cur.unanswered++
		} else {
			l.cur.unanswered = 0
		}
		l.disk.Changed()
		l.cur.rec.Used = time.Now().UTC()
	})
}

// KeepAwake keeps the session awake for a background process that was started, while it only waits too: until its time
// limit is over, or for the time that the settings give those without one (limit 0). It returns for how long; 0: not at
// all.
func (l *Lease) KeepAwake(limit time.Duration) time.Duration {
	h := l.sessions.Hibernation
	if h.Jobs == 0 || h.Background == BackgroundNone {
		return 0
	}
	lasts := cmp.Or(limit, h.Jobs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(lasts); until.After(l.cur.jobsUntil) {
		l.cur.jobsUntil = until
	}
	return lasts
}

// Fault turns an error of a call on the agent into a fault of that kind. If the sandbox is dead, or its agent does not
// say that it lives, Fault destroys it, and the next call boots a new one. That the time of a call is over, or that its
// caller has gone, says nothing about the sandbox. ctx is the caller's.
func (l *Lease) Fault(ctx context.Context, err error, kind fault.Kind) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return f
	}
	statusCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	why, errorType := "", typeEnded
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if late {
		why = l.death(statusCtx)
	}
	if late && why == "" {
		return l.withSession(fault.Wrap(fault.Connection, err, "the sandbox did not answer in the time that the call had; "+
			"the session lives on"), typeSlow)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fault.From(ctx.Err())
	}
	if f := reason.Refused(err); f != nil {
		return f.With("session_id", l.ID())
	}
	if f := l.endedByUser(err, kind); f != nil {
		return f
	}
	// When a sandbox dies, its link closes a moment before Status reports it as dead.
	for try := 0; try < 20 && why == ""; try++ {
		if why = l.death(statusCtx); why != "" {
			break
		}
		if errors.Is(err, agent.ErrProtocol) {
			why, errorType = "its agent gave an answer that makes no sense", typeUnresponsive
			break
		}
		if agent.ReasonOf(err) == agent.TimedOut || errors.Is(err, context.DeadlineExceeded) {
			silent, helloErr := l.askAgent(ctx)
			late := l.keepsNoLimit(helloErr)
			if helloErr == nil && !late {
				return l.withSession(fault.Wrap(kind, err, "the sandbox did not answer the call in time, and is alive; the "+
					"session lives on"), typeSlow)
			}
			if silent && isUnknown(l.Booted) { // the link may be over its runtime, too
				return l.withSession(runtimeAway(err), typeSlow)
			}
			if silent || late {
				why, errorType = "its agent stopped answering", typeUnresponsive
				break
			}
			err = helloErr // what has come of the sandbox, this error says, or soon its runtime
		}
		time.Sleep(10 * time.Millisecond)
	}
	if why == "" {
		return l.withSession(fault.Wrap(kind, err,
			"the link to the sandbox broke in the middle of the call; the session lives on"), "link_lost")
	}
	if !l.drop(ctx, why) && errorType == typeUnresponsive { // a dead one is dropped by the next call
		return l.withSession(fault.Wrap(kind, err, "the session's sandbox did not answer, and could not be ended: "+
			"other calls are starting or ending it; try again"), errorType)
	}
	return l.lost(err, kind, "the session's sandbox had to end: "+why, errorType)
}

// lost returns the fault for a call whose sandbox has ended, of which the session keeps the files.
func (l *Lease) lost(err error, kind fault.Kind, why, errorType string) *fault.Error {
	return l.withSession(fault.Wrap(kind, err,
		"%s. Files in /workspace are kept; variables, processes and everything outside /workspace are gone. The next "+
			"call starts it again", why), errorType).
		With("lost", []string{"variables", "processes"}).With("kept", []string{pool.WorkspaceDir})
}

// endedByUser returns the fault for a call whose sandbox was ended by another call, which its user has made for that; nil:
// it was not.
func (l *Lease) endedByUser(err error, kind fault.Kind) error {
	c := l.current()
	switch {
	case c.ended.sandbox != l.Booted.ID:
		return nil
	case c.ended.restored:
		return l.withSession(fault.Wrap(kind, err, "another call has replaced the session by a snapshot, which ended "+
			"this one: the session has the files, variables and processes of the snapshot"), typeEnded)
	}
	what := "another call has stopped the session, which ended this one"
	if c.ended.atEnd {
		what = "the session reached its end (ends_at), which ended this call"
	}
	if !c.rec.Home {
		return l.withSession(fault.Wrap(kind, err, "%s: the session is gone, with its files", what), typeEnded)
	}
	return l.lost(err, kind, what, typeEnded)
}

// askAgent asks the agent whether it lives, in a time of its own. silent: that time is over.
//
// Only the agent's own answer is a verdict about a sandbox. The limit of one caller says how patient that
// caller is: a third-party server with a short timeout, in a home that was busy, once ended the home with all
// variables and processes. The price is that a call which meets an agent that hangs takes this time more.
func (l *Lease) askAgent(ctx context.Context) (silent bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.sessions.AgentTimeout)
	defer cancel()
	_, err = l.Booted.Agent.Hello(ctx)
	return ctx.Err() != nil, err
}

// death returns why the sandbox is dead; empty: the runtime does not say that it is. A runtime that does not answer until
// ctx ends says nothing about it.
func (l *Lease) death(ctx context.Context) string {
	st, err := l.Booted.Box.Status(ctx)
	if err != nil || st.State != sandbox.Dead {
		return ""
	}
	return reason.Of(st, l.Booted)
}

// maxUnanswered is the number of leases in a row in which an agent may let a call's limit pass: an agent has been told
// the limit, and ends the call then. One that does not can say for ever that it lives, and do nothing.
const maxUnanswered = 3

// keepsNoLimit notes that the agent has let a call's limit pass, and reports whether that was once too often: earlier
// where it did not even say that it lives, by an error that is not silence.
func (l *Lease) keepsNoLimit(helloErr error) bool {
	l.late.Store(true)
	most := maxUnanswered
	if helloErr != nil {
		most--
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur.unanswered+1 < most {
		return false
	}
	l.cur.unanswered = 0
	l.late.Store(false)
	return true
}

// dropTimeout is how long a call whose sandbox has failed waits for the session's lock.
const dropTimeout = 5 * time.Second

// drop destroys the lease's sandbox, and reports whether the session has it no more.
func (l *Lease) drop(ctx context.Context, why string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return l.own(ctx, waits, func() error {
		l.dropSandbox(l.Booted, why)
		return nil
	}) == nil || l.current().removed()
}

// Types of errors of calls whose sandbox failed.
const (
	typeEnded        = "sandbox_ended"
	typeUnresponsive = "sandbox_unresponsive"
	typeSlow         = "sandbox_slow" // it lives on
)

// withSession adds the session's id to a fault, and, if the call ran code, the error type.
func (l *Lease) withSession(f *fault.Error, errorType string) *fault.Error {
	if f.Kind == fault.CodeExecution {
		f = f.With("template", l.Booted.Template.Name).With("error_type", errorType)
	}
	return f.With("session_id", l.ID())
}

// Info is what users may know of their own sessions.
type Info struct {
	Record
	Status string // creating, ready, running, processing, hibernated, paused, stopped, error
	Flavor image.Flavor
	Usage  *agent.Usage // nil: it has no sandbox, or the agent did not answer
	// Unkept are files of the machine without which it does not wake; see sandbox.FrozenImage.
	Unkept []string
	// MaxBytes is the limit of Traffic, both directions together; 0: no limit.
	MaxBytes int64
}

// info describes the session. It boots no sandbox.
func (s *Session) info(ctx context.Context) Info {
	waitCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
	_ = s.awaitTakeover(waitCtx) // a sandbox that is not taken over in time counts as ready
	cancel()
	c := s.current()
	r, b := c.rec, c.booted
	i := Info{Record: r, Status: "stopped", MaxBytes: s.sessions.maxBytes()}
	i.Traffic = s.meter.Traffic()
	if i.Flavor, _ = s.sessions.flavorOf(r.Flavor); b != nil {
		i.Flavor = b.Flavor
	}
	switch {
	case c.State.Makes():
		i.Status = "creating"
	case c.State == state.Freezing, c.State == state.Adopting:
		i.Status = "ready"
	case c.State.IsPaused():
		i.Status, i.Unkept = "paused", c.unkept
	case b == nil && (r.State == record.Asleep || c.State == state.Clearing):
		i.Status, i.Unkept = "hibernated", c.unkept
	case b == nil && r.State == record.Live && r.Lost != "":
		i.Status = "error"
	case b != nil:
		i.Status = "ready"
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		u, err := b.Agent.Usage(ctx)
		if err == nil {
			i.Usage = &u
			if u.Busy {
				i.Status = "running"
			}
		}
		if c.Calls > 0 {
			i.Status = "processing"
		}
		if err != nil { // a Docker daemon may take a second to answer
			if st, err := b.Box.Status(ctx); err == nil && st.State == sandbox.Dead {
				i.Status = "error"
			}
		}
	}
	return i
}
