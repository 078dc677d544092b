// Package state is the state machine of a third-party server, as pure functions: the
// state after an event, and the actions that follow from it.
package state

import (
	"fmt"
	"time"
)

// State is the state of a server.
type State string

const (
	Disabled      State = "disabled"
	Installing    State = "installing" // by Shown alone
	Starting      State = "starting"
	Connected     State = "connected"
	Idle          State = "idle"           // stopped; the next call starts it
	Backoff       State = "backoff"        // it died, and starts again after a pause
	Failed        State = "error"          // it starts on request alone
	NeedsEnv      State = "needs_env"      // values that are never stored, or a secret, are missing
	NeedsAuth     State = "needs auth"     // its user has to log in
	NeedsApproval State = "needs_approval" // by Shown alone: connected, with tools that are held back
)

// StableAfter is the time after which a server that ends has not failed to start.
const StableAfter = time.Minute

// Failures in a row, and the pauses after them.
const (
	MaxFailures  = 6
	firstPause   = 500 * time.Millisecond
	longestPause = 30 * time.Second
)

// pause returns the time to wait after so many failures in a row.
func pause(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(firstPause<<min(failures-1, 10), longestPause)
}

// Status is the whole state of a server. Next alone changes it.
type Status struct {
	State        State
	Why          string    // the last error
	AuthURL      string    // where its user logs in
	Failures     int       // since it last worked
	Earliest     time.Time // no start before it
	NeverStarted bool      // a call made it; it has not run, and its user was not asked to log in
	Removed      bool      // for good
}

// Occurrence is a thing that can happen to a server.
type Occurrence int

const (
	Created      Occurrence = iota // a call made it, to be started
	Begins                         // a start begins, if its pause has ended
	Started                        // it runs, and what it offers was read
	Interrupted                    // its start was interrupted
	LacksSecret                    // it did not start for want of a secret
	StartFailed                    // it did not start
	AwaitsLogin                    // it did not start, since its user has not logged in yet
	Exited                         // it ended by itself
	SessionOver                    // what it ran in is over, or it forgot its session: it did nothing wrong
	Worked                         // a call was answered
	AsksLogin                      // its user has to log in
	LoggedIn                       // its user has logged in
	LoginFailed                    // its user's log-in failed
	LoginDropped                   // the link to log in is no longer valid
	LoginBack                      // the previous log-in was restored
	SecretStored                   // its user stored a secret that it refers to
	Stopped                        // it was stopped; the next call starts it
	Forgiven                       // its failures do not count any more
	Disconnected                   // it must not run
	Broken                         // its settings cannot be used
	Removal                        // it is removed for good
)

// Event is an occurrence and its details.
type Event struct {
	What    Occurrence
	At      time.Time
	Why     string // in words
	Link    string // to log in
	Running bool   // an instance runs
	Lasted  bool   // the instance had run for long
	Wanted  bool   // somebody needs it though no call says so
}

// Action is something to do after a change of the status.
type Action int

const (
	DropTimer  Action = iota // no start is due any more
	StartNow                 // unless it runs, is being started, or must not run
	StartLater               // when its pause has ended
)

// Shown is the state that users see. Its arguments say whether the server is being
// installed, lacks values that are never stored, or has tools that are held back.
func (s Status) Shown(installing, lacksValues, held bool) State {
	switch {
	case installing:
		return Installing
	case s.State == Connected && held:
		return NeedsApproval
	case s.State == Idle && lacksValues:
		return NeedsEnv
	}
	return s.State
}

