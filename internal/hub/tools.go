package hub

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// Tools lists the tools that the principal can call, in a stable order. Tools that are not in the scope
// of the principal's token are left out. It is for the gateway, which stores lists for its clients; a
// client's request for a list goes through Do.
func (h *Hub) Tools(ctx context.Context, p auth.Principal) []tool.Tool {
	var all []tool.Tool
	seen := map[string]bool{}
	for _, s := range h.Sources {
		for _, t := range s.Tools(ctx, p) {
			if !seen[t.Name] {
				seen[t.Name] = true
				operation := t.Operation
				if t.Raw != nil { // of a third-party server
					operation = policy.MCPCall
				}
				if policy.InScope(p, operation) {
					all = append(all, t)
				}
			}
		}
	}
	return all
}

// OwnTools lists Sandlot's own tools, which every principal has. It starts no servers.
func (h *Hub) OwnTools() []tool.Tool {
	var all []tool.Tool
	for _, s := range h.Sources {
		if _, external := s.(tool.External); !external {
			all = append(all, s.Tools(context.Background(), auth.Principal{})...)
		}
	}
	return all
}

// Call calls a tool by the name that clients use.
func (h *Hub) Call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	f, ok := h.findTool(c.Principal, c.Name)
	if !ok {
		return nil, h.toolNotFound(ctx, c.Principal, c.Name)
	}
	r, invalid := h.callRequest(ctx, f, &c)
	a, err := h.authorize(ctx, r)
	if err != nil {
		return nil, err
	}
	request := once.NewShared(func() { _ = a.Close() }) // a run with an idempotency key may outlast this call
	defer request.Release()
	c.Hold = request.Hold
	c.Reveal = func(ctx context.Context, env map[string]string) (map[string]string, error) {
		return h.reveal(ctx, c.Principal, env)
	}
	if r.DetailFollows {
		c.Decide = func(ctx context.Context, detail string) error {
			r := r
			r.Detail, r.DetailFollows = detail, false
			return h.permit(ctx, r)
		}
	}
	if f.Consents && invalid == nil {
		c.Consent = h.consent(r)
	}
	if len(f.Implies) > 0 {
		c.Imply = h.imply(r)
	}
	if r.call != nil {
		ctx = withCall(ctx, r.call)
	}
	var res *tool.Result
	if err = invalid; err == nil {
		res, err = a.callWithinQuota(ctx, f, c)
	}
	a.outcome = outcomeOf(err)
	a.received.Store(int64(len(c.Args)))
	if err == nil {
		a.session = res.Session
		a.sent.Store(int64(res.Size()))
		if res.IsError {
			a.outcome = event.Error
		}
	}
	if h.Observe != nil {
		h.Observe(ctx, c, a.outcome, time.Since(a.start))
	}
	return res, err
}

// callWithinQuota calls a tool, if the principal's quota of calls allows one more. The call counts until the
// request is closed.
func (a *ActiveRequest) callWithinQuota(ctx context.Context, f tool.Callable, c tool.Call) (*tool.Result, error) {
	end, err := a.hub.Quotas.BeginCall(c.Principal)
	if err != nil {
		return nil, err
	}
	a.cleanups = append(a.cleanups, end)
	return f.Call(ctx, c)
}

// callRequest returns the request of a tool's call. An error is that of the arguments, after policy
// has decided.
func (h *Hub) callRequest(ctx context.Context, f tool.Callable, c *tool.Call) (r Request, invalid error) {
	r = Request{Principal: c.Principal, Operation: f.Operation, Name: c.Name, consents: f.Consents}
	rules := h.Rules.Load()
	if mayAsk(rules, f) {
		r.call = &tool.Call{Client: c.Client, Progress: c.Progress}
	}
	if f.Detail == nil || !rules.UsesDetail(f.Operation) && trailOf(ctx) == nil {
		return r, nil
	}
	d, invalid := f.Detail(*c)
	r.Detail, r.DetailFollows = d.Text, f.DetailFollows || invalid != nil
	if r.call != nil && h.Sessions != nil {
		if id, err := h.Sessions.Find(c.Principal, d.Session); err == nil {
			r.Resource = policy.Resource{Kind: sessionKind, ID: id, Owner: c.Principal.ID}
		}
	}
	return r, invalid
}

// MayAsk reports whether rules may ask about a call of a tool.
func (h *Hub) MayAsk(p auth.Principal, name string) bool {
	rules := h.Rules.Load()
	if !rules.Elicits() {
		return false
	}
	f, ok := h.findTool(p, name)
	return ok && mayAsk(rules, f)
}

// mayAsk reports whether rules may ask about a call of a tool.
func mayAsk(rules *policy.Rules, f tool.Callable) bool {
	return rules.MayAsk(f.Operation) || rules.MayAsk(policy.SessionCreate) ||
		slices.ContainsFunc(f.Implies, rules.MayAsk)
}

func (h *Hub) findTool(p auth.Principal, name string) (tool.Callable, bool) {
	for _, s := range h.Sources {
		if f, ok := s.Find(p, name); ok {
			return f, true
		}
	}
	return tool.Callable{}, false
}

// CheckTool returns nil if the principal can call a tool, and otherwise the fault for its
// call.
func (h *Hub) CheckTool(ctx context.Context, p auth.Principal, name string) error {
	if f, ok := h.findTool(p, name); ok {
		if policy.InScope(p, f.Operation) {
			return nil // whether rules allow it depends on the arguments
		}
		_, err := h.authorize(ctx, Request{Principal: p, Operation: f.Operation, Name: name})
		return err
	}
	return h.toolNotFound(ctx, p, name)
}

// toolNotFound returns the fault for a tool that the principal cannot call, and publishes the
// event. The event does not contain the name, as a client can send any text.
func (h *Hub) toolNotFound(ctx context.Context, p auth.Principal, name string) error {
	_, err := Do(ctx, h, Request{Principal: p, Operation: policy.ToolFind}, func(ctx context.Context) (None, error) {
		return None{}, h.whyMissing(ctx, p, name)
	})
	return err
}

// whyMissing returns a source's explanation of why a tool is missing, or the fault for an
// unknown tool.
func (h *Hub) whyMissing(ctx context.Context, p auth.Principal, name string) error {
	for _, s := range h.Sources {
		if e, ok := s.(tool.MissingExplainer); ok {
			if why := e.WhyMissing(p, name); why != nil {
				return why
			}
		}
	}
	return unknownTool(name, h.Tools(ctx, p))
}

// maxNames is how many tools an error lists.
const maxNames = 100

// unknownTool returns the fault for an unknown tool. It lists the known tools, but not more
// than maxNames: the nearest name and the first ones.
func unknownTool(name string, known []tool.Tool) error {
	names := make([]string, len(known))
	for i, t := range known {
		names[i] = t.Name
	}
	f := fault.New(fault.NotFound, "Unknown tool: %q", fault.Clip(name))
	near := fault.Nearest(name, names)
	if near != "" {
		f = fault.New(fault.NotFound, "Unknown tool: %q; did you mean %q?", fault.Clip(name), near)
	}
	if shown := names[:min(len(names), maxNames)]; len(shown) < len(names) {
		f.With("tools_count", len(names))
		if names = shown; near != "" && !slices.Contains(shown, near) {
			names = append([]string{near}, shown[:maxNames-1]...)
		}
	}
	return f.With("tool", fault.Clip(name)).With("available_tools", names)
}
