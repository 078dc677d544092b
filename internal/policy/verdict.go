package policy

import (
	"slices"

	"sandlot/internal/auth"
)

// Verdict is what a policy decides, and by which rule, for people.
type Verdict struct {
	Effect string `json:"effect"`          // allow, ask or deny
	Rule   string `json:"rule"`            // empty: none
	Place  string `json:"place,omitempty"` // where the rule stands
	Reason string `json:"reason,omitempty" jsonschema:"Why it is refused."`
	// Opens is the operator's rule that allows what a built-in default denies.
	Opens string `json:"opens,omitempty" jsonschema:"The rule that would allow what a built-in default denies."`
}

// NewVerdict returns the verdict of a decision about a question.
func NewVerdict(q Question, d Decision) Verdict {
	v := Verdict{Effect: d.Effect.String(), Place: "the table of operations"}
	if d.Reason != nil {
		v.Reason = d.Reason.Error()
	}
	if d.Rule != nil {
		v.Rule, v.Place, v.Opens = d.Rule.Text, d.Rule.Place, d.Rule.Opens(q)
	}
	return v
}

// Anonymous returns the rule without the words that may name other principals, and without its place: what the
// principals whom the rule is about may know.
func (r *Rule) Anonymous() string {
	text := r.Effect.String() + " " + r.operation
	if r.pattern != "" {
		text += " " + r.pattern
	}
	return text
}

// Concerning returns the rules that are about a principal, in their order: the first one that matches decides.
// With several principals, such as a user with different tokens, they are about one at least.
func (s *Rules) Concerning(all ...auth.Principal) (list []*Rule) {
	if s == nil {
		return nil
	}
	for _, r := range s.list {
		if slices.ContainsFunc(r.operations(), func(o Operation) bool {
			return !o.ofNobody() && slices.ContainsFunc(all, func(p auth.Principal) bool { return r.who(p, o) })
		}) {
			list = append(list, r)
		}
	}
	return list
}

// Evaded returns a rule that asks about or denies what the principal to may do, and that is about the principal from but
// not about to; nil: there is none.
func (s *Rules) Evaded(from, to auth.Principal) *Rule {
	if s == nil {
		return nil
	}
	for _, r := range s.list {
		if r.Effect != Allow && slices.ContainsFunc(r.operations(), func(o Operation) bool {
			return r.who(from, o) && !r.who(to, o) && Decide(Question{Principal: to, Operation: o}).Effect == Allow
		}) {
			return r
		}
	}
	return nil
}