// Next is the state machine: the status after an event, and the actions to take then.
// It has no effects.
func Next(s Status, e Event) (Status, []Action) {
	if s.Removed && e.What != LoginDropped {
		return s, nil
	}
	switch e.What {
	case Created:
		s.NeverStarted = true
	case Worked:
		s.Failures = 0
	case Forgiven:
		s.Failures, s.Earliest = 0, time.Time{}
	case Removal:
		s.Removed = true
		return s, []Action{DropTimer}
	case Begins, Started, Interrupted, LacksSecret, StartFailed, AwaitsLogin:
		return nextOfStart(s, e)
	case Exited, SessionOver:
		return nextOfEnd(s, e)
	case AsksLogin, LoggedIn, LoginFailed, LoginDropped, LoginBack:
		return nextOfLogin(s, e)
	case SecretStored:
		if s.State == NeedsEnv {
			s.State, s.Why = Idle, ""
		}
	case Stopped:
		s.State, s.Why = Idle, ""
		return s, []Action{DropTimer}
	case Disconnected:
		s.State, s.Why = Disabled, ""
		return s, []Action{DropTimer}
	case Broken:
		s.State, s.Why = Failed, e.Why
		return s, []Action{DropTimer}
	}
	return s, nil
}

// nextOfStart is Next for an attempt to start. A server that was disconnected meanwhile
// stays so, however the attempt ends. One that waits for its user to log in goes on waiting while a call
// tries it again.
func nextOfStart(s Status, e Event) (Status, []Action) {
	switch {
	case e.What == Begins:
		waits := s.State == NeedsAuth && s.AuthURL != ""
		if !waits && !e.At.Before(s.Earliest) {
			s.State = Starting
		}
		return s, []Action{DropTimer}
	case e.What == Started:
		s.State, s.Why, s.AuthURL, s.NeverStarted = Connected, "", "", false
	case s.State == Disabled:
	case e.What == Interrupted:
		s.State, s.Why = Idle, ""
	case e.What == LacksSecret:
		s.State, s.Why = NeedsEnv, e.Why
	case e.What == AwaitsLogin:
		switch s.State {
		case NeedsAuth:
			s.Why = e.Why
		case Starting:
			s.State, s.Why = Idle, e.Why
		} // in every other state the log-in has ended meanwhile, and has said how
	default:
		return failed(s, e)
	}
	return s, nil
}

// nextOfEnd is Next for an instance that ended without a stop.
func nextOfEnd(s Status, e Event) (Status, []Action) {
	if e.What == SessionOver {
		s.State, s.Why = Idle, ""
		return s, nil
	}
	if e.Lasted {
		s.Failures = 0
	}
	s, actions := failed(s, e)
	if s.State == Backoff {
		s.Earliest = e.At.Add(pause(s.Failures - 1)) // the first time at once: it has worked until now
	}
	return s, actions
}

// failed counts a failure. A server that waits for its user to log in has not failed.
func failed(s Status, e Event) (Status, []Action) {
	if s.State == NeedsAuth {
		s.Why = e.Why
		return s, nil
	}
	s.Failures++
	if s.Failures >= MaxFailures {
		s.State, s.Why = Failed, fmt.Sprintf("it failed %d times in a row, and was given up: %s", s.Failures, e.Why)
		return s, nil
	}
	s.State, s.Why, s.Earliest = Backoff, e.Why, e.At.Add(pause(s.Failures))
	if e.Wanted {
		return s, []Action{StartLater}
	}
	return s, nil
}

// nextOfLogin is Next for log-ins. The end of one changes nothing but the link of a
// server that does not wait for it any more.
func nextOfLogin(s Status, e Event) (Status, []Action) {
	s.AuthURL = e.Link
	if e.What == AsksLogin {
		s.State, s.Why, s.NeverStarted = NeedsAuth, e.Why, false
		return s, nil
	}
	if e.What == LoginDropped || e.What == LoginBack || s.State != NeedsAuth {
		return s, nil
	}
	s.Failures, s.Earliest = 0, time.Time{}
	switch {
	case e.Running: // it was in the middle of its work
		s.State, s.Why = Connected, ""
	case e.What == LoginFailed:
		s.State, s.Why = Idle, e.Why
	default:
		s.State, s.Why = Idle, ""
		return s, []Action{StartNow}
	}
	return s, nil
}
