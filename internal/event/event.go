// Package event is the server's stream of events: who did what, when, and with which
// outcome. Events are stored in memory, in bounded logs, and publishing never waits for a
// reader. An event has names and ids, but no secrets, no values of arguments and no output.
package event

import (
	"encoding/json"
	"strings"
	"time"
)

// Kind is a kind of event.
type Kind string

// The kinds.
const (
	Call       Kind = "call"       // an operation that a client requested
	Connection Kind = "connection" // a third-party MCP server's new state
	Egress     Kind = "egress"     // a sandbox's connection to the network
	Session    Kind = "session"    // a session began, got a sandbox, or ended
	Consent    Kind = "consent"    // a user was asked for consent, and their answer
	Token      Kind = "token"      // a token was created or revoked, or what it admitted ended
)

// Kinds lists all kinds.
var Kinds = []Kind{Call, Connection, Egress, Session, Consent, Token}

// Outcomes. An operation that failed with a fault has the fault's code instead.
const (
	OK      = "ok"
	Error   = "error"   // a tool's result, or a third-party server's answer, is an error
	Started = "started" // an operation that lasts has begun; its end is another event
)

// Operations of events that are not calls: no client requests them. The operations of calls
// are in package policy.
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

// Event is one event.
type Event struct {
	// ID grows with each event while the server runs.
	ID   uint64    `json:"id"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	// Principal is the id of the principal that the event belongs to. Only that principal
	// and operators may read it.
	Principal string `json:"principal"`
	// Session is the id of the session in which it happened; empty: no session, or an
	// unknown one.
	Session string `json:"session_id,omitempty"`
	// Operation is a policy.Operation, or one of the constants above.
	Operation string `json:"operation"`
	// Name is what the operation was about: a tool, a third-party server, a host.
	Name string `json:"name,omitempty"`
	// Outcome is OK, Error, Started, the code of a fault, or a word that only this kind of
	// event uses, such as a server's state.
	Outcome string `json:"outcome"`
	// ByOthers: the event was caused by someone other than the principal's clients, such as a
	// visitor of an exposed port, who can cause any number of them. Such events go to a log of
	// their own. Readers do not see this field.
	ByOthers bool `json:"-"`
	// Duration is how long the operation took; 0 if it has no duration or has not ended. In
	// JSON it is duration_ms, in milliseconds.
	Duration time.Duration `json:"-"`
}

// eventFields is Event without its methods, for encoding and decoding its fields.
type eventFields Event

// MarshalJSON implements json.Marshaler.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		eventFields
		Millis float64 `json:"duration_ms,omitempty"`
	}{eventFields(e), float64(e.Duration.Microseconds()) / 1000})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Event) UnmarshalJSON(b []byte) error {
	var in struct {
		eventFields
		Millis float64 `json:"duration_ms"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*e = Event(in.eventFields)
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

// fixedSize is about how much memory an event takes without its texts, in bytes.
const fixedSize = 160

func (e *Event) size() int {
	return fixedSize + len(e.Principal) + len(e.Session) + len(e.Operation) + len(e.Name) + len(e.Outcome)
}
