//lint:file-ignore SA1019 clients of the older era have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

// rawResult is a result as a third-party server gave it: what the SDK's types
// do not know is in it too.
type rawResult struct {
	mcp.ResultBase
	fields rpc.Object // without _meta
}

// MarshalJSON implements json.Marshaler.
func (r *rawResult) MarshalJSON() ([]byte, error) {
	if len(r.Meta) == 0 {
		return json.Marshal(r.fields)
	}
	meta, err := json.Marshal(r.Meta)
	if err != nil {
		return nil, err
	}
	r.fields["_meta"] = meta
	return json.Marshal(r.fields)
}

// raw makes a result of an object. The newer era's results say whether they are
// complete.
func raw(b json.RawMessage, newer bool) (*rawResult, error) {
	r := &rawResult{}
	if err := json.Unmarshal(b, &r.fields); err != nil || r.fields == nil {
		return nil, fault.New(fault.Connection, "the server's answer is no object")
	}
	if m, ok := r.fields["_meta"]; ok {
		delete(r.fields, "_meta")
		var meta rpc.Object
		if json.Unmarshal(m, &meta) == nil {
			r.Meta = mcp.Meta{}
			for k, v := range meta {
				r.Meta[k] = v
			}
		}
	}
	if _, typed := r.fields["resultType"]; !newer {
		delete(r.fields, "resultType")
	} else if !typed {
		r.fields["resultType"] = json.RawMessage(`"complete"`)
	}
	return r, nil
}

// passing answers for third-party servers, in front of the SDK's own handlers,
// which know of their tools, prompts and resources what they need to announce
// changes and to check headers.
func (g *Gateway) passing(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			unread := e.unread.to(req.GetExtra())
			switch r := req.(type) {
			case *mcp.ListToolsRequest, *mcp.ListPromptsRequest, *mcp.ListResourcesRequest, *mcp.ListResourceTemplatesRequest:
				g.fresh(ctx, e)
			case *mcp.CallToolRequest:
				foreign := g.foreign(ctx, e, method, r.Params.Name)
				if foreign || e.asks[r.Params.Name] {
					q := passed(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
					q.answers = unread
					e.short.take(e, r, q.can)
					if foreign {
						return g.pass(ctx, e, q, g.theirTool(e, q, r.Params.Arguments))
					}
					return g.pass(ctx, e, q, g.askingTool(e, q, r.Params.Arguments))
				}
				if _, own := e.own[featureKey{method, r.Params.Name}]; !own && g.Hub.HasExternal() {
					if why := g.Hub.Missing(ctx, e.principal, r.Params.Name); why != nil {
						return nil, rpc.Error(why)
					}
				}
				e.short.take(e, r, nil)
			case *mcp.GetPromptRequest:
				if g.foreign(ctx, e, method, r.Params.Name) {
					return g.passRequest(ctx, e, unread, passed(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState))
				}
			case *mcp.ReadResourceRequest:
				if g.Hub.HasExternal() && !ours(r.Params.URI) {
					return g.passRequest(ctx, e, unread, passed(method, r, r.Params.URI, r.Params.InputResponses, r.Params.RequestState))
				}
			case *mcp.CompleteRequest:
				if g.Hub.HasExternal() && r.Params.Ref != nil && !ours(r.Params.Ref.URI) {
					return g.passRequest(ctx, e, unread, passed(method, r, r.Params.Ref.Name+r.Params.Ref.URI, nil, ""))
				}
			}
			age := e.short.now()
			res, err := g.answered(ctx, e, method, func(ctx context.Context) (mcp.Result, error) { return next(ctx, method, req) })
			if err != nil {
				return res, err
			}
			if res, err = e.whole(res, newer(req)); err == nil {
				if p, ok := res.(*page); ok {
					if err := unread.Held().Reserve(ctx, p.size()); err != nil {
						return nil, rpc.Error(err)
					}
					e.short.keep(g, req, p, age)
				}
			}
			return res, err
		}
	}
}

// fresh brings up to date what there is: what was connected a moment ago is
// announced a moment later, and is there now.
func (g *Gateway) fresh(ctx context.Context, e *endpoint) {
	g.ready(ctx, e)
	g.features(e)
}

// patience is how long a list waits for servers of which nothing is known yet.
const patience = 10 * time.Second

// ready waits for servers that start for the first time.
func (g *Gateway) ready(ctx context.Context, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if g.Hub.Ready(ctx, e.principal) {
		g.features(e)
	}
}

// versioned is every request of a client.
type versioned interface{ ProtocolVersion() string }

func newer(req mcp.Request) bool {
	v, ok := req.(versioned)
	return ok && v.ProtocolVersion() >= rpc.Stateless
}

// request is what the methods that are passed on have in common.
type passedOn struct {
	method string
	key    string // name or URI
	line   line
	newer  bool
	can    json.RawMessage
	meta   map[string]any
	params rpc.Object
	inputs tool.Inputs

	answers *limit.Holds
}

