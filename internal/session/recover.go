package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/record"
	"sandlot/internal/session/state"
	"sandlot/internal/session/usage"
)

// Recover loads the sessions of an earlier server. It is called once, before the first Open,
// and is quick: it does not take sandboxes over. The first call for a session does that, or
// Run, which also removes the sandboxes that belong to no session.
//
// With 200 sessions that were all taken over first, a killed server was back after 18 s. Most of it were the
// agents' failed dials, of 2.5 ms of CPU each (they wake the agent, gVisor and its file server), so agents
// without a server dial rarely, and a server wakes the agent whose sandbox it takes over. What remains after
// a kill is the kernel's: it closes the old process's connections, each of which wakes a sandbox for 2 to 3
// ms, and until then the old process holds the state folder. Until a sandbox is taken over, it counts towards
// all limits, and nobody watches its memory (without cgroups) and disk. An agent that cannot be woken, as the
// path of the control socket is too long, dials again within about four seconds.
func (s *Sessions) Recover(ctx context.Context) error {
	unowned, away, err := s.left.find(ctx)
	if err != nil {
		return err
	}
	records, err := s.Store.Sessions(ctx)
	if err != nil {
		return fmt.Errorf("reading the sessions: %w", err)
	}
	if err := s.recoverDays(ctx); err != nil {
		return err
	}
	owned := map[string]bool{} // workspaces
	var ensured error
	for _, r := range records {
		if r.State == record.Removed { // the last server did not finish removing it
			err = errors.Join(err, s.Pool.RemoveWorkspace(r.Workspace), s.Store.RemoveSession(ctx, r.ID))
			continue
		}
		owned[r.Workspace] = true
		// A backup may lack empty folders. Without one, a volume with the session's files would be removed.
		ensured = errors.Join(ensured, s.Pool.Workspaces.Ensure(r.Workspace))
		s.recover(r, unowned, away)
	}
	if err := s.recoverHistory(ctx); err != nil {
		return fmt.Errorf("reading what sessions have used: %w", err)
	}
	s.left.hold(slices.Collect(maps.Keys(unowned)))
	s.mu.Lock()
	s.unensured = ensured
	s.mu.Unlock()
	if err = errors.Join(err, ensured); err != nil { // the next start tries again
		s.Log.Error("could not remove what is left of a session, or make a workspace's folder", "error", err)
	}
	workspaces, _, err := s.kept(ctx)
	if err != nil {
		return fmt.Errorf("reading the snapshots: %w", err)
	}
	for _, id := range workspaces {
		owned[id] = true
	}
	s.removeWorkspaces(owned)
	s.removeUnownedImages(ctx)
	return nil
}

// Workspaces returns the ids of the workspaces that stored sessions have. It fails if Recover could not make the
// folders of all: what else belongs to nobody is not certain then.
func (s *Sessions) Workspaces(ctx context.Context) (ids []string, err error) {
	s.mu.Lock()
	err = s.unensured
	s.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("the workspaces of all sessions could not be made: %w", err)
	}
	records, err := s.Store.Sessions(ctx)
	for _, r := range records {
		if r.State != record.Removed {
			ids = append(ids, r.Workspace)
		}
	}
	kept, _, keptErr := s.kept(ctx)
	return append(ids, kept...), errors.Join(err, keptErr)
}

// removeWorkspaces removes the workspaces that belong to no session, but for those that are kept. The next start tries
// again with those that cannot be removed now.
func (s *Sessions) removeWorkspaces(owned map[string]bool) {
	all, err := s.Pool.Workspaces.All()
	kept, keptErr := s.Pool.Workspaces.Kept()
	if keptErr != nil {
		s.Log.Error("could not find out which workspaces are kept, so none is removed", "error", keptErr)
		return
	}
	for _, id := range all {
		if !owned[id] && !slices.Contains(kept, id) {
			err = errors.Join(err, s.Pool.RemoveWorkspace(id))
		}
	}
	if err != nil {
		s.Log.Error("could not remove the workspaces that belong to nobody", "error", err)
	}
}

