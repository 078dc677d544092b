package hub

import (
	"context"
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
)

// RulesOwner is the id or the name of the principal whose rules are read; empty: the one who asks. Only operators may
// name another.
type RulesOwner string

// resource implements resourceInput.
func (n RulesOwner) resource(_ *Hub, p auth.Principal) policy.Resource {
	return ofPrincipal(p, string(n))
}

// ownerID returns the id of the principal of that id or name; empty: of the one who asks.
func ownerID(p auth.Principal, name string) string {
	if name == "" || name == p.ID {
		return p.ID
	}
	if id, err := auth.ParseID(name); err == nil {
		return id
	}
	return name
}

// ofPrincipal is what belongs to the principal of that id or name; empty: to the one who asks.
func ofPrincipal(p auth.Principal, name string) policy.Resource {
	id := ownerID(p, name)
	return policy.Resource{Kind: "principal", ID: id, Owner: id}
}

// otherPrincipal returns the principal of that id or name, without the rights of any token.
func otherPrincipal(name string) (auth.Principal, error) {
	id, err := auth.ParseID(name)
	if err != nil {
		return auth.Principal{}, fault.New(fault.NotFound, "there is no such principal: %v", err)
	}
	return auth.OnBehalfOf(id), nil
}

// withToken returns a principal with the rights of one of the principal's tokens.
func withToken(p auth.Principal, t auth.Token) auth.Principal {
	p.Service, p.Roles, p.Scope = t.Service, t.Roles, t.Scope
	return p
}

// RuleList is the rules that are about a principal: the first one that matches decides.
type RuleList struct {
	Principal string    `json:"principal"`
	Rules     []RuleRow `json:"rules"`
}

// RuleRow is one rule.
type RuleRow struct {
	Effect string `json:"effect" jsonschema:"allow, ask or deny."`
	Rule   string `json:"rule" jsonschema:"The rule; for all but operators without its second word, which may name others."`
	// Place is where it stands.
	Place string `json:"place,omitempty" jsonschema:"Where it stands; for operators."`
}

// readRules returns the rules that are about a principal. What stands in a rule beside that is the operator's to know.
func (h *Hub) readRules(ctx context.Context, p auth.Principal, n RulesOwner) (RuleList, error) {
	of := []auth.Principal{p}
	if ownerID(p, string(n)) != p.ID {
		other, err := otherPrincipal(string(n))
		if err != nil {
			return RuleList{}, err
		}
		tokens, err := h.tokensOf(ctx, other.ID)
		if err != nil {
			return RuleList{}, err
		}
		of[0] = other
		for i, t := range validTokens(tokens) {
			of = append(of[:i], withToken(other, t))
		}
	}
	list := RuleList{Principal: of[0].ID, Rules: []RuleRow{}}
	for _, r := range h.Rules.Load().Concerning(of...) {
		row := RuleRow{Effect: r.Effect.String(), Rule: r.Anonymous()}
		if p.HasRole(auth.Operator) {
			row.Rule, row.Place = r.Text, r.Place
		}
		list.Rules = append(list.Rules, row)
	}
	return list, nil
}

// PolicyCheck asks what would happen if a principal did something. Nothing is done.
type PolicyCheck struct {
	Principal string           `json:"principal,omitempty" jsonschema:"Whose request it would be; for operators. Default: yours."`
	Service   bool             `json:"service,omitempty" jsonschema:"That principal has the token of a service."`
	Roles     []auth.Role      `json:"roles,omitempty" jsonschema:"Roles of that principal's token. Default: as that principal's tokens."`
	Token     string           `json:"token_id,omitempty" jsonschema:"The token of that principal whose roles and scope count."`
	Operation policy.Operation `json:"operation" jsonschema:"Such as shell.execute or network.reach."`
	Detail    string           `json:"detail,omitempty" jsonschema:"What rules compare: a command, a path, HOST:PORT, or SERVER TOOL."`
	Session   string           `json:"session_id,omitempty" jsonschema:"The session whose network counts. Default: the settings."`
}

// resource implements resourceInput.
func (c PolicyCheck) resource(_ *Hub, p auth.Principal) policy.Resource {
	return ofPrincipal(p, c.Principal)
}

// PolicyVerdict is what would happen.
type PolicyVerdict struct {
	policy.Verdict
	// Answer is the stored answer to what the rule asks.
	Answer string `json:"answer,omitempty" jsonschema:"yes or no: the stored answer to what the rule asks."`
	// Cause is why the settings of the network refuse a host.
	Cause egress.Cause `json:"cause,omitempty" jsonschema:"Why the network refuses a host, such as not_listed."`
}

// checkPolicy decides as the door does, with the rules in effect, and does nothing.
func (h *Hub) checkPolicy(ctx context.Context, p auth.Principal, c PolicyCheck) (PolicyVerdict, error) {
	of := p
	other := ownerID(p, c.Principal) != p.ID
	switch {
	case !c.Operation.Known():
		return PolicyVerdict{}, fault.Argument("operation", "there is no operation %q%s", fault.Clip(string(c.Operation)),
			fault.DidYouMean(string(c.Operation), policy.Operations()))
	case len(c.Detail) > policy.MaxDetail:
		return PolicyVerdict{}, fault.Argument("detail", "detail has more than %d bytes", policy.MaxDetail)
	case !other && (c.Service || len(c.Roles) > 0 || c.Token != ""):
		return PolicyVerdict{}, fault.Argument("roles", "service, roles and token_id are for another principal: your "+
			"token says which are yours")
	case other:
		var err error
		if of, err = h.askedPrincipal(ctx, c); err != nil {
			return PolicyVerdict{}, err
		}
	}
	v, err := h.verdict(of, c, p.HasRole(auth.Operator))
	if err == nil && !p.HasRole(auth.Operator) {
		v.Place = "" // what stands in a rule is the operator's to know
	}
	return v, err
}

