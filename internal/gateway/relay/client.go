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

// client is the tool.Client of a running call.
type client struct {
	q             *Request
	notifications Notifier // of the call; flushed before its result is sent

	mu  sync.Mutex
	ctx context.Context // of the request that waits for the result; nil: the call is suspended
}

// ID implements tool.Client.
func (c *client) ID() string {
	return c.q.Writer.Client()
}

// Capabilities implements tool.Client.
func (c *client) Capabilities() json.RawMessage { return c.q.Capabilities }

// Retries implements tool.Client.
func (c *client) Retries() bool { return false }

// waitingRequest returns the request that waits for the result, and its context, by which the
// SDK finds the request's stream.
func (c *client) waitingRequest() (context.Context, *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx, c.q
}

// flushTimeout is how long a result waits until the notifications before it are sent.
const flushTimeout = 2 * time.Second

// Notify implements tool.Client. It does not wait for the client. If the client is gone, the
// call itself ends.
func (c *client) Notify(method string, params json.RawMessage) {
	ctx, q := c.waitingRequest()
	if ctx == nil {
		return
	}
	c.notifications.Put(Notification{Log: method == "notifications/message", Size: len(params),
		Send: func() { q.Writer.Notify(ctx, method, params) }})
}

// Ask implements tool.Client.
func (c *client) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !Supports(c.q.Capabilities, method) {
		return nil, Unsupported(method)
	}
	requestCtx, q := c.waitingRequest()
	if requestCtx == nil {
		return nil, Unsupported(method)
	}
	askCtx, cancel := context.WithCancel(requestCtx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return q.Writer.Ask(askCtx, method, params)
}

// Unreadable returns the error for parameters of a server's request that cannot be read.
func Unreadable(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
		Message: "the parameters of " + method + " could not be read"}
}

// missingCapability says what a client without the capability for a method cannot do.
var missingCapability = map[string]string{
	"elicitation/create":     "cannot ask its user (elicitation)",
	"sampling/createMessage": "does not lend its model (sampling)",
	"roots/list":             "names no roots",
}

// Unsupported returns the error for a server's request that the client does not support.
func Unsupported(method string) error {
	what := missingCapability[method]
	if what == "" {
		what = "knows no " + fault.Clip(method)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "the client that made this call " + what}
}

// Supports reports whether a client's capabilities include that for a method.
func Supports(capabilities json.RawMessage, method string) bool {
	var c rpc.Object
	_ = json.Unmarshal(capabilities, &c) // an invalid value has no capabilities
	capability, _, _ := strings.Cut(method, "/")
	value := c[capability]
	return missingCapability[method] != "" && len(value) > 0 && string(value) != "null"
}
