package servers

import (
	"fmt"
	"time"

	stream "sandlot/internal/event"
)

// State is where a server is.
type State string

const (
	Disabled      State = "disabled"
	Installing    State = "installing" // shown alone: its state goes on meanwhile
	Starting      State = "starting"
	Connected     State = "connected"
	Idle          State = "idle"           // stopped; it starts when it is used
	Backoff       State = "backoff"        // it died, and starts again after a pause
	Failed        State = "error"          // it starts when it is told to
	NeedsEnv      State = "needs_env"      // values were not stored, and have to be given again, or a secret is missing
	NeedsAuth     State = "needs auth"     // its user has to log in
	NeedsApproval State = "needs_approval" // shown alone: connected, but some of its tools are held back
)

// Failures in a row, and the pauses after them.
const (
	steady       = time.Minute // who lives so long has not failed to start
	maxFailures  = 6
	firstPause   = 500 * time.Millisecond
	longestPause = 30 * time.Second
)

// pause is how long to wait after so many failures in a row.
func pause(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(firstPause<<min(failures-1, 10), longestPause)
}

// status is all that a server's state consists of. Nothing but next changes it.
type status struct {
	state        State
	why          string    // the last error
	authURL      string    // where its user logs in
	failures     int       // since it last worked
	earliest     time.Time // no start before it
	neverStarted bool      // a call made it, and it has not run yet, nor was its user asked to log in
	removed      bool      // for good
}

// occurrence is what can happen to a server.
type occurrence int

const (
	created      occurrence = iota // a call made it, to be started
	begins                         // a start begins, if its pause has ended
	started                        // it runs, and what it offers was read
	interrupted                    // its start was interrupted
	lacksSecret                    // it did not start for want of a secret
	startFailed                    // it did not start
	exited                         // it ended by itself
	sessionOver                    // what it ran in is over, or it forgot its session: it did nothing wrong
	worked                         // a call was answered
	asksLogin                      // its user has to log in
	loggedIn                       // they have
	loginFailed                    // they have not
	loginDropped                   // the link to log in is over
	loginBack                      // the log-in of before is there again
	secretStored                   // its user stored a secret that it wants
	stopped                        // it was stopped; it starts when it is used
	forgiven                       // what it failed before does not count any more
	disconnected                   // it is not to run
	broken                         // its settings cannot be used
	removal                        // it goes
)

// event is an occurrence, and what there is to know of it.
type event struct {
	what    occurrence
	at      time.Time
	why     string // in words
	link    string // to log in
	running bool   // an instance runs
	lasted  bool   // the instance had run for long
	wanted  bool   // somebody needs it though no call says so
}

// action is what has to be done after a change of the status.
type action int

const (
	dropTimer  action = iota // no start is due any more
	startNow                 // unless it runs, is on its way or may not
	startLater               // when its pause has ended
)

// next is the state machine of a server: what becomes of its status when something
// happens, and what has to be done then. It has no effects.
func next(s status, e event) (status, []action) {
	if s.removed && e.what != loginDropped {
		return s, nil
	}
	switch e.what {
	case created:
		s.neverStarted = true
	case worked:
		s.failures = 0
	case forgiven:
		s.failures, s.earliest = 0, time.Time{}
	case removal:
		s.removed = true
		return s, []action{dropTimer}
	case begins, started, interrupted, lacksSecret, startFailed:
		return nextOfStart(s, e)
	case exited, sessionOver:
		return nextOfEnd(s, e)
	case asksLogin, loggedIn, loginFailed, loginDropped, loginBack:
		return nextOfLogin(s, e)
	case secretStored:
		if s.state == NeedsEnv {
			s.state, s.why = Idle, ""
		}
	case stopped:
		s.state, s.why = Idle, ""
		return s, []action{dropTimer}
	case disconnected:
		s.state, s.why = Disabled, ""
		return s, []action{dropTimer}
	case broken:
		s.state, s.why = Failed, e.why
		return s, []action{dropTimer}
	}
	return s, nil
}

// nextOfStart is next for an attempt to start. What was disconnected meanwhile stays
// so, however the attempt ends.
func nextOfStart(s status, e event) (status, []action) {
	switch {
	case e.what == begins:
		if !e.at.Before(s.earliest) {
			s.state = Starting
		}
		return s, []action{dropTimer}
	case e.what == started:
		s.state, s.why, s.authURL, s.neverStarted = Connected, "", "", false
	case s.state == Disabled:
	case e.what == interrupted:
		s.state, s.why = Idle, ""
	case e.what == lacksSecret:
		s.state, s.why = NeedsEnv, e.why
	default:
		return failed(s, e)
	}
	return s, nil
}

// nextOfEnd is next for an instance that nobody stopped.
func nextOfEnd(s status, e event) (status, []action) {
	if e.what == sessionOver {
		s.state, s.why = Idle, ""
		return s, nil
	}
	if e.lasted {
		s.failures = 0
	}
	return failed(s, e)
}

// failed counts a failure. One that waits for its user to log in has not failed.
func failed(s status, e event) (status, []action) {
	if s.state == NeedsAuth {
		s.why = e.why
		return s, nil
	}
	s.failures++
	if s.failures >= maxFailures {
		s.state, s.why = Failed, fmt.Sprintf("it failed %d times in a row, and was given up: %s", s.failures, e.why)
		return s, nil
	}
	s.state, s.why, s.earliest = Backoff, e.why, e.at.Add(pause(s.failures))
	if e.wanted {
		return s, []action{startLater}
	}
	return s, nil
}

// nextOfLogin is next for log-ins. Those that end for a server that does not wait for
// one any more change nothing but the link.
func nextOfLogin(s status, e event) (status, []action) {
	s.authURL = e.link
	if e.what == asksLogin {
		s.state, s.why, s.neverStarted = NeedsAuth, e.why, false
		return s, nil
	}
	if e.what == loginDropped || e.what == loginBack || s.state != NeedsAuth {
		return s, nil
	}
	s.failures, s.earliest = 0, time.Time{}
	switch {
	case e.running: // it was in the middle of its work
		s.state, s.why = Connected, ""
	case e.what == loginFailed:
		s.state, s.why = Idle, e.why
	default:
		s.state, s.why = Idle, ""
		return s, []action{startNow}
	}
	return s, nil
}

// on takes note of what happens to the server, and does what has to be done. The lock
// is held.
func (s *server) on(e event) {
	e.at = time.Now()
	before := s.state
	var actions []action
	s.status, actions = next(s.status, e)
	if s.state != before {
		s.book.Events.Publish(stream.Event{Kind: stream.Connection, Principal: s.owner.ID,
			Operation: stream.ServerState, Name: s.name, Outcome: string(s.state)})
		s.book.Log.Debug("connection", "owner", s.owner.ID, "connection", s.id, "name", s.name, "state", s.state,
			"why", s.why)
	}
	for _, a := range actions {
		switch a {
		case dropTimer:
			if s.retry != nil {
				s.retry.Stop()
				s.retry = nil
			}
		case startNow:
			s.beginUnlessBusy()
		case startLater:
			s.retry = time.AfterFunc(time.Until(s.earliest), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.beginUnlessBusy()
			})
		}
	}
}

// beginUnlessBusy starts the server unless it runs, is started or may not run. The
// lock is held.
func (s *server) beginUnlessBusy() {
	if s.instance == nil && s.start == nil && s.unusable() == nil {
		s.launch()
	}
}
