package hub

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// HasExternal says whether third-party servers can be behind the door at all.
func (h *Hub) HasExternal() bool { return h.external != nil }

// Offered is what third-party servers offer to one principal. A list that has not
// changed is the same slice again.
type Offered struct {
	Tools                         []tool.Tool
	Prompts, Resources, Templates []tool.Item
}

// External is what third-party servers offer, for the edge, which keeps lists for
// its clients.
func (h *Hub) External(ctx context.Context, p auth.Principal) Offered {
	if h.external == nil {
		return Offered{}
	}
	e := h.external
	return Offered{e.Tools(ctx, p), e.Prompts(p), e.Resources(p), e.Templates(p)}
}

// Ready waits until it is known what third-party servers offer, or ctx ends. It
// says whether it waited.
func (h *Hub) Ready(ctx context.Context, p auth.Principal) bool {
	return h.external != nil && h.external.Ready(ctx, p)
}

// methods are the operations of the requests that third-party servers answer.
var methods = map[string]policy.Operation{
	"prompts/get": policy.PromptGet, "resources/read": policy.ResourceRead, "completion/complete": policy.CompletionComplete,
}

// Pass passes a request on to the third-party server that it is for. It returns the
// whole result object, as MCP has it.
func (h *Hub) Pass(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	q := Request{Principal: r.Principal, Operation: methods[r.Method], Client: r.Client}
	return Do(ctx, h, q, func(ctx context.Context) (json.RawMessage, error) {
		if h.external == nil {
			return nil, fault.New(fault.NotFound, "no server answers %s", fault.Clip(r.Method))
		}
		return h.external.Pass(ctx, r)
	})
}

// Subscription is a client that wants to hear of a resource, or no longer.
type Subscription struct {
	Principal auth.Principal
	// Client tells those of one principal apart.
	Client string
	// URI is the resource's; empty: it is one of ours, of which none changes by itself.
	URI string
	// End says that it does not want to hear any more.
	End bool
}

// Subscribe makes a client hear of a resource's changes, or no longer.
func (h *Hub) Subscribe(ctx context.Context, s Subscription) error {
	_, err := Do(ctx, h, Request{Principal: s.Principal, Operation: policy.ResourceSubscribe}, func(ctx context.Context) (nothing, error) {
		if h.external == nil || s.URI == "" {
			return nothing{}, nil
		}
		change := h.external.Subscribe
		if s.End {
			change = h.external.Unsubscribe
		}
		return nothing{}, change(ctx, s.Principal, s.Client, s.URI)
	})
	return err
}

// SetLevel says how much a client wants to be told of what servers log, which was
// let through the door.
func (h *Hub) SetLevel(ctx context.Context, p auth.Principal, client, level string) {
	if h.external != nil {
		h.external.SetLevel(ctx, p, client, level)
	}
}

// Left says that a client is gone. It does not wait.
func (h *Hub) Left(p auth.Principal, client string) {
	if h.external != nil {
		h.external.Left(p, client)
	}
}

// ResourceTemplates lists what can be read of ours.
func (h *Hub) ResourceTemplates() []tool.Link {
	var all []tool.Link
	for _, r := range h.readers {
		all = append(all, r.ResourceTemplates()...)
	}
	return all
}

// Content is a resource: its data, of which there are at most as many bytes as were
// asked for, and its whole size.
type Content struct {
	tool.Blob
	Size int64
}

// Read returns a resource of ours, at most max bytes of it. A large one counts in held,
// which may be nil, before it is read.
func (h *Hub) Read(ctx context.Context, p auth.Principal, uri string, max int, held *limit.Held) (Content, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.ResourceRead}, func(ctx context.Context) (Content, error) {
		var last error = fault.New(fault.NotFound, "resource not found: %s", fault.Clip(uri))
		for _, r := range h.readers {
			b, n, err := r.Read(ctx, p, uri, min(max, limit.Large))
			if err == nil && n > int64(len(b.Data)) && len(b.Data) < max {
				if err := held.Wait(ctx, min(n, int64(max))); err != nil {
					return Content{}, err
				}
				b, n, err = r.Read(ctx, p, uri, int(min(n, int64(max))))
			}
			if err == nil {
				return Content{b, n}, nil
			}
			last = err
		}
		return Content{}, last
	})
}
