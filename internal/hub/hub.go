// Package hub is the one namespace of tools and resources that each principal
// sees.
package hub

import (
	"context"
	"errors"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Hub joins sources. On a name that two sources give, the first one wins, always.
type Hub struct {
	// Observe, if set, is told of every call's end: the outcome is "ok",
	// "error" for a result that is one, or a fault's code.
	Observe func(ctx context.Context, c tool.Call, outcome string, took time.Duration)

	sources []tool.Source
	readers []tool.Reader
	foreign tool.Foreign
}

// New returns a hub over the sources; those that are readers give resources too.
func New(sources ...tool.Source) *Hub {
	h := &Hub{sources: sources}
	for _, s := range sources {
		if r, ok := s.(tool.Reader); ok {
			h.readers = append(h.readers, r)
		}
		if f, ok := s.(tool.Foreign); ok {
			h.foreign = f
		}
	}
	return h
}

// Foreign returns what third-party servers give beside tools, or nil.
func (h *Hub) Foreign() tool.Foreign { return h.foreign }

// Tools lists what the principal can call, in an order that does not change.
func (h *Hub) Tools(ctx context.Context, p auth.Principal) []tool.Tool {
	var all []tool.Tool
	seen := map[string]bool{}
	for _, s := range h.sources {
		for _, t := range s.Tools(ctx, p) {
			if !seen[t.Name] {
				seen[t.Name] = true
				all = append(all, t)
			}
		}
	}
	return all
}

// Own lists the tools that are the same for everyone: none of a third-party server.
// Nothing is started for it.
func (h *Hub) Own() []tool.Tool {
	var all []tool.Tool
	for _, s := range h.sources {
		if _, foreign := s.(tool.Foreign); !foreign {
			all = append(all, s.Tools(context.Background(), auth.Principal{})...)
		}
	}
	return all
}

// Call calls a tool by its exposed name.
func (h *Hub) Call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	for _, s := range h.sources {
		if s.Has(c.Principal, c.Name) {
			start := time.Now()
			r, err := s.Call(ctx, c)
			if h.Observe != nil {
				h.Observe(ctx, c, outcome(r, err), time.Since(start))
			}
			return r, err
		}
	}
	return nil, h.missing(ctx, c.Principal, c.Name)
}

// Missing is the fault for a tool that the principal cannot call; nil: they can.
func (h *Hub) Missing(ctx context.Context, p auth.Principal, name string) error {
	for _, s := range h.sources {
		if s.Has(p, name) {
			return nil
		}
	}
	return h.missing(ctx, p, name)
}

// missing says why no source has a tool, or that none knows it.
func (h *Hub) missing(ctx context.Context, p auth.Principal, name string) error {
	for _, s := range h.sources {
		if e, ok := s.(tool.Explainer); ok {
			if why := e.Missing(p, name); why != nil {
				return why
			}
		}
	}
	return Unknown(name, h.Tools(ctx, p))
}

func outcome(r *tool.Result, err error) string {
	switch {
	case refused(err):
		return "error" // a third-party server's own
	case err != nil:
		return fault.From(err).Code()
	case r.IsError:
		return "error"
	}
	return "ok"
}

func refused(err error) bool {
	_, ok := errors.AsType[*tool.Refusal](err)
	return ok
}

// maxNames bounds the names that an error tells.
const maxNames = 100

// Unknown is the fault for a tool that is not there. It tells the names that are,
// the nearest one among them; of very many the first ones.
func Unknown(name string, known []tool.Tool) error {
	names := make([]string, len(known))
	for i, t := range known {
		names[i] = t.Name
	}
	f := fault.New(fault.NotFound, "Unknown tool: %q", clip(name))
	near := tool.Nearest(name, names)
	if near != "" {
		f = fault.New(fault.NotFound, "Unknown tool: %q; did you mean %q?", clip(name), near)
	}
	if some := names[:min(len(names), maxNames)]; len(some) < len(names) {
		f.With("tools_count", len(names))
		if names = some; near != "" && !slices.Contains(some, near) {
			names = append([]string{near}, some[:maxNames-1]...)
		}
	}
	return f.With("tool", clip(name)).With("available_tools", names)
}

func clip(s string) string { return s[:min(len(s), 120)] }

// ResourceTemplates lists what can be read.
func (h *Hub) ResourceTemplates() []tool.Link {
	var all []tool.Link
	for _, r := range h.readers {
		all = append(all, r.ResourceTemplates()...)
	}
	return all
}

// Read returns a resource: at most max bytes, and its whole size.
func (h *Hub) Read(ctx context.Context, p auth.Principal, uri string, max int) (tool.Blob, int64, error) {
	var last error = fault.New(fault.NotFound, "resource not found: %s", clip(uri))
	for _, r := range h.readers {
		b, n, err := r.Read(ctx, p, uri, max)
		if err == nil {
			return b, n, nil
		}
		last = err
	}
	return tool.Blob{}, 0, last
}
