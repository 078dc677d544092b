// Package event is the stream of events of the server: who did what, when, and with
// which outcome. It is bounded, in memory, and publishing never waits for a reader. An
// event has names and ids, and no secret, no argument's value and no output.
package event

import (
	"encoding/json"
	"strings"
	"time"
)

// Kind is what sort of thing happened.
type Kind string

// The kinds.
const (
	Call       Kind = "call"       // an operation that a client asked for
	Connection Kind = "connection" // a third-party MCP server changed its state
	Egress     Kind = "egress"     // a sandbox's connection to the network
	Session    Kind = "session"    // a session began, got a sandbox, or ended
	Consent    Kind = "consent"    // a user was asked for consent, and their answer
	Token      Kind = "token"      // a token was created or revoked, or what it admitted ended
)

// Kinds are all kinds.
var Kinds = []Kind{Call, Connection, Egress, Session, Consent, Token}

// Outcomes beside the codes of faults.
const (
	OK      = "ok"
	Error   = "error"   // the answer says that it failed
	Started = "started" // of an act that lasts, whose end is another event
)

// Operations that no client asks for: those of the other kinds of events. The
// operations of calls are in the table of package policy.
const (
	ServerState    = "mcp.state" // Outcome is the new state
	NetworkConnect = "network.connect"
	NetworkLookup  = "network.lookup"
	SessionCreated = "session.created"
	SessionBooted  = "session.booted"
	SessionStopped = "session.stopped"
	SessionRemoved = "session.removed"
	ConsentAsk     = "consent.ask"
	TokenCreated   = "token.created"
	TokenRevoked   = "token.revoked"
	TokenEnded     = "token.ended" // open requests of a token were ended: it was revoked or has expired
)

// Event is one thing that happened.
type Event struct {
	// ID is larger than the id of every event before, as long as the server runs.
	ID   uint64    `json:"id"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	// Principal is the id of the principal whose event it is. Nobody else but an
	// operator may read it.
	Principal string `json:"principal"`
	// Session is the id of the session in which it happened; empty: in none, or it is
	// not known.
	Session string `json:"session_id,omitempty"`
	// Operation is one of policy, or of the constants above.
	Operation string `json:"operation"`
	// Name is the object of the operation: a tool, a third-party server, a host.
	Name string `json:"name,omitempty"`
	// Outcome is OK, Error, Started, a fault's code, or a word of the kind.
	Outcome string `json:"outcome"`
	// Others says that somebody else than the principal's own client asked for it, and
	// can do so as often as they want. Readers do not see it.
	Others bool `json:"-"`
	// Duration is how long it took; 0: no time, or it has not ended. In JSON it is in
	// milliseconds, duration_ms.
	Duration time.Duration `json:"-"`
}

type plain Event // without methods

// MarshalJSON implements json.Marshaler.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plain
		Millis float64 `json:"duration_ms,omitempty"`
	}{plain(e), float64(e.Duration.Microseconds()) / 1000})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Event) UnmarshalJSON(b []byte) error {
	var in struct {
		plain
		Millis float64 `json:"duration_ms"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*e = Event(in.plain)
	e.Duration = time.Duration(in.Millis * float64(time.Millisecond))
	return nil
}

// maxText bounds each text of an event, in bytes.
const maxText = 200

// clip bounds a text, and copies it so that the longer text can be freed.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.Clone(strings.ToValidUTF8(s[:maxText], ""))
}

// fixed is about how much memory an event takes beside its texts, in bytes.
const fixed = 160

func (e *Event) size() int {
	return fixed + len(e.Principal) + len(e.Session) + len(e.Operation) + len(e.Name) + len(e.Outcome)
}
