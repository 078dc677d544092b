package egress

import (
	"errors"
	"slices"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
)

// Refusal is a host and port that a sandbox was not allowed to reach.
type Refusal struct {
	Session  string // of the sandbox
	Host     string
	Port     uint16 // 0: the name was only looked up
	Reason   string // completes "HOST was refused: …"
	Cause    Cause
	Rule     string  // the rule that decided, or its place in the settings; empty: there is none
	Question string  // the id of the question that a person was asked, or is to answer; empty: there was none
	Program  Program // that made the last attempt; the zero value: it is not known
	At       time.Time
	Times    int

	server string // stands for the third-party server whose program it was; empty: of none
}

// Program is a program of a sandbox.
type Program struct {
	Name    string // of the process
	PID     int    // in the sandbox
	Process string // the id of what the agent has started, to which it belongs; empty: to nothing
}

// Remedy returns what the operator can do about the refusal.
func (r Refusal) Remedy() Remedy {
	if r.Cause == NotAnswered && r.Rule == "" { // no rule asks: the host is not listed
		return AddRule
	}
	return r.Cause.remedy()
}

// Cause is why a connection was refused, for programs.
type Cause string

// The causes.
const (
	NoNetwork      Cause = "no_network"      // the session has none
	NotListed      Cause = "not_listed"      // no rule allows the host
	OtherPort      Cause = "other_port"      // a rule allows the host on other ports
	DeniedByRule   Cause = "denied_by_rule"  // a rule of the operator denies the host
	AnsweredNo     Cause = "answered_no"     // a person was asked
	NotAnswered    Cause = "not_answered"    // a person was asked, or is to be, and has not answered yet
	NotPublic      Cause = "not_public"      // the host's address
	OwnName        Cause = "own_name"        // the name is one of the server itself
	OtherTLSName   Cause = "other_tls_name"  // TLS asked for another server than the connection's
	BytesUsedUp    Cause = "bytes_used_up"   // the session has moved as many as it may
	DayUsedUp      Cause = "day_used_up"     // the principal's sessions have, for this day
	InvalidTarget  Cause = "invalid_target"  // no host and port
	AddressUnknown Cause = "address_unknown" // the server's own addresses are not known now
)

func (c Cause) remedy() Remedy {
	switch c {
	case NoNetwork:
		return ChangeMode
	case NotListed, OtherPort:
		return AddRule
	case NotPublic:
		return AddException
	case BytesUsedUp:
		return RaiseByteLimit
	case DayUsedUp:
		return RaiseDayQuota
	}
	return NoRemedy
}

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

// refusalError is the error for a target that may not be reached: why, for the user and for programs. It is made where
// the target is checked.
type refusalError struct {
	why            string
	cause          Cause
	rule, question string // as in Refusal
}

func (r refusalError) Error() string { return r.why }

// distinct leaves out refused look-ups of names for which there are also refused
// connections.
func distinct(r []Refusal) []Refusal {
	return slices.DeleteFunc(r, func(x Refusal) bool {
		return x.Port == 0 && slices.ContainsFunc(r, func(y Refusal) bool { return y.Host == x.Host && y.Port != 0 })
	})
}

const (
	// maxRefusals bounds the refusals that are stored for TakeRefusals, and for each third-party server.
	maxRefusals = 8
	// maxAllRefusals bounds the refusals of all servers together. The oldest make room.
	maxAllRefusals = 64
)

// refusals are the first few refusals since they were taken last. Outlet.mu guards them.
type refusals []Refusal

// add adds the refusal of a request, or counts it.
func (r *refusals) add(o Owner, host string, port uint16, err error, who wire.Who) {
	var why refusalError
	errors.As(err, &why)
	r.put(Refusal{Session: o.Session, Host: host, Port: port, Reason: err.Error(), Cause: why.cause, Rule: why.rule,
		Question: why.question, Program: programOf(who), At: time.Now(), Times: 1, server: printable(who.Server)})
}

// put adds a refusal, or counts it to the one of the same host and port.
func (r *refusals) put(n Refusal) {
	all := 0 // of the same server
	for i := range *r {
		x := &(*r)[i]
		if x.server != n.server {
			continue
		}
		if x.Session == n.Session && x.Host == n.Host && x.Port == n.Port {
			n.Times += x.Times
			if n.Program == (Program{}) {
				n.Program = x.Program
			}
			*x = n
			return
		}
		all++
	}
	if all >= maxRefusals {
		return
	}
	if len(*r) >= maxAllRefusals {
		oldest := slices.IndexFunc(*r, func(x Refusal) bool { return x.server != "" })
		*r = slices.Delete(*r, oldest, oldest+1)
	}
	*r = append(*r, n)
}

// take removes and returns the refusals of a server; for the empty name, of all other programs.
func (r *refusals) take(server string) (taken []Refusal) {
	*r = slices.DeleteFunc(*r, func(x Refusal) bool {
		if x.server == server {
			taken = append(taken, x)
		}
		return x.server == server
	})
	return distinct(taken)
}

// programOf returns a program that an agent has named.
func programOf(who wire.Who) Program {
	const maxPID = 1 << 22 // of Linux
	if who.PID == 0 || who.PID > maxPID {
		return Program{}
	}
	return Program{Name: fault.Name(who.Name, 60), PID: int(who.PID), Process: printable(who.Process)}
}

// TakeRefusals returns the refusals since the last call: each host and port once, and no
// more than the first few of them. Those of third-party servers are not among them.
func (e *Outlet) TakeRefusals() []Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusals.take("")
}

// TakeRefusalsOf is TakeRefusals for a third-party server, which is given by what the agent calls it.
func (e *Outlet) TakeRefusalsOf(server string) []Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusals.take(printable(server))
}

// lately is for how long a program may go on trying a name that was refused.
const lately = time.Minute

// RefusedLately reports whether something was refused so recently that the agent may have to tell of more: it knows the
// answer about a name for a while, and tells of connections to it a moment later.
func (e *Outlet) RefusedLately() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.lastRefused) < lately
}

// AddRefusals adds what another sandbox was refused on behalf of this one, to what TakeRefusals returns.
func (e *Outlet) AddRefusals(list []Refusal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range list {
		x.server = ""
		e.refusals.put(x)
	}
}
