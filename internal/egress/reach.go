package egress

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Verdict is what the operator's rules say about a target, beside the policy.
type Verdict int

const (
	ByPolicy Verdict = iota // the policy decides
	Denied                  // whatever the policy says
	Asked                   // not before a person has agreed
	Granted                 // a person has agreed: as if a rule of the policy allowed the target
)

// Phase is when a verdict is needed.
type Phase int

const (
	Lookup     Phase = iota // of a name; the target has no port
	Connecting              // a new connection: a person is asked, and an answer for once is used up
	Connected               // the rules or the policy have changed
)

// Ruling is a verdict, and what it comes from.
type Ruling struct {
	Verdict  Verdict
	Rule     string // where the operator's rule stands that decided; empty: there is none
	Answered bool   // it is the answer of a person
	Question string // the id of the question that a person was asked; empty: none was
}

// ruling returns the ruling about a target.
func (b *Broker) ruling(o Owner, t Target, phase Phase) Ruling {
	if b.config.Reach == nil {
		return Ruling{}
	}
	host := t.Host()
	if t.Port != 0 {
		host = hostPort(host, t.Port)
	} else if t.Addr.Is6() && t.Name == "" {
		host = "[" + host + "]"
	}
	return b.config.Reach(o, host, phase)
}

// denied returns the refusal of a target that a ruling denies.
func denied(r Ruling) error {
	if r.Answered {
		return refusedByUser(r)
	}
	return refusalError{why: "a rule of the operator denies it", cause: DeniedByRule, rule: r.Rule}
}

// notAgreed returns the refusal of a target about which a person is to be asked.
func notAgreed(r Ruling) error {
	return refusalError{why: "a person has to agree to it first: the user or the operator answers by " +
		"`sandlot questions`; then try again", cause: NotAnswered, rule: r.Rule, question: r.Question}
}

// decide applies the verdict about a target to a policy: it returns the policy to check the target
// with, or a refusal.
func (b *Broker) decide(o Owner, p *Policy, t Target, phase Phase) (_ *Policy, v Verdict, err error) {
	if !p.enabled() {
		return p, ByPolicy, nil // nobody can agree to a network for a session that has none
	}
	r := b.ruling(o, t, phase)
	switch v = r.Verdict; v {
	case Denied:
		return p, v, denied(r)
	case Asked:
		return p, v, notAgreed(r)
	case Granted:
		return p.granting(t), v, nil
	}
	return p, v, nil
}

// granting returns the policy with a rule for a target. Which addresses may be reached, it does not
// change.
func (p *Policy) granting(t Target) *Policy {
	q := *p
	r := Rule{name: t.Name, port: t.Port}
	if t.Name == "" {
		r.prefix = netip.PrefixFrom(t.Addr, t.Addr.BitLen())
	}
	q.Allow = append(slices.Clone(p.Allow), r)
	return &q
}

// Preview returns why a sandbox with this policy would be refused a host and port, as far as the name tells: nothing is
// looked up. Granted: a person has agreed. An empty cause: it would not be refused.
func (p *Policy) Preview(host string, granted bool) (c Cause, why string) {
	name, port, err := net.SplitHostPort(host)
	number, numberErr := strconv.ParseUint(port, 10, 16)
	if err != nil || numberErr != nil || number == 0 {
		return InvalidTarget, "it has to be a host and a port, such as example.com:443"
	}
	t, err := parseTarget(name, uint16(number))
	if err == nil && granted && p.enabled() {
		p = p.granting(t)
	}
	if err == nil {
		err = p.checkName(t)
	}
	if r, ok := errors.AsType[refusalError](err); ok {
		return r.cause, r.why
	}
	return "", ""
}
