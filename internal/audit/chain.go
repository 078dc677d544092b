// Package audit stores events, and proves that nothing was removed from them or changed: each
// stored event has the hash over the previous event's hash and its own content.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"sandlot/internal/event"
)

// Hash is the SHA-256 over the hash of the previous row of the chain and the row's content.
type Hash [sha256.Size]byte

// String returns the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// next returns the hash of the row behind the row with the hash prev.
func next(prev Hash, content []byte) (h Hash) {
	sum := sha256.New()
	sum.Write(prev[:])
	sum.Write(content)
	sum.Sum(h[:0])
	return h
}

// Chain is a chain of stored events. Programs in sandboxes and visitors of exposed ports can
// cause any number of events. These have a chain of their own, so that they push out no others.
type Chain int

// The chains.
const (
	Main  Chain = iota
	Noisy       // events of event.Event.Noisy
	numChains
)

// String returns the name of the chain in exported lines.
func (c Chain) String() string { return [...]string{"main", "noisy"}[c] }

// Row is a stored event.
type Row struct {
	ID         uint64
	Chain      Chain
	Time       time.Time
	Kind       event.Kind
	Principal  string
	Session    string
	Content    []byte // the event as JSON
	Prev, Hash Hash   // Prev is the hash of the previous row in the chain
}

// NewRow returns the row of an event, without its place in the chain.
func NewRow(e event.Event) (Row, error) {
	content, err := json.Marshal(e)
	r := Row{ID: e.ID, Time: e.Time, Kind: e.Kind, Principal: e.Principal, Session: e.Session, Content: content}
	if e.Noisy() {
		r.Chain = Noisy
	}
	return r, err
}

// Link gives the row its place behind a row of its chain with that hash.
func (r *Row) Link(prev Hash) { r.Prev, r.Hash = prev, next(prev, r.Content) }

// Line returns the row as a line of JSON, without its end: the event's fields and those of the
// chain. ParseLine reads it.
func (r *Row) Line() []byte {
	return fmt.Appendf(r.Content[:len(r.Content)-1:len(r.Content)-1], `,"chain":%q,"prev":"%s","hash":"%s"}`,
		r.Chain.String(), r.Prev, r.Hash)
}

// chainFields marks where the fields of the chain begin in a line.
var chainFields = []byte(`,"chain":`)

// ParseLine parses a line that Line made. It checks the form, and not the hashes.
func ParseLine(line []byte) (r Row, err error) {
	at := bytes.LastIndex(line, chainFields)
	if at < 0 {
		return r, fmt.Errorf("the line has no hash")
	}
	var own struct{ Chain, Prev, Hash string }
	if err := json.Unmarshal(append([]byte("{"), line[at+1:]...), &own); err != nil {
		return r, err
	}
	r.Content = append(bytes.Clone(line[:at]), '}')
	switch own.Chain {
	case Main.String():
	case Noisy.String():
		r.Chain = Noisy
	default:
		return r, fmt.Errorf("there is no chain %q", own.Chain)
	}
	if r.Prev, err = parseHash(own.Prev); err != nil {
		return r, err
	}
	if r.Hash, err = parseHash(own.Hash); err != nil {
		return r, err
	}
	return r, r.parse()
}

func parseHash(text string) (h Hash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("%q is not a hash", text)
	}
	return Hash(b), nil
}

// parse sets the fields that the content has.
func (r *Row) parse() error {
	var e event.Event
	if err := json.Unmarshal(r.Content, &e); err != nil {
		return err
	}
	r.ID, r.Time, r.Kind, r.Principal, r.Session = e.ID, e.Time, e.Kind, e.Principal, e.Session
	return nil
}

// Link is a row's place in its chain.
type Link struct {
	ID   uint64
	Hash Hash
}

// Pruning is the removal of the oldest events of a chain: those behind From, which was removed last, up to To.
type Pruning struct {
	Chain    Chain
	From, To Link
	Count    uint64
}

// event returns the event that records it in its chain.
func (p Pruning) event() event.Event {
	return event.Event{Kind: event.Server, Principal: event.ServerPrincipal, Operation: event.EventsPruned,
		Outcome: event.OK, Count: p.Count, ByOthers: p.Chain == Noisy,
		Name: fmt.Sprintf("%d-%d %s", p.From.ID, p.To.ID, p.To.Hash)}
}

// pruningOf returns the pruning that a row records, without the hash of the event before it.
func pruningOf(r *Row) (p Pruning, ok bool) {
	var e event.Event
	if r.Kind != event.Server || json.Unmarshal(r.Content, &e) != nil || e.Operation != event.EventsPruned {
		return p, false
	}
	var hash string
	p = Pruning{Chain: r.Chain, Count: e.Count}
	if n, err := fmt.Sscanf(e.Name, "%d-%d %s", &p.From.ID, &p.To.ID, &hash); n != 3 || err != nil {
		return p, false
	}
	h, err := parseHash(hash)
	p.To.Hash = h
	return p, err == nil
}

// Ends are the ends of a chain: Anchor is the last row that was pruned, Head the newest row.
type Ends struct{ Anchor, Head Link }
