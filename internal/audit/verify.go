package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Report is the result of a verification.
type Report struct {
	Events uint64     `json:"events"`
	Chains []Verified `json:"chains"`
}

// Verified is a chain without a break.
type Verified struct {
	Chain  string `json:"chain"`
	Events uint64 `json:"events"`
	// First is the id of the oldest event, Last that of the newest one. Head is the newest one's
	// hash: it stands for the whole chain.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Head  string `json:"head"`
	// PrunedUntil is the id of the last event that was removed, as an event of PrunedAt records; 0: there is none.
	PrunedUntil uint64     `json:"pruned_until,omitempty"`
	PrunedAt    *time.Time `json:"pruned_at,omitempty"`
	// Unrecorded is the id of an event up to which events are gone, and no event records that; 0: there is none.
	Unrecorded uint64 `json:"unrecorded,omitempty"`
}

// Break is the first place where a chain is broken.
type Break struct {
	Chain Chain
	ID    uint64 // of the event at which it shows
	Why   string
}

// Error implements error.
func (b *Break) Error() string {
	return fmt.Sprintf("the chain %s is broken at event %d: %s", b.Chain, b.ID, b.Why)
}

// recorded is a pruning, and when it was recorded.
type recorded struct {
	Pruning
	at time.Time
}

// verifier verifies rows in the order of their ids.
type verifier struct {
	chains [numChains]struct {
		Verified
		last     Hash
		begun    bool
		prunings []recorded
	}
	lastID uint64
}

// begin makes the chain continue behind its anchor.
func (v *verifier) begin(c Chain, anchor Link) {
	v.chains[c].last, v.chains[c].begun = anchor.Hash, true
}

// add verifies the next row.
func (v *verifier) add(r *Row) error {
	broken := func(why string) error { return &Break{r.Chain, r.ID, why} }
	if r.Chain < 0 || r.Chain >= numChains {
		return fmt.Errorf("event %d is in a chain that does not exist", r.ID)
	}
	c := &v.chains[r.Chain]
	if r.ID <= v.lastID {
		return broken(fmt.Sprintf("it comes after event %d", v.lastID))
	}
	parsed := Row{Content: r.Content}
	if err := parsed.parse(); err != nil {
		return broken("its content is not an event: " + err.Error())
	}
	if parsed.ID != r.ID || parsed.Kind != r.Kind || parsed.Principal != r.Principal || parsed.Session != r.Session ||
		parsed.Time.UnixNano() != r.Time.UnixNano() {
		return broken("its content is that of another event")
	}
	if c.begun && r.Prev != c.last {
		return broken("an event before it was removed, or its place was changed")
	}
	if next(r.Prev, r.Content) != r.Hash {
		return broken("its content was changed")
	}
	if c.Events == 0 {
		c.First = r.ID
	}
	if p, ok := pruningOf(r); ok {
		if n := len(c.prunings); n > 0 && p.From.ID > c.prunings[n-1].To.ID {
			c.Unrecorded = p.From.ID // what went between is in neither
		}
		c.prunings = append(c.prunings, recorded{p, r.Time})
	}
	c.Events++
	c.Last, c.last, c.begun, v.lastID = r.ID, r.Hash, true, r.ID
	return nil
}

// end compares a chain with its head.
func (v *verifier) end(c Chain, ends Ends) error {
	chain := &v.chains[c]
	if anchor := ends.Anchor; anchor.ID > 0 {
		// A pruning removes some at a time, and the server may have ended in the middle of it.
		i := slices.IndexFunc(chain.prunings, func(p recorded) bool {
			return p.From.ID < anchor.ID && (anchor.ID < p.To.ID || anchor == p.To)
		})
		if i >= 0 {
			chain.PrunedUntil, chain.PrunedAt = anchor.ID, &chain.prunings[i].at
		} else {
			chain.Unrecorded = max(chain.Unrecorded, anchor.ID)
		}
	}
	if head := ends.Head; chain.last != head.Hash || chain.Events > 0 && chain.Last != head.ID {
		return &Break{c, max(chain.Last, head.ID), fmt.Sprintf("the newest event is %d, and the stored head is that "+
			"of event %d", chain.Last, head.ID)}
	}
	return nil
}

func (v *verifier) report() Report {
	var r Report
	for i := range numChains {
		c := &v.chains[i]
		if !c.begun {
			continue
		}
		c.Chain, c.Head = i.String(), c.last.String()
		r.Events += c.Events
		r.Chains = append(r.Chains, c.Verified)
	}
	return r
}

// Verify verifies stored events. each calls its argument for all rows in the order of their
// ids. The error is a *Break if a chain is broken.
func Verify(ends map[Chain]Ends, each func(func(*Row) error) error) (Report, error) {
	var v verifier
	for c := range numChains {
		v.begin(c, ends[c].Anchor)
	}
	if err := each(v.add); err != nil {
		return Report{}, err
	}
	for c := range numChains {
		if err := v.end(c, ends[c]); err != nil {
			return Report{}, err
		}
	}
	return v.report(), nil
}

// maxLine bounds a line of an exported file, in bytes.
const maxLine = 64 << 10

// VerifyLines verifies an exported file. What came before its first event is not known.
func VerifyLines(in io.Reader) (Report, error) {
	var v verifier
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	number := 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		r, err := ParseLine(lines.Bytes())
		if err != nil {
			return Report{}, fmt.Errorf("line %d is not a line of exported events: %w", number, err)
		}
		if err := v.add(&r); err != nil {
			return Report{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Report{}, fmt.Errorf("line %d: %w", number+1, err)
	}
	if v.lastID == 0 {
		return Report{}, errors.New("there are no events")
	}
	return v.report(), nil
}
