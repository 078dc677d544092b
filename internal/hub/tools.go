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

// Owns reports whether Sandlot itself has a tool of that name.
func (h *Hub) Owns(name string) bool {
	_, external, ok := h.findTool(auth.Local, name)
	return ok && !external
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
	c, f, _, ok := h.resolve(ctx, c)
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
	if r.user != nil {
		ctx = withUser(ctx, r.user)
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
		h.keepResult(r.Operation, c, res)
		h.afterSuccess(r)
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
	resolved, _, external, _ = h.resolve(ctx, c)
	return resolved, external
}

// resolve is Resolve, and returns the tool too; ok: there is one.
func (h *Hub) resolve(ctx context.Context, c tool.Call) (resolved tool.Call, f tool.Callable, external, ok bool) {
	if f, external, ok = h.findTool(c.Principal, c.Name); !ok || f.Resolve == nil {
		return c, f, external, ok
	}
	inner, err := f.Resolve(ctx, c)
	if err != nil {
		return c, f, external, true // its own Call says why
	}
	f, external, ok = h.findTool(inner.Principal, inner.Name)
	return inner, f, external, ok
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
	r.user = userOf(r.snapshot.rules, f, *c)
	if f.Detail == nil || r.user == nil && !h.needsDetail(ctx, r) {
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
		c.Session = r.Resource.ID
	}
	return r, invalid
}

// isName reports whether a session with that id was named in another way than by its id, "home" or "new".
func isName(given, id string) bool { return given != id && !isAlias(given) }

// userOf returns the user whom rules may ask about a call of a tool; nil: they ask nobody.
func userOf(rules *policy.Rules, f tool.Callable, c tool.Call) *tool.User {
	if !mayAsk(rules, f) {
		return nil
	}
	user := c.User()
	return &user
}

// needsDetail reports whether what policy has to know of a request matters: to the rules, or to those that may be in
// effect when its answer is asked for again.
func (h *Hub) needsDetail(ctx context.Context, r Request) bool {
	return h.Decide != nil || h.rulesFor(r).UsesDetail(r.Operation) || trailOf(ctx) != nil
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

// Look is whom a call of one of Sandlot's own tools may ask, besides what the tool itself does.
type Look struct {
	Asks  bool // the user, by rules, or by third-party servers that code calls
	Hosts bool // the user about hosts, if the client can ask
}

// Look returns whom a principal's call of a tool may ask. An edge answers calls that ask nobody in a shorter way.
func (h *Hub) Look(p auth.Principal, name string) (l Look) {
	rules, hosts := h.Rules.Load(), h.asksHosts(p)
	if !rules.Elicits() && !hosts && h.Servers == nil {
		return l
	}
	f, _, ok := h.findTool(p, name)
	if !ok {
		return l
	}
	runs := f.Operation == policy.CodeExecute || f.Operation == policy.ShellExecute
	l.Asks = mayAsk(rules, f) || runs && h.Servers != nil && h.Servers.Any(p)
	l.Hosts = hosts && (runs || f.Operation == policy.MCPInstall || f.Operation == policy.MCPConnect)
	return l
}

// mayAsk reports whether rules may ask about a call of a tool.
func mayAsk(rules *policy.Rules, f tool.Callable) bool {
	return rules.MayAsk(f.Operation) || rules.MayAsk(policy.SessionCreate) ||
		slices.ContainsFunc(f.Implies, rules.MayAsk)
}

// findTool returns the tool of that name, and whether it is a third-party server's.
func (h *Hub) findTool(p auth.Principal, name string) (f tool.Callable, external, ok bool) {
	for _, s := range h.Sources {
		if f, ok = s.Find(p, name); ok {
			_, external = s.(tool.External)
			return f, external, true
		}
	}
	return tool.Callable{}, false, false
}

// CheckTool returns nil if the principal can call a tool, and otherwise the fault for its
// call.
func (h *Hub) CheckTool(ctx context.Context, p auth.Principal, name string) error {
	if f, _, ok := h.findTool(p, name); ok {
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
