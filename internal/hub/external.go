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

// HasExternal says whether there can be third-party servers at all.
func (h *Hub) HasExternal() bool { return h.external != nil }

// Offered is what third-party servers offer to one principal. A list that did not change
// is the same slice again.
type Offered struct {
	Tools                         []tool.Tool
	Prompts, Resources, Templates []tool.Item
}

// External returns what third-party servers offer, for an edge that keeps lists for its
// clients.
func (h *Hub) External(ctx context.Context, p auth.Principal) Offered {
	if h.external == nil {
		return Offered{}
	}
	e := h.external
	return Offered{e.Tools(ctx, p), e.Prompts(p), e.Resources(p), e.Templates(p)}
}

// Ready waits until third-party servers have listed what they offer, or ctx ends. It says
// whether it waited.
func (h *Hub) Ready(ctx context.Context, p auth.Principal) bool {
	return h.external != nil && h.external.Ready(ctx, p)
}

// proxied are the operations of the requests that third-party servers answer.
var proxied = map[string]policy.Operation{
	"prompts/get":         policy.PromptGet,
	"resources/read":      policy.ResourceRead,
	"completion/complete": policy.CompletionComplete,
}

// Proxy sends a request to the third-party server that it is for. It returns the whole
// result object, as MCP has it.
func (h *Hub) Proxy(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	q := Request{Principal: r.Principal, Operation: proxied[r.Method], Client: r.Client}
	return Do(ctx, h, q, func(ctx context.Context) (json.RawMessage, error) {
		if h.external == nil {
			return nil, fault.New(fault.NotFound, "no server answers %s", fault.Clip(r.Method))
		}
		return h.external.Pass(ctx, r)
	})
}

// Subscription is a client's wish to be notified of a resource's changes.
type Subscription struct {
	// Client tells the clients of one principal apart.
	Client string
	// URI is the resource's; empty: a resource of Sandlot's own, which never changes
	// by itself.
	URI string
	// End ends the subscription.
	End bool
}

func (h *Hub) subscribe(ctx context.Context, p auth.Principal, s Subscription) (None, error) {
	if h.external == nil || s.URI == "" {
		return None{}, nil
	}
	if s.End {
		return None{}, h.external.Unsubscribe(ctx, p, s.Client, s.URI)
	}
	return None{}, h.external.Subscribe(ctx, p, s.Client, s.URI)
}

// SetLevel sets from which level on a client gets the log messages of servers. The
// request went through the door before.
func (h *Hub) SetLevel(ctx context.Context, p auth.Principal, client, level string) {
	if h.external != nil {
		h.external.SetLevel(ctx, p, client, level)
	}
}

// Left says that a client disconnected. It does not wait.
func (h *Hub) Left(p auth.Principal, client string) {
	if h.external != nil {
		h.external.Left(p, client)
	}
}

// ResourceTemplates lists the URI templates of Sandlot's own resources.
func (h *Hub) ResourceTemplates() []tool.Link {
	var all []tool.Link
	for _, r := range h.readers {
		all = append(all, r.ResourceTemplates()...)
	}
	return all
}

// Content is a resource: at most as much of its data as was asked for, and its whole
// size in bytes.
type Content struct {
	tool.Blob
	Size int64
}

// Read asks for at most Max bytes of a resource of Sandlot's own.
type Read struct {
	URI string
	Max int
	// Held counts a large resource before it is read; nil: nothing counts it.
	Held *limit.Held
}

func (h *Hub) readResource(ctx context.Context, p auth.Principal, r Read) (Content, error) {
	var last error = fault.New(fault.NotFound, "resource not found: %s", fault.Clip(r.URI))
	for _, reader := range h.readers {
		b, size, err := reader.Read(ctx, p, r.URI, min(r.Max, limit.Large))
		if err == nil && size > int64(len(b.Data)) && len(b.Data) < r.Max {
			most := min(size, int64(r.Max))
			if err := r.Held.Wait(ctx, most); err != nil {
				return Content{}, err
			}
			b, size, err = reader.Read(ctx, p, r.URI, int(most))
		}
		if err == nil {
			return Content{b, size}, nil
		}
		last = err
	}
	return Content{}, last
}
