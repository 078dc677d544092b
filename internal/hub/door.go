package hub

import (
	"context"

	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// door is the way through the hub of one call that runs. It implements tool.Door.
type door struct {
	hub  *Hub
	tool tool.Callable
	call tool.Call // as the client made it
	// request is what the door stands for, about which policy has made the decision.
	request  Request
	decision policy.Decision
	open     *once.Shared // the call's request, until it is closed
}

// Ask implements tool.Door. The rules may have changed since the call began.
func (d *door) Ask(ctx context.Context, o policy.Operation, detail string) (tool.Door, error) {
	r := d.request
	if r.Resource.Kind == "" { // it did not matter, and may by now: to new rules, or to a trail
		r, _ = d.hub.callRequest(ctx, d.tool, &d.call)
	}
	r.snapshot = d.hub.takeSnapshot()
	r.user = userOf(r.snapshot.rules, d.tool, d.call)
	r.Operation, r.Detail, r.DetailFollows, r.consents = o, detail, false, true
	decision, err := d.hub.permit(ctx, r)
	if err != nil {
		return nil, err
	}
	next := *d
	next.request, next.decision = r, decision
	return &next, nil
}

// Consent implements tool.Door.
func (d *door) Consent(ctx context.Context, q tool.Question) (decided bool, err error) {
	switch {
	case !d.request.consents, d.decision.Effect == policy.Allow && d.decision.Rule == nil:
		return false, nil
	case d.decision.Effect != policy.Ask:
		return true, d.decision.Err()
	case q.Message == "":
		return true, d.hub.askAbout(ctx, d.request)
	}
	a := asker{d.hub, d.request}
	return true, a.ask(ctx, q.Message, question.TextHash(q.Message))
}

// Shows implements tool.Door. A rule that asked about the request itself does not ask about each of its details.
func (d *door) Shows(ctx context.Context, detail string) bool {
	r := d.request
	if d.hub.indifferent(ctx, r) {
		return true
	}
	r.Detail = detail
	decision := d.hub.decide(r)
	if decision.Effect != policy.Allow && (decision.Effect != policy.Ask || decision.Rule != d.decision.Rule) {
		return false
	}
	trailOf(ctx).add(r)
	return true
}

// Reveal implements tool.Door.
func (d *door) Reveal(ctx context.Context, env map[string]string) (map[string]string, error) {
	return d.hub.reveal(ctx, d.call.Principal, env)
}

// Hold implements tool.Door.
func (d *door) Hold() (release func()) { return d.open.Hold() }

// Record implements tool.Door.
func (d *door) Record(ctx context.Context) (context.Context, tool.Trail) {
	t := &Trail{hub: d.hub}
	return WithTrail(ctx, t), t
}
