package egress

import (
	"errors"
	"slices"
	"time"
)

// Refusal is a host and port that a sandbox was not allowed to reach.
type Refusal struct {
	Host   string    `json:"host"`
	Port   uint16    `json:"port,omitempty"` // 0: the name was only looked up
	Reason string    `json:"reason"`         // completes "HOST was refused: …"
	At     time.Time `json:"at"`             // of the last attempt
	Times  int       `json:"times"`

	remedy Remedy
}

// Remedy returns what the operator can do about the refusal.
func (r Refusal) Remedy() Remedy { return r.remedy }

// Remedy is what the operator can do about a refusal.
type Remedy int

const (
	NoRemedy       Remedy = iota
	AddRule               // add a rule for the host (network.allow)
	ChangeMode            // change the network mode
	AddException          // allow the name in the range of its address (network.allow_private)
	RaiseByteLimit        // raise the limit of bytes, or reset the session's meter
	RaiseDayQuota         // raise the principal's quota of a day, or wait for the next day
)

// refusalError is the error for a target that may not be reached: why, for the user, and what
// the operator can do. Both are set where the target is checked.
type refusalError struct {
	why    string
	remedy Remedy
}

func (r refusalError) Error() string { return r.why }

// distinct leaves out refused look-ups of names for which there are also refused
// connections.
func (r refusals) distinct() []Refusal {
	return slices.DeleteFunc(r, func(x Refusal) bool {
		return x.Port == 0 && slices.ContainsFunc(r, func(y Refusal) bool { return y.Host == x.Host && y.Port != 0 })
	})
}

// maxRefusals bounds the refusals that are stored for TakeRefusals.
const maxRefusals = 8

// refusals are the first few refusals since the last TakeRefusals. Outlet.mu guards them.
type refusals []Refusal

func (r *refusals) add(host string, port uint16, err error) {
	var refusal refusalError
	errors.As(err, &refusal) // for the remedy
	now := time.Now()
	for i := range *r {
		if x := &(*r)[i]; x.Host == host && x.Port == port {
			x.Reason, x.remedy, x.At, x.Times = err.Error(), refusal.remedy, now, x.Times+1
			return
		}
	}
	if len(*r) < maxRefusals {
		*r = append(*r, Refusal{host, port, err.Error(), now, 1, refusal.remedy})
	}
}
