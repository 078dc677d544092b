package hub

import (
	"context"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/policy"
	"sandlot/internal/question"
)

// Reach implements egress.Config.Reach by the rules. If a rule asks, it puts a question and does not
// wait for the answer: Hold does, where a person can be asked at once.
func (h *Hub) Reach(o egress.Owner, host string, phase egress.Phase) egress.Ruling {
	if !h.isOpen.Load() {
		if h.early.Load().Any(policy.NetworkReach) {
			return egress.Ruling{Verdict: egress.Denied}
		}
		return egress.Ruling{}
	}
	p := auth.OnBehalfOf(o.Principal)
	r := Request{Principal: p, Operation: policy.NetworkReach, Detail: host, snapshot: h.takeSnapshot(),
		Resource: policy.Resource{Kind: sessionKind, ID: o.Session, Owner: p.ID}}
	if p.ID == "" || h.indifferent(context.Background(), r) {
		return egress.Ruling{}
	}
	d := h.decide(r)
	place := "" // where the rule stands; what stands in it is the operator's to know
	if d.Rule != nil {
		place = d.Rule.Place
	}
	switch d.Effect {
	case policy.Refuse:
		return egress.Ruling{Verdict: egress.Denied, Rule: place}
	case policy.Allow:
		return egress.Ruling{} // it ends the search; the settings of the network decide
	}
	ruling := h.reachAsked(r, phase)
	ruling.Rule = place
	return ruling
}

// reachAsked returns the ruling about a host about which a rule asks.
func (h *Hub) reachAsked(r Request, phase egress.Phase) egress.Ruling {
	switch phase {
	case egress.Connected:
		return egress.Ruling{}
	case egress.Lookup: // the answer is about a host and a port
		return egress.Ruling{Verdict: egress.Asked}
	}
	about := reachSubject(r.Principal, r.Detail)
	switch allowed, known := h.answered(about, r.Resource.ID); {
	case allowed:
		return egress.Ruling{Verdict: egress.Granted, Answered: true}
	case known:
		return egress.Ruling{Verdict: egress.Denied, Answered: true}
	}
	if ruling, known := h.asking.counts(r.Principal.ID, r.Resource.ID, r.Detail); known {
		return ruling
	}
	o, err := h.Questions.Ask(h.reachQuestion(r), question.Grace, false)
	if err != nil {
		h.Log.Warn("a question about a host was not put", "principal", r.Principal.ID, "error", err)
		return egress.Ruling{Verdict: egress.Asked}
	}
	return egress.Ruling{Verdict: egress.Asked, Question: o.ID}
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
