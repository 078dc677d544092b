package hub

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/rawjson"
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

// Owns reports whether Sandlot itself has a tool of that name.
func (h *Hub) Owns(name string) bool {
	return slices.ContainsFunc(h.Sources, func(s tool.Source) bool {
		if _, external := s.(tool.External); external {
			return false
		}
		_, found := s.Find(auth.Local, name)
		return found
	})
}

// callFor is Call for a principal.
func (h *Hub) callFor(ctx context.Context, p auth.Principal, c tool.Call) (*tool.Result, error) {
	c.Principal = p
	return h.Call(ctx, c)
}

// Call calls a tool by the name that clients use.
func (h *Hub) Call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	return h.call(ctx, c, false)
}

// call is Call. A face reads what it repeats without an event.
func (h *Hub) call(ctx context.Context, c tool.Call, face bool) (*tool.Result, error) {
	f, ok := h.findTool(c.Principal, c.Name)
	if ok && f.Resolve != nil {
		c, _ = h.Resolve(ctx, c)
		f, ok = h.findTool(c.Principal, c.Name)
	}
	if !ok {
		return nil, h.toolNotFound(ctx, c.Principal, c.Name)
	}
	r, invalid := h.callRequest(ctx, f, &c)
	a, err := h.authorize(ctx, r)
	if err != nil {
		return nil, err
	}
	open := once.NewShared(func() { _ = a.Close() }) // a run with an idempotency key may outlast this call
	defer open.Release()
	c = c.Through(&door{hub: h, tool: f, call: c, request: r, decision: a.decision, open: open})
	if r.call != nil {
		ctx = withCall(ctx, r.call)
	}
	defer h.asking.begin(ctx, c)()
	var res *tool.Result
	if err = invalid; err == nil {
		res, err = a.callWithinQuota(ctx, f, c)
	}
	a.outcome, a.silent = outcomeOf(err), face && r.Operation.Polled()
	a.received.Store(int64(len(c.Args)))
	if err == nil {
		a.session = res.Session
		a.sent.Store(int64(res.Size()))
		switch {
		case res.Replayed:
			a.outcome = event.Replayed
		case res.IsError:
			a.outcome = event.Error
		}
	}
	if h.Observe != nil {
		h.Observe(ctx, c, a.outcome, time.Since(a.start))
	}
	return res, err
}

// Resolve returns the call that c stands for, such as that of the tool that a call of call_tool names, and whether a
// third-party server's tool is called. Whoever treats these calls differently resolves a call before it calls.
func (h *Hub) Resolve(ctx context.Context, c tool.Call) (resolved tool.Call, external bool) {
	if f, ok := h.findTool(c.Principal, c.Name); ok && f.Resolve != nil {
		inner, err := f.Resolve(ctx, c)
		if err != nil {
			return c, false // its own Call says why
		}
		c = inner
	}
	for _, s := range h.Sources {
		if _, ok := s.Find(c.Principal, c.Name); ok {
			_, external = s.(tool.External)
			return c, external
		}
	}
	return c, false
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
	r = Request{Principal: c.Principal, Operation: f.Operation, Name: c.Name, consents: f.Consents,
		DetailFollows: f.DetailFollows, snapshot: h.takeSnapshot()}
	if mayAsk(r.snapshot.rules, f) {
		r.call = &tool.Call{Client: c.Client, Progress: c.Progress}
	}
	if f.Detail == nil || r.call == nil && !h.needsDetail(ctx, r) {
		return r, nil
	}
	d, invalid := f.Detail(*c)
	if f.Operation == policy.ShellExecute && invalid == nil && h.Sessions != nil {
		var env map[string]string
		env, invalid = h.Sessions.VariablesOf(c.Principal.ID, d.Session)
		d.Text = policy.WithVariables(d.Text, env)
	}
	r.Detail, r.DetailFollows = d.Text, f.DetailFollows || invalid != nil
	r.Resource = h.resourceOf(c.Principal, d)
	if r.Resource.Kind == sessionKind && isName(d.Session, r.Resource.ID) {
		c.Args = withSession(c.Args, d.Session, r.Resource.ID)
	}
	return r, invalid
}

// isName reports whether a session with that id was named in another way than by its id, "home" or "new". The name may be
// another session's by the time when a person has answered: what was decided is done to the session that it was about.
func isName(given, id string) bool { return given != "" && given != id && !isAlias(given) }

// withSession returns the arguments of a call with the id of a session in place of its name.
func withSession(args json.RawMessage, name, id string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil {
		return args
	}
	var given string
	if json.Unmarshal(members["session_id"], &given) != nil || given != name {
		return args
	}
	members["session_id"] = rawjson.Quote(id)
	changed, err := json.Marshal(members)
	if err != nil {
		return args
	}
	return changed
}

// needsDetail reports whether what policy has to know of a request matters: to the rules, or to those that may be in
// effect when its answer is asked for again.
func (h *Hub) needsDetail(ctx context.Context, r Request) bool {
	return h.Decide != nil || r.snapshot.rules.UsesDetail(r.Operation) || trailOf(ctx) != nil
}

// resourceOf returns the resource of a request. A session of somebody else is like one that is not there: the handler
// says so.
func (h *Hub) resourceOf(p auth.Principal, d tool.Detail) policy.Resource {
	switch {
	case d.Session != "":
		r := SessionID(d.Session).resource(h, p)
		if r.Owner != p.ID {
			r.Owner = ""
		}
		return r
	case d.Server != "":
		return policy.Resource{Kind: connectionKind, ID: d.Server, Owner: p.ID}
	}
	return policy.Resource{}
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
	hint, near := "", fault.Nearest(name, names)
	if slices.ContainsFunc(known, func(t tool.Tool) bool { return t.Raw != nil }) { // third-party ones
		hint = "; search_tools finds tools"
	}
	f := fault.New(fault.NotFound, "Unknown tool: %q%s", fault.Clip(name), hint)
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
