package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// CallExternal calls a third-party server's tool for code in a sandbox. It calls none of Sandlot's own tools: code
// would wait for the interpreter that it runs in.
func (h *Hub) CallExternal(ctx context.Context, c tool.Call) (*tool.Result, error) {
	if _, err := h.externalTool(ctx, c); err != nil {
		return nil, err
	}
	return h.Call(ctx, c)
}

// MayCall returns why code in a sandbox must not call a tool of a server, which is given by the server's own name; nil:
// nothing refuses it. The session is that of a program in the background; empty: a client waits. It asks nobody, and
// starts no server: CallExternal and CallInBackground ask policy again.
func (h *Hub) MayCall(ctx context.Context, session string, p auth.Principal, server, name string) error {
	detail := policy.ServerName(h.Servers.NameOf(p, server)) + "/" + name
	asked := []Request{{Principal: p, Operation: policy.MCPCall, Name: detail}}
	if session != "" {
		asked = append(asked, Request{Principal: p, Operation: policy.CodeBackground, Name: detail,
			Resource: policy.Resource{Kind: sessionKind, ID: session, Owner: p.ID}})
	}
	for _, r := range asked {
		r.snapshot, r.Detail = h.takeSnapshot(), detail
		if h.decide(r).Effect == policy.Refuse {
			_, err := h.authorize(ctx, r) // for the event
			return err
		}
	}
	return nil
}

// CallInBackground is CallExternal for a program that runs in the background of a session, for which no client waits.
func (h *Hub) CallInBackground(ctx context.Context, session string, c tool.Call) (*tool.Result, error) {
	f, err := h.externalTool(ctx, c)
	if err != nil {
		return nil, err
	}
	r := Request{Principal: c.Principal, Operation: policy.CodeBackground, Name: c.Name, snapshot: h.takeSnapshot(),
		Resource: policy.Resource{Kind: sessionKind, ID: session, Owner: c.Principal.ID}}
	if f.Detail != nil && h.needsDetail(ctx, r) {
		d, err := f.Detail(c)
		if err != nil {
			return nil, err
		}
		r.Detail = d.Text
	}
	if _, err := h.authorize(ctx, r); err != nil { // what is allowed is an event as the call of the tool
		return nil, err
	}
	return h.Call(ctx, c)
}

// externalTool returns a tool of a third-party server.
func (h *Hub) externalTool(ctx context.Context, c tool.Call) (tool.Callable, error) {
	if h.external == nil {
		return tool.Callable{}, h.toolNotFound(ctx, c.Principal, c.Name)
	}
	if f, ok := h.external.Find(c.Principal, c.Name); ok {
		return f, nil
	}
	if _, _, own := h.findTool(c.Principal, c.Name); own {
		return tool.Callable{}, fault.New(fault.Forbidden, "%s is a tool of Sandlot itself: use it from the client",
			c.Name)
	}
	return tool.Callable{}, h.toolNotFound(ctx, c.Principal, c.Name)
}
