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
}

// State is the stored state of a session.
type State string

const (
	Live    State = "live"    // it has, or had, a sandbox
	Left    State = "left"    // its sandbox was left to the next server; Lost says why, should it have ended
	Asleep  State = "asleep"  // it has its workspace, and an image of its sandbox
	Stopped State = "stopped" // it has only its workspace
	Removed State = "removed" // it is being removed
)

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