func passed[P mcp.Params](method string, r *mcp.ServerRequest[P], key string, responses mcp.InputResponseMap, state string) *passedOn {
	q := &passedOn{method: method, key: key, newer: newer(r), meta: r.Params.GetMeta(), params: rpc.Object{}}
	q.can = abilities(r.ClientCapabilities())
	if b, err := json.Marshal(r.Params); err == nil {
		_ = json.Unmarshal(b, &q.params)
	}
	for _, own := range []string{"_meta", "inputResponses", "requestState"} {
		delete(q.params, own)
	}
	l := sessionLine{session: r.Session}
	if t, ok := any(r.Params).(interface{ GetProgressToken() any }); ok {
		l.token = t.GetProgressToken()
	}
	q.line = l
	if responses != nil {
		q.inputs.Responses, _ = json.Marshal(responses)
	}
	q.inputs.State = state
	return q
}

// abilities is what a client can. The SDK's own form says that every client has
// roots.
func abilities(c *mcp.ClientCapabilities) json.RawMessage {
	if c == nil {
		return json.RawMessage("{}")
	}
	var all rpc.Object
	b, _ := json.Marshal(c)
	_ = json.Unmarshal(b, &all)
	if c.RootsV2 == nil {
		delete(all, "roots")
	}
	b, _ = json.Marshal(all)
	return b
}

// passable is what of a client's _meta a third-party server may see.
func passable(meta map[string]any) rpc.Object {
	out := rpc.Object{}
	for k, v := range meta {
		if k == "progressToken" || strings.HasPrefix(k, "io.modelcontextprotocol/") {
			continue
		}
		if b, err := json.Marshal(v); err == nil && len(b) <= 16<<10 && len(out) < 32 {
			out[k] = b
		}
	}
	return out
}

// theirTool calls a tool of a third-party server.
func (g *Gateway) theirTool(e *endpoint, q *passedOn, args json.RawMessage) answerer {
	return func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		res, err := g.Hub.Call(ctx, tool.Call{Principal: e.principal, Name: q.key, Args: args,
			Client: client, Meta: passable(q.meta), Inputs: in, Held: held})
		if err != nil {
			return nil, err
		}
		return res.Raw, nil
	}
}

// askingTool calls a tool of ours that may ask its client's user: in front of the
// SDK's handlers too, which cannot suspend a call.
func (g *Gateway) askingTool(e *endpoint, q *passedOn, args json.RawMessage) answerer {
	return func(ctx context.Context, client tool.Client, _ tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		n := newProgress(func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			client.Tell("notifications/progress", b)
		})
		defer n.stop()
		res, err := g.Hub.Call(ctx, tool.Call{Principal: e.principal, Name: q.key, Args: args, Progress: n.say, Client: client, Held: held})
		if err != nil {
			return nil, err
		}
		return json.Marshal(rpc.Result(res))
	}
}

func (g *Gateway) passRequest(ctx context.Context, e *endpoint, unread *limit.Holds, q *passedOn) (mcp.Result, error) {
	q.answers = unread
	return g.pass(ctx, e, q, func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		return g.Hub.Pass(ctx, tool.Request{Principal: e.principal, Method: q.method, Params: q.params,
			Client: client, Meta: passable(q.meta), Inputs: in, Held: held})
	})
}

// answerer makes the call of which a request is a part, or all.
type answerer func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error)

func (g *Gateway) pass(ctx context.Context, e *endpoint, q *passedOn, answer answerer) (mcp.Result, error) {
	b, err := g.passedAnswer(ctx, e, q, answer)
	if err != nil {
		return nil, err
	}
	r, err := raw(b, q.newer)
	if err != nil {
		return nil, g.passError(ctx, q, err)
	}
	if q.method == "resources/read" && q.newer {
		r.defaults(rpc.Object{"ttlMs": json.RawMessage("0"), "cacheScope": json.RawMessage(`"private"`)})
	}
	return r, nil
}

// passedAnswer returns what was answered, or the error that the client is to be
// told.
func (g *Gateway) passedAnswer(ctx context.Context, e *endpoint, q *passedOn, answer answerer) (b json.RawMessage, err error) {
	if q.newer {
		b, err = g.passRetrying(ctx, e, q, answer)
	} else {
		c := &caller{q: q, ctx: ctx}
		b, err = answer(ctx, c, tool.Inputs{}, q.answers.Held())
		c.said.flush(ctx, flushing)
		c.said.end()
	}
	if err != nil {
		return nil, g.passError(ctx, q, err)
	}
	return b, nil
}

func (r *rawResult) defaults(d rpc.Object) {
	for k, v := range d {
		if _, ok := r.fields[k]; !ok {
			r.fields[k] = v
		}
	}
	r.fields["cacheScope"] = json.RawMessage(`"private"`) // what one principal sees
}

func (g *Gateway) passError(ctx context.Context, q *passedOn, err error) error {
	_, theirs := errors.AsType[*tool.Refusal](err)
	if _, sdk := errors.AsType[*jsonrpc.Error](err); theirs || sdk {
		return rpc.Error(err)
	}
	f := fault.From(err)
	rpc.Report(ctx, g.Log, q.method+" "+fault.Clip(q.key), f)
	if q.method == "resources/read" && f.Kind == fault.NotFound {
		return mcp.ResourceNotFoundError(q.key)
	}
	return rpc.Error(f)
}
