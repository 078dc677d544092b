package event

import "context"

// Origin is where a request came from.
type Origin struct {
	// Token is the id of the request's token; empty: it had none.
	Token string `json:"token_id,omitempty"`
	// Service is the id of the service that acted for the principal; empty: the principal acted.
	Service string `json:"service,omitempty"`
	// Address is the client's IP address, or Socket.
	Address string `json:"address,omitempty"`
	// Caller is the code in a sandbox that called a tool, such as "code of session ID, run 3"; empty: no code did.
	Caller string `json:"called_by,omitempty"`
	// Trace is the request's traceparent header; empty: it had none. Readers do not see it.
	Trace string `json:"-"`
	// Method and ClientSession are the method and the session id of an MCP request; empty: it was
	// none, or is of no session. Readers do not see them.
	Method        string `json:"-"`
	ClientSession string `json:"-"`
}

// Socket is the address of clients on the owner's socket.
const Socket = "socket"

type originKey struct{}

// NewContext returns a context that carries the address and the traceparent of a request.
func NewContext(ctx context.Context, address, trace string) context.Context {
	return WithOrigin(ctx, Origin{Address: address, Trace: trace})
}

// WithMCP returns a context that also carries the method, the session id and the traceparent of
// an MCP request. An empty traceparent keeps that of the HTTP request.
func WithMCP(ctx context.Context, method, session, trace string) context.Context {
	o := FromContext(ctx)
	o.Method, o.ClientSession = method, session
	if trace != "" {
		o.Trace = trace
	}
	return WithOrigin(ctx, o)
}

// WithCaller returns a context that also carries the code that called a tool.
func WithCaller(ctx context.Context, caller string) context.Context {
	o := FromContext(ctx)
	o.Caller = caller
	return WithOrigin(ctx, o)
}

// WithOrigin returns a context that carries the origin of a request.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, &o)
}

// FromContext returns the origin of a request that ctx carries, if any.
func FromContext(ctx context.Context) Origin {
	if o, ok := ctx.Value(originKey{}).(*Origin); ok {
		return *o
	}
	return Origin{}
}
