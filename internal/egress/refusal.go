package egress

import (
	"errors"
	"slices"
	"time"
)

// Refusal is what a sandbox was not allowed to reach.
type Refusal struct {
	Host   string    `json:"host"`
	Port   uint16    `json:"port,omitempty"` // 0: the name was looked up only
	Reason string    `json:"reason"`         // completes "HOST was refused: …"
	At     time.Time `json:"at"`             // the last time
	Times  int       `json:"times"`

	remedy Remedy
}

// Remedy says what the operator can do about it.
func (r Refusal) Remedy() Remedy { return r.remedy }

// Remedy is what the operator can do about a refusal.
type Remedy int

const (
	Nothing     Remedy = iota
	ARule              // a rule that names the host
	AMode              // another mode
	AnException        // the name with the range of its address
	MoreBytes          // a higher limit, or a meter that begins again
)

// refused is the error for what may not be reached, with the reason for people. It is made
// where that is judged.
type refused struct {
	why    string
	remedy Remedy
}

func (r refused) Error() string { return r.why }

// distinct leaves out names that were looked up where their ports are there too.
func (r refusals) distinct() []Refusal {
	return slices.DeleteFunc(r, func(x Refusal) bool {
		return x.Port == 0 && slices.ContainsFunc(r, func(y Refusal) bool { return y.Host == x.Host && y.Port != 0 })
	})
}

// maxRefusals bounds the refusals that wait for TakeRefusals.
const maxRefusals = 8

// refusals are the first few that nobody has asked for yet. The lock of the Outlet guards
// them.
type refusals []Refusal

func (r *refusals) add(host string, port uint16, err error) {
	var no refused
	errors.As(err, &no) // for the remedy
	now := time.Now()
	for i := range *r {
		if x := &(*r)[i]; x.Host == host && x.Port == port {
			x.Reason, x.remedy, x.At, x.Times = err.Error(), no.remedy, now, x.Times+1
			return
		}
	}
	if len(*r) < maxRefusals {
		*r = append(*r, Refusal{host, port, err.Error(), now, 1, no.remedy})
	}
}
