package relay

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
)

// caller is a client that waits for its call, as third-party servers see it.
type client struct {
	q    *Request
	said Notifier // of the call; sent before its result

	mu  sync.Mutex
	ctx context.Context // of the request that waits; nil while none does
}

// ID implements tool.Client.
func (c *client) ID() string {
	return c.q.Writer.Client()
}

// Capabilities implements tool.Client.
func (c *client) Capabilities() json.RawMessage { return c.q.Capabilities }

// Retries implements tool.Client.
func (c *client) Retries() bool { return false }

// waiting returns the context of the request that waits, which leads what is
// sent to its own stream.
func (c *client) waiting() (context.Context, *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx, c.q
}

// flushing is how long a result waits for what was said before it.
const flushing = 2 * time.Second

// Tell implements tool.Client. It does not wait for the client; one that went
// away is noticed by the call itself.
func (c *client) Tell(method string, params json.RawMessage) {
	ctx, q := c.waiting()
	if ctx == nil {
		return
	}
	c.said.Put(Notification{Log: method == "notifications/message", Size: len(params), Send: func() { q.Writer.Tell(ctx, method, params) }})
}

// Ask implements tool.Client.
func (c *client) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !Able(c.q.Capabilities, method) {
		return nil, Cannot(method)
	}
	waits, q := c.waiting()
	if waits == nil {
		return nil, Cannot(method)
	}
	ask, cancel := context.WithCancel(waits)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return q.Writer.Ask(ask, method, params)
}

// Unreadable says that what is asked cannot be read.
func Unreadable(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the parameters of " + method + " could not be read"}
}

// Cannot says what a client is not able to do.
func Cannot(method string) error {
	what := map[string]string{"elicitation/create": "cannot ask its user (elicitation)", "sampling/createMessage": "does not lend its model (sampling)",
		"roots/list": "names no roots"}[method]
	if what == "" {
		what = "knows no " + fault.Clip(method)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "the client that made this call " + what}
}

// Able says whether a client's capabilities name what the method needs.
func Able(can json.RawMessage, method string) bool {
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
