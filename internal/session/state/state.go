// Package state owns the states of a session, as a table and a pure function: the state after an event, and the actions
// that follow from it. What holds while the server may crash between any two actions, its tests prove.
//
// A session changes its state by reporting an event to Next, and by nothing else; a pair of state and event
// that the table does not have is refused with the reason, or is a fault of Sandlot, which is reported and
// changes nothing. Nine flags had said before what a session was doing, and seven files changed them. The
// number of leases belongs to the status, so the table itself refuses to freeze a session that calls use. The
// handle of a sandbox is there in the state Live alone: the event that leads there brings it, and each event
// that leaves takes it away.
//
// Session.own in package session is the one place where something is done with a session: one thing after
// another, in the order of the callers, on their goroutines. A queue with a goroutine for each session would
// order them no better, and would need an answer for each message. A stop alone does not wait for its turn,
// as whoever holds the turn may be waiting for that very sandbox. A new event needs a row for each state in
// which it can happen.
package state

import (
	"errors"
	"fmt"
)

// State is the state of a session in the memory of its server.
type State uint8

// The states. A session has at most one sandbox, and a frozen image only in those that say so.
const (
	None     State = iota // it is not there yet
	New                   // it has had no sandbox yet
	Booting               // a sandbox is being made
	Live                  // it has a sandbox of this server: the only state in which calls run
	Adopting              // its sandbox is to be taken over: from an earlier server, or as it stands still
	Freezing              // its sandbox stands still to be written to an image, or its record is being exchanged
	Asleep                // it has an image, and no sandbox
	Paused                // as Asleep, and nothing wakes it before it is resumed
	Held                  // as Paused, with only its files
	Waking                // a sandbox is being made of its image
	Clearing              // what a sandbox left that did not wake is to be removed; its image stays
	Stopping              // its sandbox was given up, and is not known to have ended
	Stopped               // it has only its files
	Removed               // for good

	states = int(Removed) + 1
)

var stateNames = [states]string{"none", "new", "booting", "live", "adopting", "freezing", "asleep", "paused", "held",
	"waking", "clearing", "stopping", "stopped", "removed"}

func (s State) String() string { return stateNames[s] }

// HasSandbox reports whether the session has a sandbox, which may still boot, or be one that this server cannot use.
func (s State) HasSandbox() bool { return s.Makes() || s.Untaken() || s == Live || s == Freezing }

// Makes reports whether a sandbox is being made.
func (s State) Makes() bool { return s == Booting || s == Waking }

// Untaken reports whether the record names a sandbox that has to be taken over, or ended, before the session gets one.
func (s State) Untaken() bool { return s == Adopting || s.Ends() }

// Ends reports whether the sandbox that the record names is to end.
func (s State) Ends() bool { return s == Stopping || s == Clearing }

// IsPaused reports whether the session gets no sandbox before it is resumed.
func (s State) IsPaused() bool { return s == Paused || s == Held }

// KeepsPrograms reports whether the programs of the session run, or go on when it wakes.
func (s State) KeepsPrograms() bool {
	switch s {
	case Live, Adopting, Freezing, Asleep, Paused, Waking, Clearing:
		return true
	}
	return false
}

// Event is something that can happen to a session.
type Event uint8

// The events.
const (
	// A session comes to be.
	Opened        Event = iota // without a sandbox
	Taken                      // with a sandbox of the pool
	Copied                     // of a content, which has an image
	FoundRunning               // a server starts, and there is the sandbox that the record names
	FoundStopping              // as FoundRunning, and that sandbox was to end
	FoundAsleep                // a server starts, and the record names an image, and no sandbox that is there
	FoundPaused                // a server starts, and the record says that it is paused, and names an image
	FoundHeld                  // as FoundPaused, and the record names no image
	FoundStopped               // a server starts, and the record names nothing that is there

	// Somebody asks for something.
	Needed    // a sandbox: for a call, or to take over or end the one that is there
	Freeze    // a sandbox that stands still, to sleep or to be copied
	Exchange  // another content in place of the one that runs
	Evict     // the end of its sandbox, as it is idle, or has to make room
	Stop      // the end of its sandbox, and of its image, whatever runs: its user, or the end of the server
	Pause     // that nothing wakes it: its user, an operator, or its end of life. It has no sandbox
	Resume    // that it can be used again
	ImageLost // the end of its image, for want of disk or after its time
	Remove    // the end of all that it has

	// Something ends, as it may.
	Booted          // a sandbox was made
	BootFailed      // no sandbox was made
	BootRemains     // no sandbox was made, and something of it remains
	Woken           // a sandbox was made of the image
	WakeLater       // none was made for now: the session sleeps on
	WakeRemains     // as WakeLater, and something of it remains
	WakeLost        // none can ever be made of the image
	WakeLostRemains // as WakeLost, and something of it remains
	TakenOver       // this server has the sandbox that was found, or stood still
	Gone            // the sandbox that the record names has ended
	GoneAsleep      // as Gone, and the record names an image that has the session's state
	Died            // the sandbox has ended by itself, or its agent does not answer
	Frozen          // the image is durable, and the record names it
	FrozenPaused    // as Frozen, and the record says that it is paused
	Thawed          // the sandbox goes on, with another connection
	StandsStill     // the sandbox does not go on for now
	Replaced        // the session has another content, and the sandbox of that
	ReplacedAsleep  // the session has another content, which sleeps
	Unstored        // the new session could not be stored

	// A call begins, and ends, to use the session, whatever its state.
	Leased
	Released

	events = int(Released) + 1
)

