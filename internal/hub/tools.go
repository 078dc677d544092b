package hub

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// Tools lists the tools that the principal can call, in a stable order. It is for an
// edge that keeps lists for its clients; a client's request for a list goes through Do.
func (h *Hub) Tools(ctx context.Context, p auth.Principal) []tool.Tool {
	var all []tool.Tool
	seen := map[string]bool{}
	for _, s := range h.Sources {
		for _, t := range s.Tools(ctx, p) {
			if !seen[t.Name] {
				seen[t.Name] = true
				all = append(all, t)
			}
		}
	}
	return all
}

// Own lists the tools that everyone has: none of a third-party server. It starts nothing.
func (h *Hub) Own() []tool.Tool {
	var all []tool.Tool
	for _, s := range h.Sources {
		if _, external := s.(tool.External); !external {
			all = append(all, s.Tools(context.Background(), auth.Principal{})...)
		}
	}
	return all
}

// Call calls a tool by its exposed name.
func (h *Hub) Call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	f, ok := h.find(c.Principal, c.Name)
	if !ok {
		return nil, h.notThere(ctx, c.Principal, c.Name)
	}
	a, err := h.begin(Request{Principal: c.Principal, Operation: f.Operation, Name: c.Name, Arguments: c.Args,
		Client: c.Client})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	res, err := f.Call(ctx, c)
	a.outcome = outcomeOf(err)
	if err == nil {
		a.session = res.Session
		if res.IsError {
			a.outcome = event.Error
		}
	}
	if h.Observe != nil {
		h.Observe(ctx, c, a.outcome, time.Since(a.start))
	}
	return res, err
}

func (h *Hub) find(p auth.Principal, name string) (tool.Found, bool) {
	for _, s := range h.Sources {
		if f, ok := s.Find(p, name); ok {
			return f, true
		}
	}
	return tool.Found{}, false
}

// Missing is the fault for a tool that the principal cannot call; nil: the tool exists.
func (h *Hub) Missing(ctx context.Context, p auth.Principal, name string) error {
	if _, ok := h.find(p, name); ok {
		return nil
	}
	return h.notThere(ctx, p, name)
}

// notThere is the fault for a tool that does not exist. The name is the client's, and
// can be any text: the event does not have it.
func (h *Hub) notThere(ctx context.Context, p auth.Principal, name string) error {
	_, err := Do(ctx, h, Request{Principal: p, Operation: policy.ToolFind}, func(ctx context.Context) (None, error) {
		return None{}, h.missing(ctx, p, name)
	})
	return err
}

// missing says why no source has a tool, or that the tool is unknown.
func (h *Hub) missing(ctx context.Context, p auth.Principal, name string) error {
	for _, s := range h.Sources {
		if e, ok := s.(tool.Explainer); ok {
			if why := e.Missing(p, name); why != nil {
				return why
			}
		}
	}
	return unknown(name, h.Tools(ctx, p))
}

// maxNames bounds the names in an error.
const maxNames = 100

// unknown is the fault for a tool that does not exist. It lists the tools that do, the
// nearest name among them; of very many tools the first ones.
func unknown(name string, known []tool.Tool) error {
	names := make([]string, len(known))
	for i, t := range known {
		names[i] = t.Name
	}
	f := fault.New(fault.NotFound, "Unknown tool: %q", fault.Clip(name))
	near := fault.Nearest(name, names)
	if near != "" {
		f = fault.New(fault.NotFound, "Unknown tool: %q; did you mean %q?", fault.Clip(name), near)
	}
	if some := names[:min(len(names), maxNames)]; len(some) < len(names) {
		f.With("tools_count", len(names))
		if names = some; near != "" && !slices.Contains(some, near) {
			names = append([]string{near}, some[:maxNames-1]...)
		}
	}
	return f.With("tool", fault.Clip(name)).With("available_tools", names)
}