// recover adds the session of a stored record, and deletes its sandbox from unowned.
func (s *Sessions) recover(r Record, unowned map[boxID]bool, away map[string]bool) {
	lost, inImage, found := lostWhileDown, false, state.FoundStopped
	switch id := s.boxOf(r); {
	case r.Sandbox == "":
	case s.Pool.RuntimeNamed(id.Runtime) == nil:
		lost = "its runtime " + id.Runtime + " is not among the setting runtimes any more"
		inImage = r.Image != ""
	case !unowned[id] && !away[id.Runtime]:
	case s.Templates.Exists(r.Template):
		delete(unowned, id)
		if found = state.FoundRunning; r.State == record.Stopped {
			found = state.FoundStopping
		}
	default:
		lost = lostTemplate
	}
	switch {
	case found != state.FoundStopped || r.Sandbox == "":
	case inImage: // the record stays as it is, and says of the sandbox if its runtime is there again
	case r.Image != "": // it was about to wake, and did not begin to, or has not got far
		r.Sandbox, r.State = "", record.Asleep
	default:
		r.Sandbox, r.Lost = "", cmp.Or(r.Lost, lost)
		r.EndLeft()
	}
	switch asleep := r.Image != ""; {
	case found != state.FoundStopped:
	case r.State == record.Paused && asleep:
		found = state.FoundPaused
	case r.State == record.Paused:
		found = state.FoundHeld
	case asleep:
		found = state.FoundAsleep
	}
	session := s.newSession(r, found, usage.NewDisk(r.DiskBytes, time.Time{}))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[r.ID] = session
	if r.Name != "" {
		s.names[nameKey{r.Owner, r.Name}] = session
	}
	if r.Home {
		s.homes[r.Owner] = session
	}
}

// lostWhileDown is the reason for the loss of a sandbox that ended while no server ran.
const lostWhileDown = "it ended while the server was away"

// lostTemplate is the reason for the loss of a sandbox whose template was removed.
const lostTemplate = "its template was removed"

// boxOf returns the sandbox of a record.
func (s *Sessions) boxOf(r Record) boxID {
	return boxID{Runtime: cmp.Or(r.Runtime, s.Pool.Runtime.Name()), Sandbox: r.Sandbox}
}

// adopt takes over the session's sandbox from an earlier server, if that has not been done
// yet. It is the session's turn. After an error it can be tried again.
func (s *Session) adopt(ctx context.Context) error {
	c := s.current()
	r := c.rec
	if !c.untaken() {
		return nil
	}
	ends := c.State.Ends()
	t, f, err := s.made(ctx)
	if err != nil && !ends {
		return err
	}
	// The takeover goes on when the caller's context ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	box, err := s.sessions.left.recover(ctx, s.sessions.boxOf(r))
	switch {
	case err == nil && (ends || sandbox.IsCopy(r.Image)): // a copy may not have new random numbers yet
		err = endBox(ctx, box)
	case err == nil:
		err = s.thaw(ctx, s.sessions.boxOf(r), box)
	}
	gone := errors.Is(err, sandbox.ErrGone)
	if gone && !sandbox.Removed(err) {
		s.sessions.Log.Error("could not remove a dead sandbox; it is tried again", "sandbox", r.Sandbox, "error", err)
		s.sessions.left.add(s.sessions.boxOf(r))
	}
	if errors.Is(err, sandbox.ErrUnavailable) && !gone {
		return runtimeAway(err)
	}
	if err != nil && !gone && ends {
		return fault.Wrap(fault.SandboxCreation, err, "the session's sandbox was stopped, and has not ended yet. "+
			"Until it has, none is started beside it in the same workspace: try again later")
	}
	if err != nil && !gone && reason.Passes(err) {
		return fault.Wrap(fault.SandboxCreation, err, "nothing of the session is lost, but its sandbox cannot be used "+
			"now: %s", reason.State(err)).Advise("Try again in a while: the server tries by itself, too",
			"If that does not help, the operator of the server finds the cause in its log")
	}
	if err != nil && !gone {
		return fault.Wrap(fault.SandboxCreation, err,
			"the session's sandbox could not be taken over from an earlier server")
	}
	if err != nil {
		return s.noteGone(ctx, c, err)
	}
	if r.State == record.Left { // nothing is lost
		if err := s.update(func(r *Record) { r.State, r.Lost = record.Live, "" }); err != nil {
			return err
		}
	}
	if r.Image != "" { // the earlier server ended when the session had just woken
		if err := s.update(func(r *Record) { r.Image = "" }); err != nil {
			return err
		}
		s.sessions.removeImage(ctx, r.Runtime, r.Image)
		s.mu.Lock()
		s.cur.notices.wake(r.Slept)
		s.mu.Unlock()
	}
	booted := s.sessions.Pool.Adopt(box, pool.Request{Workspace: r.Workspace, Template: t, Flavor: f})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.connectOutlet(booted, s.cur.rec, s.meter)
	s.live(state.TakenOver, booted)
	return nil
}

