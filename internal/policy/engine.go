package policy

import "strings"

// Engine decides beside the rules. What it does not allow, no rule allows.
type Engine interface {
	// Decide decides about an operation that the table and the rules allow. If the result is Allow, it has no Rule.
	Decide(Question, Subject) Decision
	// MayAsk reports whether a decision about the operation can be Ask.
	MayAsk(Operation) bool
}

// Subject is a detail in the forms that an Engine compares.
type Subject struct {
	// Text is the detail in one form: a command with single spaces, an absolute path, a host and port in lower case.
	Text string
	// Forms are other spellings of the detail, such as those of a URI. What decides about one of them decides.
	Forms []string
	// Parts are the commands of a line for a shell, without what may stand before them, and without quotes.
	Parts []string
	// Simple: the detail is no line with operators of the shell, which begin or end a command, or expand to something.
	Simple bool
	Host   string // of host:port
	Port   string // empty: a name is looked up
}

// subject returns the detail in the form for an Engine.
func (d detail) subject(o Operation) Subject {
	s := Subject{Text: d.text, Parts: d.parts, Forms: d.forms, Simple: true}
	switch details[o] {
	case command:
		s.Simple = !strings.ContainsAny(d.text, operators)
	case hostPort:
		s.Host, s.Port, _ = cutPort(d.text)
	}
	return s
}

// With returns the rules with an engine beside them.
func (s *Rules) With(e Engine) *Rules {
	with := *s
	with.engine = e
	for o := range table {
		with.elicits = with.elicits || e.MayAsk(o)
	}
	return &with
}

// byEngine narrows a decision of the rules by the engine.
func (s *Rules) byEngine(q Question, what detail, d Decision) Decision {
	if s.engine == nil || d.Effect == Refuse {
		return d
	}
	if what.opaque {
		return Decision{Reason: refusedByRule(q.Operation)}
	}
	switch e := s.engine.Decide(q, what.subject(q.Operation)); {
	case e.Effect == Refuse && e.Reason == nil:
		e.Reason = refusedByRule(q.Operation)
		return e
	case e.Effect == Refuse, e.Effect == Ask && d.Effect == Allow && q.Operation.askable():
		return e
	}
	return d
}
