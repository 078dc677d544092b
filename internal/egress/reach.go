package egress

import (
	"net/netip"
	"slices"
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

// verdict returns the verdict about a target.
func (b *Broker) verdict(o Owner, t Target, phase Phase) Verdict {
	if b.config.Reach == nil {
		return ByPolicy
	}
	host := t.Host()
	if t.Port != 0 {
		host = hostPort(host, t.Port)
	} else if t.Addr.Is6() && t.Name == "" {
		host = "[" + host + "]"
	}
	return b.config.Reach(o, host, phase)
}

// Refusals by rules.
var (
	ruleDenies = refusalError{why: "a rule of the operator denies it"}
	notAgreed  = refusalError{why: "a person has to agree to it first: the user or the operator answers by " +
		"`sandlot questions`; then try again"}
)

// decide applies the verdict about a target to a policy: it returns the policy to check the target
// with, or a refusal.
func (b *Broker) decide(o Owner, p *Policy, t Target, phase Phase) (_ *Policy, v Verdict, err error) {
	if !p.enabled() {
		return p, ByPolicy, nil // nobody can agree to a network for a session that has none
	}
	switch v = b.verdict(o, t, phase); v {
	case Denied:
		return p, v, ruleDenies
	case Asked:
		return p, v, notAgreed
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