// noteGone notes that the sandbox which the record names has ended: the session then sleeps in its image, or has only its
// files. c is the session before that. It is the session's turn.
func (s *Session) noteGone(ctx context.Context, c current, cause error) error {
	r := c.rec
	notMade := (sandbox.IsCopy(r.Image) || errors.Is(cause, sandbox.ErrNotStarted)) && !c.State.Ends()
	change := func(r *Record) { r.Sandbox, r.State = "", record.Asleep }
	if r.Image == "" || !notMade && c.State != state.Clearing {
		why := lostWhileDown
		if errors.Is(cause, context.DeadlineExceeded) {
			why = "it stood still, and did not go on"
		}
		change = func(r *Record) {
			r.Sandbox, r.Image, r.Lost = "", "", cmp.Or(r.Lost, why)
			r.EndLeft()
		}
		defer s.sessions.removeImage(ctx, r.Runtime, r.Image)
	}
	err := s.update(change)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.cur.untaken(): // destroy was faster
	case s.cur.rec.Image != "":
		s.on(state.GoneAsleep)
	default:
		s.on(state.Gone)
	}
	return err
}

// made returns what the session's sandbox was made of.
func (s *Session) made(ctx context.Context) (*image.Template, image.Flavor, error) {
	f, err := s.sessions.flavorOf(s.record().Flavor)
	if err != nil {
		return nil, f, err
	}
	t, err := s.template(ctx)
	return t, f, err
}

// awaitTakeover makes sure that the session has taken over the sandbox of an earlier server,
// if it had one that is not to be stopped.
func (s *Session) awaitTakeover(ctx context.Context) error {
	if s.current().State.Ends() {
		return nil
	}
	return s.takeOver(ctx)
}

// takeOver takes over, or stops, the session's sandbox if that has to be done.
func (s *Session) takeOver(ctx context.Context) error {
	if !s.current().untaken() {
		return nil
	}
	err := s.own(ctx, adopts, func() error { return nil })
	if s.current().removed() {
		return nil
	}
	return err
}

const (
	// linkTimeout is how long Run waits for one agent to dial before it goes on to the next
	// sandbox. It is longer than an agent's pause between two attempts.
	linkTimeout = 2 * time.Second
	// adoptDelay is how long Run leaves the processors to calls after the server's start,
	// before it takes sandboxes over.
	adoptDelay = 500 * time.Millisecond
	// adoptRetry is the pause before Run tries again to take over or to remove a sandbox.
	adoptRetry = 5 * time.Second
)

// adoptAll takes over the sandboxes of an earlier server for their sessions, beginning with
// the session that was used last. Then, or when ctx ends, it removes the sandboxes without a
// session.
func (s *Sessions) adoptAll(ctx context.Context) {
	defer s.left.remove(ctx)
	select {
	case <-time.After(adoptDelay):
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		waiting := s.filter(current.untaken)
		if len(waiting) == 0 {
			break
		}
		slices.Reverse(waiting)
		err := each(ctx, waiting, s.adoptOne)
		s.left.remove(ctx)
		if err == nil {
			continue
		}
		select {
		case <-time.After(adoptRetry):
		case <-ctx.Done():
		}
	}
}

func (s *Sessions) adoptOne(ctx context.Context, session *Session) error {
	if err := session.takeOver(ctx); err != nil {
		if ctx.Err() == nil {
			s.Log.Error("could not take over a session's sandbox; it is tried again", "session", session.record().ID,
				"error", err)
		}
		return err
	}
	if booted := session.current().booted; booted != nil {
		ctx, cancel := context.WithTimeout(ctx, linkTimeout)
		defer cancel()
		_ = booted.Agent.Wait(ctx) // a call that needs the agent waits longer
	}
	return nil
}

// endUnowned removes sandboxes that were added to left, until ctx ends: those of
// sessions that were stopped before their takeover, and those that could not be removed. It also
// ends those that sessions have given up.
func (s *Sessions) endUnowned(ctx context.Context) {
	defer s.left.remove(ctx)
	for {
		select {
		case <-s.left.added:
		case <-ctx.Done():
			return
		}
		select { // taking them over, or removing them, has just failed
		case <-time.After(adoptRetry):
		case <-ctx.Done():
			return
		}
		s.left.remove(ctx)
		if each(ctx, s.filter(current.untaken), s.adoptOne) != nil {
			s.left.add()
		}
	}
}