// askedPrincipal returns the other principal of a question, with the service and the roles that it names, or else with
// those of the principal's tokens.
func (h *Hub) askedPrincipal(ctx context.Context, c PolicyCheck) (auth.Principal, error) {
	of, err := otherPrincipal(c.Principal)
	if err != nil {
		return of, err
	}
	if c.Token == "" && (c.Service || len(c.Roles) > 0) {
		for _, name := range c.Roles {
			if _, err := auth.ParseRole(string(name)); err != nil {
				return of, err
			}
		}
		of.Service, of.Roles = c.Service, auth.NewRoles(c.Roles...)
		return of, nil
	}
	all, err := h.tokensOf(ctx, of.ID)
	if err != nil {
		return of, err
	}
	var ids []string
	same := true
	for i, t := range validTokens(all) {
		if t.ID == c.Token {
			return withToken(of, t), nil
		}
		same = same && (i == 0 || t.Service == of.Service && t.Roles == of.Roles)
		of.Service, of.Roles, ids = t.Service, t.Roles, append(ids, t.ID)
	}
	switch {
	case c.Token != "":
		return of, fault.Argument("token_id", "%s has no such token", of.Name)
	case !same:
		return of, fault.Argument("token_id", "the tokens of %s have different roles: name one of %s", of.Name,
			strings.Join(ids, ", "))
	}
	return of, nil
}

// verdict returns what the door decides about a request of a principal. Without whole, its rule names nobody.
func (h *Hub) verdict(of auth.Principal, c PolicyCheck, whole bool) (PolicyVerdict, error) {
	if c.Operation == policy.NetworkReach {
		return h.reachVerdict(auth.OnBehalfOf(of.ID), c, whole)
	}
	r := Request{Principal: of, Operation: c.Operation, Detail: c.Detail}
	q := policy.Question{Principal: of, Operation: c.Operation, Detail: c.Detail}
	d := h.decide(r)
	v := newVerdict(q, d, whole)
	if d.Effect == policy.Allow && d.Rule == nil && h.Consent != nil {
		v.Verdict = h.Consent(q, v.Verdict)
	}
	if d.Effect == policy.Ask {
		v.Answer = h.storedAnswer(question.Subject{Principal: of.ID, Operation: c.Operation, Detail: c.Detail}, "")
	}
	return v, nil
}

// newVerdict returns the verdict of a decision.
func newVerdict(q policy.Question, d policy.Decision, whole bool) PolicyVerdict {
	v := PolicyVerdict{Verdict: policy.NewVerdict(q, d)}
	if d.Rule != nil && !whole {
		v.Rule = d.Rule.Anonymous()
	}
	return v
}

// storedAnswer returns yes or no, or nothing without an answer that counts.
func (h *Hub) storedAnswer(about question.Subject, session string) string {
	if h.Questions == nil {
		return ""
	}
	switch allowed, known := h.Questions.Known(about, session); {
	case !known:
		return ""
	case allowed:
		return "yes"
	}
	return "no"
}

// reachVerdict returns what would happen to a connection of a program to a host: first the rules decide, then the
// settings of the network.
func (h *Hub) reachVerdict(p auth.Principal, c PolicyCheck, whole bool) (v PolicyVerdict, err error) {
	r := Request{Principal: p, Operation: policy.NetworkReach, Detail: c.Detail}
	d := h.decide(r)
	v = newVerdict(policy.Question{Principal: p, Operation: r.Operation, Detail: r.Detail}, d, whole)
	network, session, err := h.networkOf(p, c.Session)
	if err != nil || network == nil {
		return v, err
	}
	if d.Effect == policy.Ask {
		v.Answer = h.storedAnswer(reachSubject(p, c.Detail), session)
	}
	cause, why := network.Preview(c.Detail, v.Answer == "yes")
	switch {
	case cause == egress.InvalidTarget:
		return v, fault.Argument("detail", "detail is %q: %s", fault.Clip(c.Detail), why)
	case cause == egress.NoNetwork, d.Effect == policy.Allow && cause != "":
		v.Verdict = policy.Verdict{Effect: policy.Refuse.String(), Reason: why, Place: "the settings of the network"}
		v.Cause = cause
		unlisted := slices.Contains([]egress.Cause{egress.NotListed, egress.OtherPort}, cause)
		if unlisted && h.Questions != nil && h.asking.asksUnlisted(p) {
			v.Effect = policy.Ask.String()
		}
	case v.Answer == "yes" && cause != "": // such as a name of the server itself
		v.Effect, v.Reason, v.Cause = policy.Refuse.String(), why, cause
	}
	return v, nil
}

// networkOf returns what a session of a principal may reach; without an id, what the settings say.
func (h *Hub) networkOf(p auth.Principal, id string) (network *egress.Policy, session string, err error) {
	if id == "" {
		if h.Network == nil {
			return nil, "", nil
		}
		state := h.Network()
		return &state.Policy, "", nil
	}
	n, err := h.Sessions.Network(p, id)
	return n.Policy, n.Session, err
}
