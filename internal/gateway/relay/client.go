package relay

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
)

// client is the client of a running call, as third-party servers see it.
type client struct {
	q    *Request
	said Notifier // notifications of the call; sent before its result

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

// waiting returns the request that waits, and its context, by which the SDK finds the
// request's stream.
func (c *client) waiting() (context.Context, *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx, c.q
}

// flushTimeout is how long a result waits for the notifications before it.
const flushTimeout = 2 * time.Second

// Tell implements tool.Client. It does not wait for the client; that it disconnected, the
// call itself finds out.
func (c *client) Tell(method string, params json.RawMessage) {
	ctx, q := c.waiting()
	if ctx == nil {
		return
	}
	c.said.Put(Notification{Log: method == "notifications/message", Size: len(params),
		Send: func() { q.Writer.Tell(ctx, method, params) }})
}

// Ask implements tool.Client.
func (c *client) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !Supports(c.q.Capabilities, method) {
		return nil, Unsupported(method)
	}
	waits, q := c.waiting()
	if waits == nil {
		return nil, Unsupported(method)
	}
	ask, cancel := context.WithCancel(waits)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return q.Writer.Ask(ask, method, params)
}

// Unreadable is the error for parameters that cannot be read.
func Unreadable(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
		Message: "the parameters of " + method + " could not be read"}
}

// unsupported is what a client without a capability does not do, by method.
var unsupported = map[string]string{
	"elicitation/create":     "cannot ask its user (elicitation)",
	"sampling/createMessage": "does not lend its model (sampling)",
	"roots/list":             "names no roots",
}

// Unsupported is the error for a request that a client does not support.
func Unsupported(method string) error {
	what := unsupported[method]
	if what == "" {
		what = "knows no " + fault.Clip(method)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "the client that made this call " + what}
}

// Supports says whether a client's capabilities name what the method needs.
func Supports(capabilities json.RawMessage, method string) bool {
	var c rpc.Object
	_ = json.Unmarshal(capabilities, &c) // an unreadable value has none
	capability, _, _ := strings.Cut(method, "/")
	value := c[capability]
	return unsupported[method] != "" && len(value) > 0 && string(value) != "null"
}
