package cedar

import (
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// maxParts is how many commands of one line are compared with the policies. A line with more is refused.
const maxParts = 1000

// MayAsk implements policy.Engine.
func (p *Policies) MayAsk(o policy.Operation) bool {
	for _, s := range p.byOperation[o] {
		if s.elicits {
			return true
		}
	}
	return false
}

// Decide implements policy.Engine. What no policy permits, or one forbids, is refused. In a line for a shell, each
// command must be free of forbid and @ask, as with rules; the line as a whole must be permitted.
func (p *Policies) Decide(q policy.Question, what policy.Subject) policy.Decision {
	l := p.byOperation[q.Operation]
	if len(what.Parts) > maxParts {
		return policy.Decision{}
	}
	r := newRequest(q, what)
	d := l.decide(r, what.Text)
	if d.Effect == policy.Refuse {
		return d
	}
	for _, text := range comparedParts(what) {
		switch of := l.decide(r, text); {
		case of.Effect == policy.Refuse && of.Rule != nil:
			return of
		case of.Effect == policy.Ask:
			d = of
		}
	}
	return d
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
