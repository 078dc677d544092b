// Package event is the stream of what happens in the server: who did what, when,
// and how it ended. It lives in memory, is bounded, and never makes those wait who
// publish. An event has names and ids, and no secret, no argument's value and no
// output.
package event

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is what sort of thing happened.
type Kind string

// The kinds.
const (
	Call       Kind = "call"       // an operation that a client asked for
	Connection Kind = "connection" // a third-party MCP server changed its state
	Egress     Kind = "egress"     // a sandbox's connection to the network
	Session    Kind = "session"    // a session began, got a sandbox, or ended
	Consent    Kind = "consent"    // a user was asked, and what they said
	Token      Kind = "token"      // what a token held ended with it
)

// Kinds are all kinds.
var Kinds = []Kind{Call, Connection, Egress, Session, Consent, Token}

// Outcomes that are no fault's code.
const (
	OK      = "ok"
	Error   = "error"   // the answer says that it failed
	Started = "started" // of a stream, whose end is another event
)

// Event is one thing that happened.
type Event struct {
	// ID is larger than that of every event before, as long as the server runs.
	ID   uint64
	Time time.Time
	Kind Kind
	// Principal is the id of whose it is. Nobody else but the operator sees it.
	Principal string
	// Session is the id of the session that it was in, where that is known.
	Session string
	// Operation is what was done, such as "shell.execute".
	Operation string
	// Name is what it was done to, or with: a tool, a third-party server, a host.
	Name string
	// Outcome is OK, Error, Started, a fault's code, or a word of the kind.
	Outcome string
	// Others says that it was not asked for by the principal's own client: somebody
	// else can make as many of these as they want. It is not told.
	Others bool
	// Duration is how long it took; 0: it took no time, or has not ended.
	Duration time.Duration
}

// form is an event as JSON. The duration is in milliseconds.
type form struct {
	ID        uint64    `json:"id"`
	Time      time.Time `json:"time"`
	Kind      Kind      `json:"kind"`
	Principal string    `json:"principal"`
	Session   string    `json:"session_id,omitempty"`
	Operation string    `json:"operation"`
	Name      string    `json:"name,omitempty"`
	Outcome   string    `json:"outcome"`
	Millis    float64   `json:"duration_ms,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(form{e.ID, e.Time, e.Kind, e.Principal, e.Session, e.Operation, e.Name, e.Outcome,
		float64(e.Duration.Microseconds()) / 1000})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Event) UnmarshalJSON(b []byte) error {
	var f form
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*e = Event{ID: f.ID, Time: f.Time, Kind: f.Kind, Principal: f.Principal, Session: f.Session, Operation: f.Operation,
		Name: f.Name, Outcome: f.Outcome, Duration: time.Duration(f.Millis * float64(time.Millisecond))}
	return nil
}

// maxText bounds each text of an event, in bytes.
const maxText = 200

// clip bounds a text, and lets go of what was around it.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for len(s) > 0 && !utf8.ValidString(s[len(s)-min(len(s), utf8.UTFMax):]) {
		s = s[:len(s)-1]
	}
	return strings.Clone(s)
}

// fixed is about what an event takes beside its texts, in bytes.
const fixed = 160

func (e *Event) size() int {
	return fixed + len(e.Principal) + len(e.Session) + len(e.Operation) + len(e.Name) + len(e.Outcome)
}