var eventNames = [events]string{"opened", "taken", "copied", "found running", "found stopping", "found asleep",
	"found paused", "found held", "found stopped", "needed", "freeze", "exchange", "evict", "stop", "pause", "resume",
	"image lost", "remove", "booted", "boot failed", "boot remains", "woken", "wake later", "wake remains", "wake lost",
	"wake lost, remains", "taken over", "gone", "gone, asleep", "died", "frozen", "frozen, paused", "thawed",
	"stands still", "replaced", "replaced, asleep", "unstored", "leased", "released"}

func (e Event) String() string { return eventNames[e] }

// EndsPrograms reports whether programs of the session that run after the event are others than before.
func (e Event) EndsPrograms() bool { return e == Booted || e == Replaced || e == ReplacedAsleep }

// asks reports whether the event is a wish: others are outcomes of what was begun before.
func (e Event) asks() bool { return e >= Needed && e <= Remove }

// Action is something to do after an event. Actions are done one after the other, in their order; the server may crash
// between any two.
type Action uint8

// The actions.
const (
	Boot        Action = iota // make a sandbox
	Wake                      // make a sandbox of the image
	Adopt                     // take over the sandbox that the record names
	Write                     // let the sandbox stand still, and write its image
	Destroy                   // end the sandbox
	RemoveImage               // which no record names
	Store                     // the record of the state
	Publish                   // an event
	Tell                      // the user, with the next result
)

// Status is the whole state of a session. Next alone changes it.
type Status struct {
	State   State
	Adopted bool // an earlier server has made its sandbox
	Calls   int  // leases: calls that use the session, or wait for it
}

// Why an event changes nothing.
var (
	ErrRemoved = errors.New("the session is removed")
	ErrBusy    = errors.New("its sandbox is being made or frozen, or its record exchanged: whoever asks waits")
	ErrInUse   = errors.New("calls use it")
	ErrNothing = errors.New("it has nothing that could")
	ErrFirst   = errors.New("its sandbox has to end first")
	ErrPaused  = errors.New("it is paused, and has to be resumed first")
	ErrNever   = errors.New("this cannot happen")
)

// Of returns the status of a session that comes to be.
func Of(e Event) Status {
	s, _, _ := Next(Status{}, e)
	return s
}

// Next is the state machine: the status after an event, and the actions to take then, in their order. The error says
// why the event changes nothing: it wraps one of the errors above. Next has no effects.
func Next(s Status, e Event) (Status, []Action, error) {
	switch {
	case e == Leased && s.State != None:
		s.Calls++
		return s, nil, nil
	case e == Released && s.Calls > 0:
		s.Calls--
		return s, nil, nil
	}
	step := steps[s.State][e]
	err := step.unless(s)
	if step == nil {
		err = refusal(s.State, e)
	}
	if err != nil {
		return s, nil, fmt.Errorf("%s in state %s: %w", e, s.State, err)
	}
	s.State = step.to
	switch e {
	case TakenOver:
		s.Adopted = true
	case Booted, Woken, Replaced:
		s.Adopted = false
	}
	return s, step.actions, nil
}

// unless returns an error if calls keep the step from being taken.
func (r *row) unless(s Status) error {
	if r != nil && s.Calls > 0 && (r.on == Freeze || r.on == Evict) {
		return ErrInUse
	}
	return nil
}

// refusal says why a pair is not in the table.
func refusal(s State, e Event) error {
	switch {
	case s == Removed:
		return ErrRemoved
	case !e.asks(), s == None:
		return ErrNever
	case s.Makes(), s == Freezing:
		return ErrBusy
	case s.IsPaused() && e == Needed:
		return ErrPaused
	case e == Remove, e == Pause && s.HasSandbox():
		return ErrFirst
	}
	return ErrNothing
}
