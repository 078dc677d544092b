package tool

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/limit"
)

// Client is the client that made a call, for requests and notifications of a third-party
// server while the call runs.
type Client interface {
	// ID tells clients of one principal apart. It is no secret and no handle.
	ID() string
	// Capabilities are those that the client declared: an object of MCP's
	// ClientCapabilities.
	Capabilities() json.RawMessage
	// Retries says that the client retries a call whose result asks for input (MCP
	// 2026-07-28), instead of being asked while it waits.
	Retries() bool
	// Ask asks the client and waits for its answer, a result object of MCP.
	// Method is elicitation/create, sampling/createMessage or roots/list.
	// A method that the client does not support is an error.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Tell sends a notification of the call: notifications/progress, without
	// its token, or notifications/message.
	Tell(method string, params json.RawMessage)
}

// Inputs is the input of a client that retries a call.
type Inputs struct {
	Responses json.RawMessage // an object of results, by the names that were asked for
	State     string          // the requestState of the result that asked
}

// Empty says whether the call is no retry.
func (i Inputs) Empty() bool { return len(i.Responses) == 0 && i.State == "" }

// Item is one prompt, resource or resource template of a third-party server.
type Item struct {
	// Key is its exposed name, URI or URI template.
	Key string
	// Raw is its whole definition as MCP has it, with that key, made safe.
	Raw json.RawMessage
}

// Request is a client's request that a third-party server answers.
type Request struct {
	Principal auth.Principal
	// Method is prompts/get, resources/read or completion/complete.
	Method string
	Params map[string]json.RawMessage
	Meta   map[string]json.RawMessage
	Client Client // nil: a client that cannot be asked
	Inputs Inputs
	// Held counts a large answer for the principal until the client has it.
	Held *limit.Held
}

// External gives the tools of third-party servers, and proxies other requests to them. A
// list that it returned is not changed later: the same slice again says that nothing
// changed.
type External interface {
	Source
	// Ready waits until what is offered is known, or ctx ends. It says whether
	// it waited.
	Ready(ctx context.Context, p auth.Principal) bool
	Prompts(p auth.Principal) []Item
	Resources(p auth.Principal) []Item
	Templates(p auth.Principal) []Item
	// Pass returns the whole result object, as MCP has it. Errors are faults,
	// or, with a *Refusal in the chain, what the server answered.
	Pass(ctx context.Context, r Request) (json.RawMessage, error)
	// Subscribe and Unsubscribe follow a resource's changes for one client, and
	// SetLevel says how much it wants to be told of what servers log. Client tells
	// those of one principal apart.
	Subscribe(ctx context.Context, p auth.Principal, client, uri string) error
	Unsubscribe(ctx context.Context, p auth.Principal, client, uri string) error
	SetLevel(ctx context.Context, p auth.Principal, client, level string)
	// Left says that a client is gone, with all that it wanted. It does not wait.
	Left(p auth.Principal, client string)
}

// Refusal is the JSON-RPC error of a third-party server, passed on as it is.
type Refusal struct {
	Code    int64
	Message string
	Data    json.RawMessage
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }
