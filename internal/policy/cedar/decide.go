package cedar

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

const (
	// maxParts is how many commands of one line are compared with the policies. A line with more is refused.
	maxParts = 1000
	// maxWork bounds the evaluations for one line, to some hundredths of a second: the nodes of policies that are
	// evaluated, and the texts that are compared, in units of textUnit bytes.
	maxWork, textUnit = 4_000_000, 16
)

// MayAsk implements policy.Engine.
func (p *Policies) MayAsk(o policy.Operation) bool {
	s := p.byOperation[o]
	return s != nil && slices.ContainsFunc(s.all, func(one *statement) bool { return one.elicits })
}

// Decide implements policy.Engine. What no policy permits, or one forbids, is refused. In a line for a shell, each
// command must be free of forbid and @ask, as with rules; the line as a whole must be permitted.
func (p *Policies) Decide(q policy.Question, what policy.Subject) policy.Decision {
	s := p.byOperation[q.Operation]
	if s == nil {
		return policy.Decision{}
	}
	r := newRequest(q, what)
	d := policy.Decision{Effect: policy.Allow}
	for _, text := range append([]string{what.Text}, what.Forms...) {
		switch of := s.all.decide(r, text); of.Effect {
		case policy.Refuse:
			return of
		case policy.Ask:
			d = of
		}
	}
	texts := comparedParts(what)
	if len(texts) > maxParts || s.work.of(texts) > maxWork {
		return policy.Decision{Reason: tooLong(q.Operation)}
	}
	for _, text := range texts {
		if host, _, err := net.SplitHostPort(text); err == nil && what.Host != "" { // an address in the address
			r.context["host"] = types.String(host)
		}
		switch of := s.parts.decide(r, text); {
		case of.Effect == policy.Refuse && of.Rule != nil:
			return of
		case of.Effect == policy.Ask:
			d = of
		}
	}
	return d
}

// of returns the work for some texts.
func (w work) of(texts []string) int {
	units := 0
	for _, t := range texts {
		units += len(t) / textUnit
	}
	return len(texts)*w.nodes + units*w.texts
}

// tooLong returns the fault of a line with too many commands.
func tooLong(o policy.Operation) *fault.Error {
	return fault.New(fault.Forbidden, "the line has too many commands to be compared with the policies of this "+
		"server's operator (%s)", o).With("operation", string(o)).
		Advise("Write the commands into a file, and run that, or run them in several calls")
}

// comparedParts returns the texts of a line's commands that policies are compared with, each once.
func comparedParts(what policy.Subject) (texts []string) {
	seen := map[string]bool{what.Text: true}
	add := func(text string) {
		if !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	for _, part := range what.Parts {
		add(part)
		if !strings.Contains(part, " ") { // as with rules, `curl *` is about curl alone, too
			add(part + " ")
		}
	}
	return texts
}

// decide decides about one text. A refusal has the policy that forbids it, and none if no policy permits it.
func (l list) decide(r request, text string) policy.Decision {
	r.context["detail"] = types.String(text)
	r.Context = types.NewRecord(r.context)
	allowed, found := cedar.Authorize(l, &r.known, r.Request)
	if len(found.Errors) > 0 { // a policy that forbids might not be counted
		s := l.find(found.Errors[0].PolicyID)
		return policy.Decision{Rule: &s.rule, Reason: fault.New(fault.Forbidden,
			"a policy of this server's operator cannot be evaluated for this (%s)", r.Action.ID).
			With("operation", string(r.Action.ID)).
			Advise("Tell the operator of this server: `sandlot policy check` shows which policy it is")}
	}
	if allowed == cedar.Deny {
		if len(found.Reasons) == 0 {
			return policy.Decision{}
		}
		return policy.Decision{Rule: &l.find(found.Reasons[0].PolicyID).rule}
	}
	for _, reason := range found.Reasons {
		if s := l.find(reason.PolicyID); s.elicits {
			return policy.Decision{Effect: policy.Ask, Rule: &s.rule}
		}
	}
	return policy.Decision{Effect: policy.Allow}
}

// entities has the three entities of a request.
type entities [3]types.Entity

// Get implements types.EntityGetter.
func (e *entities) Get(id types.EntityUID) (types.Entity, bool) {
	for i := range e {
		if e[i].UID == id {
			return e[i], true
		}
	}
	return types.Entity{}, false
}

// request is a request for Cedar, without the text that it is about.
type request struct {
	cedar.Request
	context types.RecordMap
	known   entities
}

// newRequest returns the request for a question.
func newRequest(q policy.Question, what policy.Subject) request {
	p := q.Principal
	who := types.NewEntityUID(principalType, types.String(name(p.ID)))
	var groups []types.EntityUID
	for _, r := range []auth.Role{auth.Operator, auth.Metrics, auth.Logs} {
		if p.HasRole(r) {
			groups = append(groups, types.NewEntityUID(roleType, types.String(r)))
		}
	}
	if service, ok := auth.ServiceOf(p.ID); ok {
		groups = append(groups, types.NewEntityUID(principalType, types.String(name(service))))
	}
	noun, _, _ := strings.Cut(string(q.Operation), ".")
	act := types.NewEntityUID(actionType, types.String(q.Operation))
	on := types.NewEntityUID(resourceTypes[q.Resource.Kind], types.String(q.Resource.ID))
	if on.Type == quotaType {
		on.ID = types.String(name(q.Resource.ID))
	}
	port, _ := strconv.Atoi(what.Port)
	return request{Request: cedar.Request{Principal: who, Action: act, Resource: on},
		context: types.RecordMap{"line": types.String(what.Text), "simple": types.Boolean(what.Simple),
			"host": types.String(what.Host), "port": types.Long(port)},
		known: entities{
			{UID: who, Parents: types.NewEntityUIDSet(groups...), Attributes: types.NewRecord(types.RecordMap{
				"service": types.Boolean(p.OfService()), "authenticated": types.Boolean(p.Authenticated)})},
			{UID: act, Parents: types.NewEntityUIDSet(types.NewEntityUID(actionType, types.String(noun)))},
			{UID: on, Attributes: types.NewRecord(types.RecordMap{"owner": types.String(name(q.Resource.Owner))})},
		}}
}
