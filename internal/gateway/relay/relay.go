//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

// Package relay passes what clients ask for on to external servers, and what these
// answer back, as the bytes that came. A call may have to ask its client's user in the
// middle: where the protocol is stateless, the call is suspended until its client comes
// again with the answer.
package relay

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

// Relay makes the calls.
type Relay struct {
	Hub    *hub.Hub
	Limits *limit.Limiter
	Log    *slog.Logger
	seal   seal
}

// New returns one. The key, of 32 bytes, seals what clients carry for the server between
// two parts of a call; without it that ends with the server.
func New(h *hub.Hub, l *limit.Limiter, log *slog.Logger, key []byte) *Relay {
	return &Relay{Hub: h, Limits: l, Log: log, seal: newSeal(key)}
}

// Request is what all that is passed on has in common.
type Request struct {
	Method       string
	Key          string // name or URI
	Writer       ReplyWriter
	Stateless    bool            // the protocol is
	Capabilities json.RawMessage // what the client is able to do
	Meta         map[string]any
	Params       rpc.Object
	Inputs       tool.Inputs
	Holds        *limit.Holds // where the answer counts; nil: nowhere
}

// ReplyWriter is the way to a client while a call of it runs.
type ReplyWriter interface {
	// Client tells those of one principal apart.
	Client() string
	// Tell sends a notification of the call. A client that went away is noticed
	// by the call itself.
	Tell(ctx context.Context, method string, params json.RawMessage)
	// Ask asks what the client said that it can, and waits for its answer.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

// Abilities is what a client can. The SDK's own form says that every client has
// roots.
func Abilities(c *mcp.ClientCapabilities) json.RawMessage {
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

// Tool calls a tool of a third-party server.
func (y *Relay) Tool(calls *Calls, q *Request, args json.RawMessage) Answerer {
	return func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		res, err := y.Hub.Call(ctx, tool.Call{Principal: calls.Principal, Name: q.Key, Args: args,
			Client: client, Meta: passable(q.Meta), Inputs: in, Held: held})
		if err != nil {
			return nil, err
		}
		return res.Raw, nil
	}
}

// ElicitingTool calls a tool of ours that may ask its client's user: in front of the
// SDK's handlers too, which cannot suspend a call.
func (y *Relay) ElicitingTool(calls *Calls, q *Request, args json.RawMessage) Answerer {
	return func(ctx context.Context, client tool.Client, _ tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		n := NewProgress(func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			client.Tell("notifications/progress", b)
		})
		defer n.Stop()
		res, err := y.Hub.Call(ctx, tool.Call{Principal: calls.Principal, Name: q.Key, Args: args, Progress: n.Say, Client: client, Held: held})
		if err != nil {
			return nil, err
		}
		return json.Marshal(rpc.Result(res))
	}
}

// Other asks an external server for what is no tool.
func (y *Relay) Other(calls *Calls, q *Request) Answerer {
	return func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error) {
		return y.Hub.Proxy(ctx, tool.Request{Principal: calls.Principal, Method: q.Method, Params: q.Params,
			Client: client, Meta: passable(q.Meta), Inputs: in, Held: held})
	}
}

// Answerer makes the call of which a request is a part, or all.
type Answerer func(ctx context.Context, client tool.Client, in tool.Inputs, held *limit.Held) (json.RawMessage, error)

// Result is Answer, as the SDK takes it.
func (y *Relay) Result(ctx context.Context, calls *Calls, q *Request, answer Answerer) (mcp.Result, error) {
	b, err := y.Answer(ctx, calls, q, answer)
	if err != nil {
		return nil, err
	}
	r, err := rpc.ReadRaw(b, q.Stateless)
	if err != nil {
		return nil, y.failure(ctx, q, err)
	}
	if q.Method == "resources/read" && q.Stateless {
		r.Defaults(rpc.Object{"ttlMs": json.RawMessage("0"), "cacheScope": json.RawMessage(`"private"`)})
	}
	return r, nil
}

// Answer returns what was answered, or the error that the client is to be
// told.
func (y *Relay) Answer(ctx context.Context, calls *Calls, q *Request, answer Answerer) (b json.RawMessage, err error) {
	if q.Stateless {
		b, err = y.retrying(ctx, calls, q, answer)
	} else {
		c := &client{q: q, ctx: ctx}
		b, err = answer(ctx, c, tool.Inputs{}, q.Holds.Held())
		c.said.Flush(ctx, flushing)
		c.said.End()
	}
	if err != nil {
		return nil, y.failure(ctx, q, err)
	}
	return b, nil
}

func (y *Relay) failure(ctx context.Context, q *Request, err error) error {
	_, theirs := errors.AsType[*tool.Refusal](err)
	if _, sdk := errors.AsType[*jsonrpc.Error](err); theirs || sdk {
		return rpc.Error(err)
	}
	f := fault.From(err)
	rpc.Report(ctx, y.Log, q.Method+" "+fault.Clip(q.Key), f)
	if q.Method == "resources/read" && f.Kind == fault.NotFound {
		return mcp.ResourceNotFoundError(q.Key)
	}
	return rpc.Error(f)
}
