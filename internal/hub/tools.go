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

// Tools lists the tools that the principal can call, in a stable order. It is for the gateway,
// which stores lists for its clients; a client's request for a list goes through Do.
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
	a, err := h.authorize(Request{Principal: c.Principal, Operation: f.Operation, Name: c.Name})
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
	if _, ok := h.findTool(p, name); ok {
		return nil
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
