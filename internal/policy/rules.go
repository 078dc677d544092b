package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Rule is one rule of the settings: it allows, asks or denies what the operations' table allows.
type Rule struct {
	Effect Effect // Allow, Ask or Refuse
	Text   string // as in the settings
	Place  string // where it stands, such as "sandlot.yaml:12"

	who       func(auth.Principal, Operation) bool
	byToken   bool   // who depends on the token of a request
	builtIn   bool   // it is Sandlot's own; see DenyServices
	operation string // a name, "noun.*" or "*"
	pattern   string // of the detail; empty: every detail
}

// effects are the words for effects in rules.
var effects = map[string]Effect{"allow": Allow, "ask": Ask, "deny": Refuse}

// String returns the word for the effect in rules.
func (e Effect) String() string {
	switch e {
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	}
	return "deny"
}

// ruleForm is the form of a rule, for error texts.
const ruleForm = "EFFECT WHO OPERATION [DETAIL], such as `deny service shell.execute curl *`"

// ParseRule parses a rule. The place is where the rule stands, for decisions and for people.
func ParseRule(text, place string) (Rule, error) {
	r := Rule{Text: text, Place: place}
	word, rest := nextWord(text)
	effect, known := effects[word]
	if !known {
		return r, fmt.Errorf("%q is not a rule: it begins with allow, ask or deny; a rule is %s", fault.Clip(text),
			ruleForm)
	}
	r.Effect = effect
	who, rest := nextWord(rest)
	r.operation, r.pattern = nextWord(rest)
	if r.operation == "" {
		return r, fmt.Errorf("%q is not a rule: an operation is missing; a rule is %s", fault.Clip(text), ruleForm)
	}
	r.byToken = who == "service" || strings.HasPrefix(who, "role:")
	var err error
	if r.who, err = parseWho(who); err != nil {
		return r, fmt.Errorf("%q: %w", fault.Clip(text), err)
	}
	if err := r.check(); err != nil {
		return r, fmt.Errorf("%q: %w", fault.Clip(text), err)
	}
	return r, nil
}

// nextWord splits the first word off.
func nextWord(text string) (word, rest string) {
	text = strings.TrimLeft(text, " \t")
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		return text[:i], strings.Trim(text[i:], " \t")
	}
	return text, ""
}

// parseWho returns the function that reports whether a rule is about a principal's request for an operation. A rule
// about a service is also about its users, who have the service's token.
func parseWho(text string) (func(auth.Principal, Operation) bool, error) {
	switch text {
	case "*":
		return func(auth.Principal, Operation) bool { return true }, nil
	case "user": // of a sandbox it is not known whether it belongs to a service
		return func(p auth.Principal, o Operation) bool {
			return p.Authenticated && (o.withoutToken() || !p.OfService())
		}, nil
	case "service":
		return func(p auth.Principal, _ Operation) bool { return p.OfService() }, nil
	}
	if name, ok := strings.CutPrefix(text, "role:"); ok {
		role, err := auth.ParseRole(name)
		return func(p auth.Principal, _ Operation) bool { return p.HasRole(role) }, err
	}
	id, err := auth.ParseID(text)
	if err != nil {
		return nil, fmt.Errorf("%q must be *, user, service, local, role:NAME, or the name of a user", fault.Clip(text))
	}
	return func(p auth.Principal, _ Operation) bool {
		service, _ := auth.ServiceOf(p.ID)
		return p.ID == id || service == id
	}, nil
}

// check checks the operation and the pattern of a rule.
func (r *Rule) check() error {
	list := r.operations()
	switch {
	case len(list) == 0:
		return fmt.Errorf("there is no operation %q%s", fault.Clip(r.operation),
			fault.DidYouMean(r.operation, Operations()))
	case !slices.ContainsFunc(list, func(o Operation) bool { return !o.ofNobody() }):
		return fmt.Errorf("no rule is about %s: whoever asks for it is not known", r.operation)
	case r.byToken && !slices.ContainsFunc(list, func(o Operation) bool { return !o.withoutToken() }):
		return fmt.Errorf("%s is decided for the user whose sandbox it is, and not for a token: name the user",
			r.operation)
	case r.Effect == Ask && !slices.ContainsFunc(list, Operation.askable):
		return fmt.Errorf("a rule cannot ask about %s: allow or deny it", r.operation)
	case r.pattern == "" || r.pattern == "*":
		r.pattern = ""
		return nil
	case !slices.ContainsFunc(list, Operation.hasDetail):
		return fmt.Errorf("%s has no detail that could be %q", r.operation, fault.Clip(r.pattern))
	}
	var failed error
	usable := false
	for _, o := range list {
		if o.hasDetail() {
			_, err := compilePattern(details[o], r.pattern, r.Effect)
			failed, usable = err, usable || err == nil
		}
	}
	if usable {
		return nil
	}
	return failed
}

