//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

// Package relay proxies requests of clients to third-party servers, whose answers it
// returns as the bytes that came. A call may have to ask its client's user in the middle:
// in the stateless protocol, the call is suspended until its client retries it with the
// answer.
package relay

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

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

// New returns a relay. The key, of 32 bytes, seals the state that clients carry between two
// parts of a call; without it such calls end with the server.
func New(h *hub.Hub, l *limit.Limiter, log *slog.Logger, key []byte) *Relay {
	return &Relay{Hub: h, Limits: l, Log: log, seal: newSeal(key)}
}

// Request is what all that is passed on has in common.
type Request struct {
	Method       string
	Key          string          // name or URI
	Own          bool            // it calls a tool of Sandlot's own
	Arguments    json.RawMessage // of a tool
	Writer       ReplyWriter
	Stateless    bool            // the protocol is
	Capabilities json.RawMessage // the client's
	Meta         map[string]any
	Params       rpc.Object
	Inputs       tool.Inputs
	Holds        *limit.Holds // where the answer counts; nil: nowhere
}

// ReplyWriter reaches the client of a running call.
type ReplyWriter interface {
	// Client tells the clients of one principal apart.
	Client() string
	// Tell sends a notification of the call. That the client disconnected, the call
	// itself finds out.
	Tell(ctx context.Context, method string, params json.RawMessage)
	// Ask sends a request that the client supports, and waits for its answer.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

// Capabilities are a client's. The SDK's own JSON of them has roots for every client.
func Capabilities(c *mcp.ClientCapabilities) json.RawMessage {
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

// visibleMeta is the part of a client's _meta that a third-party server may see.
func visibleMeta(meta map[string]any) rpc.Object {
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

// call makes the call of which a request is a part, or all.
func (y *Relay) call(ctx context.Context, calls *Calls, q *Request, c tool.Client, in tool.Inputs,
	held *limit.Held) (json.RawMessage, error) {
	if q.Method != "tools/call" {
		return y.Hub.Proxy(ctx, tool.Request{Principal: calls.Principal, Method: q.Method, Params: q.Params,
			Client: c, Meta: visibleMeta(q.Meta), Inputs: in, Held: held})
	}
	call := tool.Call{Principal: calls.Principal, Name: q.Key, Args: q.Arguments, Client: c, Held: held}
	if q.Own {
		progress := NewProgress(func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			c.Tell("notifications/progress", b)
		})
		defer progress.Stop()
		call.Progress = progress.Say
	} else {
		call.Meta, call.Inputs = visibleMeta(q.Meta), in
	}
	res, err := y.Hub.Call(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case q.Own:
		return json.Marshal(rpc.Result(res))
	}
	return res.Raw, nil
}

// Result is Answer for the SDK.
func (y *Relay) Result(ctx context.Context, calls *Calls, q *Request) (mcp.Result, error) {
	b, err := y.Answer(ctx, calls, q)
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

// Answer returns the result object, or the error for the client.
func (y *Relay) Answer(ctx context.Context, calls *Calls, q *Request) (b json.RawMessage, err error) {
	if q.Stateless {
		b, err = y.retrying(ctx, calls, q)
	} else {
		c := &client{q: q, ctx: ctx}
		b, err = y.call(ctx, calls, q, c, tool.Inputs{}, q.Holds.Held())
		c.said.Flush(ctx, flushTimeout)
		c.said.End()
	}
	if err != nil {
		return nil, y.failure(ctx, q, err)
	}
	return b, nil
}

func (y *Relay) failure(ctx context.Context, q *Request, err error) error {
	failed := rpc.Fail(ctx, y.Log, q.Method+" "+fault.Clip(q.Key), err)
	_, refused := errors.AsType[*tool.Refusal](err)
	if q.Method == "resources/read" && !refused && fault.Is(err, fault.NotFound) {
		return mcp.ResourceNotFoundError(q.Key)
	}
	return failed
}
