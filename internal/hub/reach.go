package hub

import (
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/policy"
	"sandlot/internal/question"
)

// Reach implements egress.Config.Reach by the rules. If a rule asks, it puts a question and does not
// wait for the answer: Hold does, where a person can be asked at once.
func (h *Hub) Reach(o egress.Owner, host string, phase egress.Phase) egress.Verdict {
	rules := h.Rules.Load()
	p := auth.OnBehalfOf(o.Principal)
	if !rules.Any(policy.NetworkReach) || p.ID == "" {
		return egress.ByPolicy
	}
	r := Request{Principal: p, Operation: policy.NetworkReach, Detail: host,
		Resource: policy.Resource{Kind: sessionKind, ID: o.Session, Owner: p.ID}}
	switch d := rules.Decide(policy.Question{Principal: p, Operation: r.Operation, Resource: r.Resource,
		Detail: host}); d.Effect {
	case policy.Refuse:
		return egress.Denied
	case policy.Allow:
		return egress.ByPolicy // it ends the search; the settings of the network decide
	}
	return h.reachAsked(r, phase)
}

// reachAsked returns the verdict about a host about which a rule asks.
func (h *Hub) reachAsked(r Request, phase egress.Phase) egress.Verdict {
	switch phase {
	case egress.Connected:
		return egress.ByPolicy
	case egress.Lookup: // the answer is about a host and a port
		return egress.Asked
	}
	about := reachSubject(r.Principal, r.Detail)
	switch allowed, known := h.answered(about, r.Resource.ID); {
	case allowed:
		return egress.Granted
	case known:
		return egress.Denied
	}
	if _, err := h.Questions.Ask(h.reachQuestion(r), question.Grace, false); err != nil {
		h.Log.Warn("a question about a host was not put", "principal", r.Principal.ID, "error", err)
	}
	return egress.Asked
}

// reachSubject is what a question about a host and port is about.
func reachSubject(p auth.Principal, host string) question.Subject {
	return question.Subject{Principal: p.ID, Operation: policy.NetworkReach, Detail: host}
}

// reachQuestion is the question about a program's connection.
func (h *Hub) reachQuestion(r Request) question.Question {
	a := asker{h, r}
	return question.Question{Subject: reachSubject(r.Principal, r.Detail), Session: r.Resource.ID,
		Text: strings.Replace(a.text(), "May an agent of", "May a program of", 1)}
}
