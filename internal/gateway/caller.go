package gateway

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
)

// caller is a client that waits for its call, as third-party servers see it.
type caller struct {
	q    *passedOn
	said outbox // of the call; sent before its result

	mu  sync.Mutex
	ctx context.Context // of the request that waits; nil while none does
}

// ID implements tool.Client.
func (c *caller) ID() string {
	return c.q.line.client()
}

// Can implements tool.Client.
func (c *caller) Can() json.RawMessage { return c.q.can }

// Retries implements tool.Client.
func (c *caller) Retries() bool { return false }

// waiting returns the context of the request that waits, which leads what is
// sent to its own stream.
func (c *caller) waiting() (context.Context, *passedOn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx, c.q
}

// flushing is how long a result waits for what was said before it.
const flushing = 2 * time.Second

// Tell implements tool.Client. It does not wait for the client; one that went
// away is noticed by the call itself.
func (c *caller) Tell(method string, params json.RawMessage) {
	ctx, q := c.waiting()
	if ctx == nil {
		return
	}
	c.said.put(notice{log: method == "notifications/message", size: len(params), send: func() { q.line.tell(ctx, method, params) }})
}

// Ask implements tool.Client.
func (c *caller) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !able(c.q.can, method) {
		return nil, cannot(method)
	}
	waits, q := c.waiting()
	if waits == nil {
		return nil, cannot(method)
	}
	ask, cancel := context.WithCancel(waits)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return q.line.ask(ask, method, params)
}

func unreadable(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the parameters of " + method + " could not be read"}
}

// cannot says what a client is not able to do.
func cannot(method string) error {
	what := map[string]string{"elicitation/create": "cannot ask its user (elicitation)", "sampling/createMessage": "does not lend its model (sampling)",
		"roots/list": "names no roots"}[method]
	if what == "" {
		what = "knows no " + fault.Clip(method)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "the client that made this call " + what}
}

// able says whether a client's capabilities name what the method needs.
func able(can json.RawMessage, method string) bool {
	var c struct{ Elicitation, Sampling, Roots json.RawMessage }
	_ = json.Unmarshal(can, &c) // what cannot be read can nothing
	has := func(m json.RawMessage) bool { return len(m) > 0 && string(m) != "null" }
	switch method {
	case "elicitation/create":
		return has(c.Elicitation)
	case "sampling/createMessage":
		return has(c.Sampling)
	case "roots/list":
		return has(c.Roots)
	}
	return false
}
