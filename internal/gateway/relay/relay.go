//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

// Package relay makes calls that may ask the client questions: those of third-party servers,
// whose answers it returns unchanged, and those of Sandlot's tools that elicit. In the
// stateful protocol, the client gets the question while it waits. In the stateless protocol,
// the call is suspended until the client retries it with the answer.
package relay

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Relay makes calls.
type Relay struct {
	Hub    *hub.Hub
	Limits *limit.Limiter
	Log    *slog.Logger
	// Used is called after a call of a third-party tool that has succeeded; nil: nobody wants to know.
	Used func(p auth.Principal, name string)
	seal seal
}

// New returns a relay. The key, of 32 bytes, encrypts the requestState of results that ask for
// input. Without it the key is random, and no state is valid after a restart.
func New(h *hub.Hub, l *limit.Limiter, log *slog.Logger, key []byte) *Relay {
	return &Relay{Hub: h, Limits: l, Log: log, seal: newSeal(key)}
}

// Request is a client's request, of either protocol. Two edges fill it, field by field: what they have of a request, the
// SDK's types and the bytes of a message, has nothing in common that a constructor could take.
type Request struct {
	Method       string
	Key          string          // the name or URI of the tool, prompt or resource
	Own          bool            // it calls one of Sandlot's own tools
	Arguments    json.RawMessage // of a tool
	Writer       ReplyWriter
	Stateless    bool   // it is of the stateless protocol
	Revision     string // of MCP, that of the client
	Results      toolview.Results
	Client       string          // the name that the client sends
	Capabilities json.RawMessage // the client's
	Meta         map[string]any
	Params       rpc.Object
	Inputs       tool.Inputs
	Answers      *limit.Answers // counts the answer; nil: the answer is not counted
}

// ReplyWriter sends messages to the client of a running call.
type ReplyWriter interface {
	// Client returns an id that distinguishes the clients of one principal.
	Client() string
	// Notify sends a notification of the call. It reports no error: if the client is gone, the
	// call itself ends.
	Notify(ctx context.Context, method string, params json.RawMessage)
	// Ask sends the client a request that it supports, and waits for the answer.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

// Capabilities returns the JSON of a client's capabilities. The SDK's own JSON has roots for
// every client.
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

// visibleMeta returns the part of a client's _meta that a third-party server may see.
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

// call makes a call and waits for its result. Q is the request that began it.
func (r *Relay) call(ctx context.Context, calls *Calls, q *Request, c tool.Client, inputs tool.Inputs,
	reservation *limit.Reservation) (json.RawMessage, error) {
	if q.Method != "tools/call" {
		return r.Hub.Proxy(ctx, tool.Request{Principal: calls.Principal, Method: q.Method, Params: q.Params,
			Client: c, Meta: visibleMeta(q.Meta), Inputs: inputs, Reservation: reservation})
	}
	call := tool.NewCall(calls.Principal, q.Key, q.Arguments, reservation)
	call.Client = c
	external := !q.Own
	if q.Own { // a call of call_tool is that of the tool that it names
		call, external = r.Hub.Resolve(ctx, call)
	}
	if !external {
		defer Report(&call, func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			c.Notify("notifications/progress", b)
		})()
	} else {
		call.Meta, call.Inputs = visibleMeta(q.Meta), inputs
	}
	res, err := r.Hub.Call(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case res.Raw == nil:
		return json.Marshal(rpc.Result(res, q.Results))
	}
	if r.Used != nil {
		r.Used(calls.Principal, call.Name)
	}
	return res.Raw, nil
}

// SDKResult is Answer with a result for the SDK.
func (r *Relay) SDKResult(ctx context.Context, calls *Calls, q *Request) (mcp.Result, error) {
	b, err := r.Answer(ctx, calls, q)
	if err != nil {
		return nil, err
	}
	result, err := rpc.ReadRawResult(b, q.Stateless)
	if err != nil {
		return nil, r.clientError(ctx, q, err)
	}
	if q.Method == "resources/read" && q.Stateless {
		result.SetDefaults(rpc.Object{"ttlMs": json.RawMessage("0"), "cacheScope": json.RawMessage(`"private"`)})
	}
	return result, nil
}

// Answer answers a request with the MCP result object, or the error for the client.
func (r *Relay) Answer(ctx context.Context, calls *Calls, q *Request) (b json.RawMessage, err error) {
	if q.Stateless {
		b, err = r.answerStateless(ctx, calls, q)
	} else {
		c := &client{q: q, ctx: ctx}
		b, err = r.call(ctx, calls, q, c, tool.Inputs{}, q.Answers.NewReservation())
		c.notifications.Flush(ctx, flushTimeout)
		c.notifications.End()
	}
	if err != nil {
		failed := r.clientError(ctx, q, err)
		if q.Method == "tools/call" {
			if result := rpc.FailedCall(err, q.Key, q.Own, q.Results); result != nil {
				return json.Marshal(result)
			}
		}
		return nil, failed
	}
	if q.Method != "tools/call" {
		return rpc.ConformResult(b, q.Revision), nil
	}
	b = rpc.ConformResult(rpc.WithoutEmptyText(b), q.Revision) // also of what call_tool has called
	if toolview.ReadsJSON(q.Client) {
		b = rpc.WithJSONAsData(b)
	}
	return b, nil
}

// clientError logs an error and returns the error for the client.
func (r *Relay) clientError(ctx context.Context, q *Request, err error) error {
	failed := rpc.LoggedError(ctx, r.Log, q.Method+" "+fault.Clip(q.Key), err)
	_, isExternal := errors.AsType[*tool.ExternalError](err)
	if q.Method == "resources/read" && !isExternal && fault.Is(err, fault.NotFound) {
		return mcp.ResourceNotFoundError(q.Key)
	}
	return failed
}
