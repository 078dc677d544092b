package hub

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/rawjson"
	"sandlot/internal/tool"
)

// HasExternal reports whether this server supports third-party servers.
func (h *Hub) HasExternal() bool { return h.external != nil }

// ExternalFeatures is what third-party servers offer to one principal. While a list does not
// change, it is the same slice.
type ExternalFeatures struct {
	Tools                         []tool.Tool
	Prompts, Resources, Templates []tool.Item
}

// External returns what third-party servers offer, as far as the principal's token has the scope to
// use it. It is for the gateway, which stores lists for its clients; a client's request for a list goes
// through Do.
func (h *Hub) External(ctx context.Context, p auth.Principal) ExternalFeatures {
	if h.external == nil {
		return ExternalFeatures{}
	}
	e, features := h.external, ExternalFeatures{}
	if policy.InScope(p, policy.MCPCall) {
		features.Tools = e.Tools(ctx, p)
	}
	if policy.InScope(p, policy.PromptGet) {
		features.Prompts = e.Prompts(p)
	}
	if policy.InScope(p, policy.ResourceRead) {
		features.Resources, features.Templates = e.Resources(p), e.Templates(p)
	}
	return features
}

// WaitReady waits until third-party servers have listed their features, or ctx ends. It
// reports whether it had to wait.
func (h *Hub) WaitReady(ctx context.Context, p auth.Principal) bool {
	return h.external != nil && h.external.WaitReady(ctx, p)
}

// proxied are the operations of the methods that third-party servers answer.
var proxied = map[string]policy.Operation{
	"prompts/get":         policy.PromptGet,
	"resources/read":      policy.ResourceRead,
	"completion/complete": policy.CompletionComplete,
}

// Proxy sends a request to the third-party server that it is for, and returns the whole MCP
// result object.
func (h *Hub) Proxy(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	q := Request{Principal: r.Principal, Operation: proxied[r.Method], user: &tool.User{Client: r.Client},
		snapshot: h.takeSnapshot()}
	if h.external != nil && h.needsDetail(ctx, q) {
		d := h.external.Detail(r)
		q.Detail, q.Resource, r.Decided = d.Text, h.resourceOf(r.Principal, d), &d
	}
	return Do(ctx, h, q, func(ctx context.Context) (json.RawMessage, error) {
		if h.external == nil {
			return nil, fault.New(fault.NotFound, "no server answers %s", fault.Clip(r.Method))
		}
		return h.external.Proxy(ctx, r)
	})
}

// Subscription is a client's subscription to a resource's changes, or the end of one.
type Subscription struct {
	// Client distinguishes the clients of one principal.
	Client string
	// URI is the resource's; empty: one of Sandlot's own, which have no notifications of
	// changes.
	URI string
	// Cancel ends the subscription.
	Cancel bool
}

// resource implements resourceInput.
func (s Subscription) resource(h *Hub, p auth.Principal) policy.Resource {
	if h.external == nil || s.URI == "" {
		return policy.Resource{}
	}
	return h.resourceOf(p, h.external.Detail(tool.Request{Principal: p, Method: "resources/read",
		Params: map[string]json.RawMessage{"uri": rawjson.Quote(s.URI)}}))
}

func (h *Hub) subscribe(ctx context.Context, p auth.Principal, s Subscription) (None, error) {
	if h.external == nil || s.URI == "" {
		return None{}, nil
	}
	if s.Cancel {
		return None{}, h.external.Unsubscribe(ctx, p, s.Client, s.URI)
	}
	return None{}, h.external.Subscribe(ctx, p, s.Client, s.URI)
}

// SetLevel sets the lowest level of the servers' log messages that a client gets. The gateway
// has authorized the request already.
func (h *Hub) SetLevel(ctx context.Context, p auth.Principal, client, level string) {
	if h.external != nil {
		h.external.SetLevel(ctx, p, client, level)
	}
}

// ClientGone ends the subscriptions of a client that disconnected. It does not wait for
// servers.
func (h *Hub) ClientGone(p auth.Principal, client string) {
	if h.external != nil {
		h.external.ClientGone(p, client)
	}
}

// ResourceTemplates lists the URI templates of Sandlot's own resources.
func (h *Hub) ResourceTemplates() []tool.Link {
	var all []tool.Link
	for _, r := range h.resourceReaders {
		all = append(all, r.ResourceTemplates()...)
	}
	return all
}

// ResourceContent is a resource's data, at most as much as the request's Max, and the whole
// size in bytes.
type ResourceContent struct {
	tool.Blob
	Size int64
}

// ResourceRead is a request for at most Max bytes of one of Sandlot's own resources.
type ResourceRead struct {
	URI string
	Max int
	// Reservation counts a large resource before it is read; nil: nothing counts it.
	Reservation *limit.Reservation
}

// detail implements detailInput.
func (r ResourceRead) detail(*Hub, auth.Principal) string { return r.URI }

// resource implements resourceInput.
func (r ResourceRead) resource(h *Hub, p auth.Principal) policy.Resource {
	for _, reader := range h.resourceReaders {
		if session, _, ok := reader.File(r.URI); ok {
			return SessionID(session).resource(h, p)
		}
	}
	return policy.Resource{}
}

// mayReadFile asks policy about a resource that is a file of a session, as for reading the file.
func (h *Hub) mayReadFile(ctx context.Context, p auth.Principal, reader tool.ResourceReader, uri string) error {
	session, file, ok := reader.File(uri)
	if !ok {
		return nil
	}
	_, err := h.permit(ctx, h.fileRequest(policy.FileRead, p, FilePath{SessionID(session), file}))
	return err
}

func (h *Hub) readResource(ctx context.Context, p auth.Principal, r ResourceRead) (ResourceContent, error) {
	var last error = fault.New(fault.NotFound, "resource not found: %s", fault.Clip(r.URI))
	for _, reader := range h.resourceReaders {
		if err := h.mayReadFile(ctx, p, reader, r.URI); err != nil {
			return ResourceContent{}, err
		}
		b, size, err := reader.Read(ctx, p, r.URI, min(r.Max, limit.LargeAnswer))
		if err == nil && size > int64(len(b.Data)) && len(b.Data) < r.Max {
			most := min(size, int64(r.Max))
			if err := r.Reservation.Reserve(ctx, most); err != nil {
				return ResourceContent{}, err
			}
			b, size, err = reader.Read(ctx, p, r.URI, int(most))
		}
		if err == nil {
			return ResourceContent{b, size}, nil
		}
		last = err
	}
	return ResourceContent{}, last
}
