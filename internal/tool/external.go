package tool

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/limit"
)

// Client is the client that made a call. While the call runs, it gets the requests and
// notifications of the third-party server that the call is for.
type Client interface {
	// ID distinguishes the clients of one principal. It is not secret, and gives no rights.
	ID() string
	// Capabilities returns what the client declared: MCP's ClientCapabilities object.
	Capabilities() json.RawMessage
	// Retries reports whether the client supports results that ask for input (MCP
	// 2026-07-28): it retries the call with the input. Other clients get requests while they
	// wait for the result.
	Retries() bool
	// Ask sends the client a request, and waits for its answer: a result object of MCP.
	// The method is elicitation/create, sampling/createMessage or roots/list. Ask returns an
	// error for a method that the client does not support.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Notify sends the client a notification: notifications/progress, without its token, or
	// notifications/message.
	Notify(method string, params json.RawMessage)
}

// Hearing is a Client whose log messages go where other clients' go too.
type Hearing interface {
	// HeardBy returns the same text for clients whose log messages go to the same place.
	HeardBy() string
}

// Elicitation is what a third-party server asks its user in a call of a program in the background.
type Elicitation struct {
	Owner   string // the principal's id
	Session string
	Caller  string          // the program, in words
	Server  string          // as the program named it
	Tool    string          // the server's own name
	Params  json.RawMessage // MCP's parameters of elicitation/create
}

// Inputs is the input of a client that retries a call.
type Inputs struct {
	Responses json.RawMessage // an object: the answers, by the names of the requests for input
	State     string          // the requestState of the result that asked for input
}

// Empty reports whether the call is not a retry.
func (i Inputs) Empty() bool { return len(i.Responses) == 0 && i.State == "" }

// Item is one prompt, resource or resource template of a third-party server.
type Item struct {
	// Key is the name, URI or URI template under which clients see it.
	Key string
	// Raw is its whole MCP definition, sanitized, and with Key in place of the server's own
	// name or URI.
	Raw json.RawMessage
}

// Request is a client's request that a third-party server answers.
type Request struct {
	Principal auth.Principal
	// Method is prompts/get, resources/read or completion/complete.
	Method string
	Params map[string]json.RawMessage
	Meta   map[string]json.RawMessage
	Client Client // nil: the client can get no requests and notifications
	Inputs Inputs
	// Reservation counts a large answer for the principal until the client has read it.
	Reservation *limit.Reservation
	// Decided is what policy was asked about. A request that would be for something else by now fails; nil: policy
	// did not have to know.
	Decided *Detail
}

// External is the source of third-party servers' tools, prompts and resources, and proxies
// requests to these servers. The lists that it returns must not be changed. It returns the
// same slice again while nothing has changed.
type External interface {
	Source
	// WaitReady waits until all servers have listed their features, or ctx ends. It reports
	// whether it had to wait.
	WaitReady(ctx context.Context, p auth.Principal) bool
	Prompts(p auth.Principal) []Item
	Resources(p auth.Principal) []Item
	Templates(p auth.Principal) []Item
	// Proxy sends a request to its server, and returns the whole MCP result object. An error
	// is a fault, or has the server's own error in its chain, an *ExternalError.
	Proxy(ctx context.Context, r Request) (json.RawMessage, error)
	// Detail returns what policy has to know of a request: the server, and, as in "github/review", the names of the
	// server and of the prompt, or the resource's URI. The zero value: no server has it.
	Detail(r Request) Detail
	// Subscribe and Unsubscribe begin and end a client's subscription to a resource, and
	// SetLevel sets the client's logging level. The string client distinguishes the clients
	// of one principal.
	Subscribe(ctx context.Context, p auth.Principal, client, uri string) error
	Unsubscribe(ctx context.Context, p auth.Principal, client, uri string) error
	SetLevel(ctx context.Context, p auth.Principal, client, level string)
	// ClientGone ends the subscriptions of a client that has disconnected. It does not wait
	// for servers.
	ClientGone(p auth.Principal, client string)
}

// ExternalError is the JSON-RPC error of a third-party server. Clients get it unchanged.
type ExternalError struct {
	Code    int64
	Message string
	Data    json.RawMessage
}

// Error implements error.
func (r *ExternalError) Error() string { return r.Message }
