// Package event is the server's stream of events: who did what, when, and with which
// outcome. The latest events are in memory, in bounded logs, and publishing never waits for a
// reader; package audit stores events for longer. An event has names and ids, but no secrets,
// no values of arguments and no output.
package event

import (
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode"
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
	Server     Kind = "server"     // the server itself began, ended, or lost events
)

// Kinds lists all kinds.
var Kinds = []Kind{Call, Connection, Egress, Session, Consent, Token, Server}

// Outcomes. An operation that failed with a fault has the fault's code instead.
const (
	OK       = "ok"
	Error    = "error"    // a tool's result, or a third-party server's answer, is an error
	Replayed = "replayed" // a repeated request got the stored answer
	Started  = "started"  // an operation that lasts has begun; its end is another event
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
	// SessionHibernated: its sandbox was put to sleep; Name is the size of the image. SessionWoken: it goes on.
	SessionHibernated = "session.hibernated"
	SessionWoken      = "session.woken"
	// SessionPaused: nothing wakes it before SessionResumed; Name is the size of the image, if one was written.
	SessionPaused  = "session.paused"
	SessionResumed = "session.resumed"
	// Name is that of the snapshot. SessionForked: Name is the number of copies, each of which is created too.
	SessionSnapshotted = "session.snapshotted"
	SessionRestored    = "session.restored"
	SessionForked      = "session.forked"
	SessionRemoved     = "session.removed"
	ConsentAsk         = "consent.ask"
	TokenCreated       = "token.created"
	TokenRevoked       = "token.revoked"
	TokenEnded         = "token.ended" // open requests of a token were ended: it was revoked or has expired
	// The Outcome of ServerStarted is OK, or AfterCrash.
	ServerStarted = "server.started"
	ServerStopped = "server.stopped"
	EventsLost    = "server.events_lost" // Count events could not be stored
	// EventsPruned: Count old events of the chain in which it is are removed next. Name is "FROM-TO HASH": behind the
	// event FROM, which was removed last, up to TO, with the hash of TO.
	EventsPruned = "server.events_pruned"
)

// AfterCrash is the outcome of ServerStarted when the previous server did not end by itself:
// its events of the last second may be missing.
const AfterCrash = "after_crash"

// ServerPrincipal is the principal of events of the kind Server, which only operators read. It
// is the id of no principal.
const ServerPrincipal = "server"

// Event is one event.
type Event struct {
	// ID grows with each event. Where events are stored, it grows over restarts of the server too.
	ID   uint64    `json:"id"`
	Time time.Time `json:"time"` // the end of an operation
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
	// Origin is where the request came from; the zero value: it was no request.
	Origin
	// RequestBytes and AnswerBytes are about the sizes of a call's arguments and result, or what a
	// connection or file moved from and to the client or sandbox, in bytes; 0: unknown or nothing.
	RequestBytes int64 `json:"request_bytes,omitempty"`
	AnswerBytes  int64 `json:"answer_bytes,omitempty"`
	// Count is the number of events that EventsLost reports, or that an event of the kind Egress
	// stands for; 0: one.
	Count uint64 `json:"count,omitempty"`
	// Offers is what a third-party server offers in its new state; the zero value: nothing is known.
	Offers Offers `json:"offers,omitzero"`
	// Refused says why a request or a connection was refused, and whose it was; the zero value: it was not.
	Refused Refused `json:"refused,omitzero"`
}

// Why policy refuses a request.
const (
	DeniedByRule = "denied_by_rule"
	NotAgreed    = "not_agreed"   // a person was asked, and did not agree
	OutOfScope   = "out_of_scope" // of the request's token
	NeedsRole    = "needs_role"
)

// Refused is why a request, or a connection of a program in a sandbox, was refused.
type Refused struct {
	Cause string `json:"cause,omitempty"` // one of egress.Cause, or of the constants above
	// Rule is where the rule stands that decided, or the rule of the network that lists the host with another port.
	Rule string `json:"rule,omitempty"`
	// Question is the id of the question that a person was asked.
	Question string `json:"question_id,omitempty"`
	Program  string `json:"program,omitempty"` // the name of its process
	PID      int    `json:"pid,omitempty"`     // in the sandbox
}

// Offers counts what a third-party server offers.
type Offers struct {
	Tools     int `json:"tools"`
	Prompts   int `json:"prompts"`
	Resources int `json:"resources"`
}

// eventFields is Event without its methods, for encoding and decoding its fields.
type eventFields Event

// MarshalJSON implements json.Marshaler. Events are shown, stored and hashed in this form.
func (e Event) MarshalJSON() ([]byte, error) {
	fields := eventFields(e)
	fields.Time = fields.Time.UTC()
	return json.Marshal(struct {
		eventFields
		Millis float64 `json:"duration_ms,omitempty"`
	}{fields, float64(e.Duration.Microseconds()) / 1000})
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
	e.Duration = time.Duration(math.Round(in.Millis*1000)) * time.Microsecond
	return nil
}

// maxText bounds each text of an event, in bytes.
const maxText = 200

// clip bounds and cleans a text, and copies a longer one so that it can be freed.
func clip(s string) string {
	if len(s) > maxText {
		s = strings.Clone(strings.ToValidUTF8(s[:maxText], ""))
	}
	if s = clean(s); len(s) > maxText { // what clean puts in is longer
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

// clean replaces control characters and what is not UTF-8: clients choose texts, PostgreSQL stores no NUL,
// and JSON has other bytes than the text if the text is not UTF-8.
func clean(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return strings.Map(printable, s)
		}
	}
	return s
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return unicode.ReplacementChar
	}
	return r
}

// fixedSize is about how much memory an event takes without its texts, in bytes.
const fixedSize = 400

func (e *Event) size() int {
	return fixedSize + len(e.Principal) + len(e.Session) + len(e.Operation) + len(e.Name) + len(e.Outcome) +
		len(e.Token) + len(e.Service) + len(e.Address) + len(e.Caller) + len(e.Trace) +
		len(e.Method) + len(e.ClientSession) + len(e.Refused.Cause) + len(e.Refused.Rule) + len(e.Refused.Question) +
		len(e.Refused.Program)
}