// Warning says what a rule is not about, though one may think so; empty: nothing.
func (r *Rule) Warning() string {
	if !r.byToken || r.Effect == Allow {
		return ""
	}
	for _, o := range r.operations() {
		if o.withoutToken() && (o.askable() || r.Effect == Refuse) && (r.pattern == "" || o.hasDetail()) {
			return fmt.Sprintf("%s: %s: it is not about %s, which is decided for the user whose sandbox it is, "+
				"and not for a token: name the user in a rule of its own", r.Place, r.Text, o)
		}
	}
	return ""
}

// operations returns the operations that a rule is about, sorted.
func (r *Rule) operations() (list []Operation) {
	noun, all := strings.CutSuffix(r.operation, "*")
	for o := range table {
		if string(o) == r.operation || all && (noun == "" || strings.HasSuffix(noun, ".")) &&
			strings.HasPrefix(string(o), noun) {
			list = append(list, o)
		}
	}
	slices.Sort(list)
	return list
}

// Rules are compiled rules. They do not change. A nil *Rules has no rules.
type Rules struct {
	list        []*Rule
	byOperation map[Operation][]compiled
	elicits     bool
}

// compiled is a rule for one operation.
type compiled struct {
	*Rule
	matches func(detail) bool // nil: every detail
}

// Compile compiles rules: the first one that matches decides.
func Compile(list []Rule) *Rules {
	all := &Rules{byOperation: map[Operation][]compiled{}}
	for i := range list {
		r := &list[i]
		all.list = append(all.list, r)
		for _, o := range r.operations() {
			if r.Effect == Ask && !o.askable() || r.pattern != "" && !o.hasDetail() {
				continue
			}
			c := compiled{Rule: r}
			if r.pattern != "" {
				var err error
				if c.matches, err = compilePattern(details[o], r.pattern, r.Effect); err != nil {
					continue // a pattern for the other operations of the rule, as check found
				}
			}
			all.byOperation[o] = append(all.byOperation[o], c)
			all.elicits = all.elicits || r.Effect == Ask
		}
	}
	return all
}

// Decide decides by the table of operations first. What the table allows, the first rule that
// matches decides; without one it is allowed. Rules do not apply to requests of nobody, such as
// those for the page of a log-in.
func (s *Rules) Decide(q Question) Decision {
	d := Decide(q)
	if s == nil || d.Effect != Allow || q.Principal.ID == "" {
		return d
	}
	list := s.byOperation[q.Operation]
	if len(list) == 0 || q.DetailFollows && s.UsesDetail(q.Operation) {
		return d
	}
	what := newDetail(details[q.Operation], q.Detail)
	for i := range list {
		c := &list[i]
		if !c.who(q.Principal, q.Operation) || c.matches != nil && !c.matches(what) {
			continue
		}
		d := Decision{Effect: c.Effect, Rule: c.Rule}
		if c.Effect == Refuse {
			d.Reason = refusedByRule(q.Operation)
		}
		if c.builtIn {
			d.Reason = refusedByDefault(c.Rule, q)
		}
		return d
	}
	return Decision{Effect: Allow}
}

// refusedByRule returns the fault of an operation that a rule denies. It does not contain the
// rule, which may name other principals.
func refusedByRule(o Operation) *fault.Error {
	return fault.New(fault.Forbidden, "a rule of this server's operator does not allow this (%s)", o).
		With("operation", string(o)).
		Advise("Do without it, or ask the operator of this server to change the rules (policy in sandlot.yaml)")
}

// Any reports whether a rule is about the operation.
func (s *Rules) Any(o Operation) bool {
	return s != nil && len(s.byOperation[o]) > 0
}

// UsesDetail reports whether a decision about the operation depends on its detail.
func (s *Rules) UsesDetail(o Operation) bool {
	return s != nil && slices.ContainsFunc(s.byOperation[o],
		func(c compiled) bool { return c.matches != nil || c.Effect == Ask })
}

// MayAsk reports whether a rule may ask about the operation.
func (s *Rules) MayAsk(o Operation) bool {
	return s != nil && slices.ContainsFunc(s.byOperation[o], func(c compiled) bool { return c.Effect == Ask })
}

// Elicits reports whether a decision about any operation can be Ask.
func (s *Rules) Elicits() bool { return s != nil && s.elicits }

// Current has the rules that are in effect. Its zero value, and a nil *Current, have none.
type Current struct{ rules atomic.Pointer[Rules] }

// Set puts rules into effect.
func (c *Current) Set(r *Rules) { c.rules.Store(r) }

// Load returns the rules in effect.
func (c *Current) Load() *Rules {
	if c == nil {
		return nil
	}
	return c.rules.Load()
}
