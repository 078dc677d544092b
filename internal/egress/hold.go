package egress

import (
	"context"
	"errors"
	"strings"
)

// Asker asks a person about hosts. Both functions are called without locks held.
type Asker interface {
	// Hold asks about a new connection to a host and port that no rule allows (unlisted), or about which a rule asks, and
	// waits for the answer for a while. The verdict is Granted, Denied, or Asked: nobody could be asked, or nobody
	// answered.
	Hold(ctx context.Context, o Owner, host string, unlisted bool) Ruling
	// MayHold reports whether Hold would ask somebody about an unlisted name, or knows an answer.
	MayHold(o Owner, name string) bool
}

// refusedByUser returns the refusal of a host about which a person was asked.
func refusedByUser(r Ruling) error {
	return refusalError{why: "the user was asked, and refused", cause: AnsweredNo, rule: r.Rule, question: r.Question}
}

// hold asks a person about a target that decide or checkName refused with err. It returns the policy to go on with, as
// decide does, or the refusal.
func (l *conn) hold(ctx context.Context, p *Policy, v Verdict, t Target, err error) (*Policy, Verdict, error) {
	b := l.outlet.b
	if b.config.Asker == nil || v != Asked && !b.canBeAsked(t, err) {
		return p, v, err
	}
	switch r := b.config.Asker.Hold(ctx, l.outlet.owner, hostPort(t.Host(), t.Port), v != Asked); r.Verdict {
	case Granted:
		p = p.granting(t)
		return p, Granted, p.checkName(t)
	case Denied:
		return p, Denied, refusedByUser(r)
	default:
		return p, v, unanswered(err, r.Question)
	}
}

// unanswered returns a refusal with the question that nobody has answered yet; empty: nobody was asked now.
func unanswered(err error, question string) error {
	var r refusalError
	if question == "" || !errors.As(err, &r) {
		return err
	}
	if r.cause != NotAnswered { // else it says so
		r.why += ", and the user, who was asked, has not answered"
	}
	r.cause, r.question = NotAnswered, question
	return r
}

// holdsLookup reports whether a person can be asked about a name that no rule lists. The name is then not looked up: the
// connection asks.
func (e *Outlet) holdsLookup(t Target, err error) bool {
	return e.b.config.Asker != nil && e.b.canBeAsked(t, err) && e.b.config.Asker.MayHold(e.owner, t.Name)
}

// canBeAsked reports whether a rule for the target would change that it is refused with err: a name of the internet, or
// a public address that is none of this machine's.
func (b *Broker) canBeAsked(t Target, err error) bool {
	var r refusalError
	if !errors.As(err, &r) || r.cause != NotListed && r.cause != OtherPort {
		return false
	}
	if t.Name != "" {
		return strings.Contains(t.Name, ".")
	}
	own := b.config.OwnAddresses()
	_, special := classOf(t.Addr)
	return len(own) > 0 && !special && describeOwn(t.Addr, own) == ""
}
