// Package record has what is stored of a session, and what a session consists of.
package record

import (
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
)

// Record is the stored part of a session.
type Record struct {
	ID        string
	Owner     string // the principal's id
	Home      bool
	Template  string
	Flavor    string
	Sandbox   string // id of its sandbox; empty: it has none
	Runtime   string // the runtime that made that sandbox; empty: the default one
	Workspace string // id of its workspace
	State     State
	Created   time.Time
	Used      time.Time
	Lost      string          // why variables and processes are gone; empty once the user was told
	Image     string          // the frozen image of its sandbox; empty: it neither sleeps nor wakes
	Slept     time.Time       // when it was put to sleep last
	Network   NetworkOverride // what the operator set for this session alone
	Variables []byte          // sealed; nil: it has none. They never change
	Secrets   []string        // names of those whose values it may have; see session.Lease.NoteSecrets
	// Scope is that of what runs in the background of its sandbox: it has what all tokens have that started something
	// there.
	Scope auth.Scope
	// Traffic is what all its sandboxes have sent and received. PutSession does not
	// change the stored value; PutCounts does.
	Traffic egress.Traffic
	// DiskBytes is how large its workspace was when the session was stored or measured last. It is stored as Traffic
	// is.
	DiskBytes int64
	// PausedBy is the id of the principal that has paused it, or ByEnd; empty: it is not paused.
	PausedBy string
	PausedAt time.Time
	EndsAt   time.Time // the end of its life; zero: it has none
	OnEnd    OnEnd     // what happens then
	Name     string    // one of the owner's sessions alone; empty: it has none
	Labels   map[string]string
	Parent   Parent
}

// ByEnd is Record.PausedBy of a session that was paused at the end of its life. No principal has this id.
const ByEnd = "ends_at"

// Pause notes that nothing wakes the session before it is resumed, and by whom that was decided.
func (r *Record) Pause(by string, now time.Time) {
	r.State, r.PausedBy, r.PausedAt, r.Sandbox = Paused, by, now, ""
	if by == ByEnd {
		r.EndsAt, r.OnEnd = time.Time{}, ""
	}
}

// PausedByOperator reports whether somebody else than its owner has paused the session.
func (r *Record) PausedByOperator() bool {
	return r.PausedBy != "" && r.PausedBy != ByEnd && r.PausedBy != r.Owner
}

// PausedFor says who has paused the session: "user", "operator", or "end", the end of its life. Empty: nobody.
func (r *Record) PausedFor() string {
	switch {
	case r.PausedBy == "":
		return ""
	case r.PausedBy == ByEnd:
		return "end"
	case r.PausedByOperator():
		return "operator"
	}
	return "user"
}

// Resume notes that the session can be used again.
func (r *Record) Resume(now time.Time) {
	r.PausedBy, r.PausedAt, r.Used = "", time.Time{}, now
	if r.State = Asleep; r.Image == "" {
		r.State = Stopped
	}
}

// Ends reports whether the session has reached the end of its life, and is to end. What an operator has paused stays.
func (r *Record) Ends(now time.Time) bool {
	return !r.EndsAt.IsZero() && !now.Before(r.EndsAt) && !r.PausedByOperator()
}

// OnEnd says what happens to a session at the end of its life.
type OnEnd string

// The values of OnEnd.
const (
	StopOnEnd  OnEnd = "stop"  // as stop_session does
	PauseOnEnd OnEnd = "pause" // as if its user had paused it
)

// Parent is what a session is a copy of; the zero value: it is no copy.
type Parent struct {
	Session  string `json:"session_id,omitempty" jsonschema:"The session that it is a copy of, or that the snapshot was made of."`
	Snapshot string `json:"snapshot,omitempty" jsonschema:"The name of the snapshot that it was made of."`
}

// State is the stored state of a session.
type State string

const (
	Live    State = "live"    // it has, or had, a sandbox
	Left    State = "left"    // its sandbox was left to the next server; Lost says why, should it have ended
	Asleep  State = "asleep"  // it has its workspace, and an image of its sandbox
	Paused  State = "paused"  // it has its workspace, an image unless that was lost, and is not used
	Stopped State = "stopped" // it has only its workspace
	Removed State = "removed" // it is being removed
)

// Sleeps reports whether the session is a frozen image: it sleeps, or is paused.
func (r *Record) Sleeps() bool { return r.State == Asleep || r.State == Paused && r.Image != "" }

// Begin notes that the session has a new sandbox, in which nothing runs.
func (r *Record) Begin(id, runtime string) {
	r.Sandbox, r.Runtime, r.State, r.Scope = id, runtime, Live, ""
}

// EndSandbox notes that the session does not have that sandbox any more or, if it lives on, that it is to be stopped.
func (r *Record) EndSandbox(id string, ended bool) {
	switch {
	case r.Sandbox != id: // it has another one by now
	case ended:
		r.Sandbox = ""
	default:
		r.State = Stopped
	}
}

// EndLeft notes that a sandbox that was left to the next server is gone.
func (r *Record) EndLeft() {
	if r.State == Left {
		r.State = Live
	}
}

// Counts are what sessions and principals have used.
type Counts struct {
	Traffic   map[string]egress.Traffic // of sessions, by their ids
	DiskBytes map[string]int64          // of the workspaces of sessions, by the sessions' ids
	Days      map[string]egress.Day     // of principals, by their ids
}

// NetworkOverride is what the operator set for one session: a mode, which replaces that of the
// settings and of the template, and rules in addition to theirs.
type NetworkOverride struct {
	Mode  egress.Mode   `json:"mode,omitempty"`
	Allow []egress.Rule `json:"allow,omitempty"`
}

// Empty says whether nothing is set for the session.
func (c NetworkOverride) Empty() bool { return c.Mode == "" && len(c.Allow) == 0 }
