//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/revision"
	"sandlot/internal/tool"
)

// debugHandler lowers the SDK's log records to the level debug: the SDK logs each connection
// and each mistake of a client at higher levels.
type debugHandler struct{ slog.Handler }

func debugLogger(log *slog.Logger) *slog.Logger { return slog.New(debugHandler{log.Handler()}) }

// Enabled implements slog.Handler.
func (h debugHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (h debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h debugHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return debugHandler{h.Handler.WithAttrs(a)}
}

// WithGroup implements slog.Handler.
func (h debugHandler) WithGroup(name string) slog.Handler {
	return debugHandler{h.Handler.WithGroup(name)}
}

const instructions = `Sandlot gives you an isolated Linux computer. ` +
	`execute_code runs Python, JavaScript or bash and keeps variables between calls; ` +
	`execute_command runs shell commands; sandbox_*_file tools move files. Files in /workspace persist. ` +
	`Without session_id you use your own default computer; pass the session_id of a result to stay on it, ` +
	`or "new" for a fresh one. Long jobs: execute_command with background: true, then read_process.`

func (g *Gateway) implementation() *mcp.Implementation {
	return &mcp.Implementation{Name: "sandlot", Title: "Sandlot", Version: g.Version}
}

// newEmptyEndpoint returns an endpoint without features. Its calls end with tokenCtx.
func (g *Gateway) newEmptyEndpoint(tokenCtx context.Context, k endpointKey) *endpoint {
	p := k.principal
	e := &endpoint{
		principal: p,
		wanted:    k.wanted,
		calls:     &relay.Calls{Principal: p, TokenContext: tokenCtx},
		elicits:   map[string]bool{},
		closing:   map[*mcp.ServerSession]bool{},
		notifiers: map[*mcp.ServerSession]*relay.Notifier{},
		lastUsed:  time.Now(),
	}
	e.server = mcp.NewServer(g.implementation(), &mcp.ServerOptions{
		Logger:       debugLogger(g.Log),
		PageSize:     1000,
		GetSessionID: func() string { return e.kept.newID() },
		Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
			Prompts:   &mcp.PromptCapabilities{ListChanged: true},
			//lint:ignore SA1019 clients of the stateful protocol set the level
			Logging: &mcp.LoggingCapabilities{},
		},
		InitializedHandler: func(context.Context, *mcp.InitializedRequest) { g.connected(p) },
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.CacheScope = "private"
		},
		SubscribeHandler: func(ctx context.Context, r *mcp.SubscribeRequest) error {
			return g.subscribe(ctx, p, r.Session, hub.Subscription{URI: r.Params.URI})
		},
		UnsubscribeHandler: func(ctx context.Context, r *mcp.UnsubscribeRequest) error {
			return g.subscribe(ctx, p, r.Session, hub.Subscription{URI: r.Params.URI, Cancel: true})
		},
		CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			// Sandlot's own tools have no completions.
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
		},
	})
	e.fast = g.newFastPath(e)
	e.server.AddReceivingMiddleware(originMiddleware(e), g.limitMiddleware(e), g.recoverMiddleware,
		g.keepMiddleware(e), g.levelMiddleware(e), g.proxyMiddleware(e), g.instructionsMiddleware(e), sortTools)
	return e
}

// subscribe begins or ends a session's subscription to a resource.
func (g *Gateway) subscribe(ctx context.Context, p auth.Principal, s *mcp.ServerSession, q hub.Subscription) error {
	q.Client = clientID(s)
	if isOwnURI(q.URI) {
		q.URI = ""
	}
	_, err := hub.Subscribe.Do(ctx, g.Hub, p, q)
	if q.URI != "" {
		g.watchEnd(p, s)
	}
	if err != nil {
		return rpc.Error(err)
	}
	return nil
}

// clientID returns an id that distinguishes the clients of one principal: the session's. In
// the stateless protocol each request has a session without an id.
func clientID(s *mcp.ServerSession) string {
	if id := s.ID(); id != "" {
		return id
	}
	return fmt.Sprintf("%p", s)
}

// watchEnd reports the end of a session to the hub, which ends the session's subscriptions at
// third-party servers.
func (g *Gateway) watchEnd(p auth.Principal, s *mcp.ServerSession) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.Hub.HasExternal() || g.watchedSessions[s] {
		return
	}
	g.watchedSessions[s] = true
	g.goroutines.Go(func() {
		_ = s.Wait() // the error says how it ended, which does not matter
		g.mu.Lock()
		delete(g.watchedSessions, s)
		g.mu.Unlock()
		g.Hub.ClientGone(p, clientID(s))
	})
}

// levelMiddleware passes on the logging levels that clients set.
func (g *Gateway) levelMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			//lint:ignore SA1019 clients of the stateful protocol set the level
			if l, ok := req.(*mcp.ServerRequest[*mcp.SetLoggingLevelParams]); ok && err == nil && g.Hub.HasExternal() {
				e.fast.ExcludeSession(l.Session.ID())
				g.Hub.SetLevel(ctx, e.principal, clientID(l.Session), string(l.Params.Level))
				g.watchEnd(e.principal, l.Session)
			}
			return res, err
		}
	}
}

// forEachEndpoint calls do for the endpoints of one principal; an empty owner means all.
func (g *Gateway) forEachEndpoint(owner string, do func(*endpoint)) {
	g.mu.Lock()
	var all []*endpoint
	for _, e := range g.endpoints {
		all = append(all, e)
	}
	for e := range g.stdioEndpoints {
		all = append(all, e)
	}
	g.mu.Unlock()
	for _, e := range all {
		if owner == "" || e.principal.ID == owner {
			do(e)
		}
	}
}

// SyncFeatures updates what a principal's clients see of third-party servers, after the
// servers' features changed; an empty owner means all principals.
func (g *Gateway) SyncFeatures(owner string) {
	g.forEachEndpoint(owner, func(e *endpoint) {
		var err error
		defer fault.Recover(context.Background(), g.Log, "features", &err) // it logs the panic
		g.ensureFilled(e)
		g.sync(e)
	})
}

// SyncOwn updates what all clients see of Sandlot's own features, after their descriptions changed.
func (g *Gateway) SyncOwn() {
	g.forEachEndpoint("", func(e *endpoint) {
		var err error
		defer fault.Recover(context.Background(), g.Log, "features", &err) // it logs the panic
		g.ensureFilled(e)
		g.syncOwn(e)
	})
}

// ResourceUpdated notifies the subscribed clients of a principal that a resource changed. It
// does not wait for clients.
func (g *Gateway) ResourceUpdated(owner, uri string) {
	g.forEachEndpoint(owner, func(e *endpoint) {
		e.notify(nil, relay.Notification{Key: uri, Send: func() {
			_ = e.server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: uri})
		}})
	})
}

// ForwardLog sends a principal's clients a log message of a third-party server that belongs to
// no call. It does not wait for clients.
func (g *Gateway) ForwardLog(owner string, params json.RawMessage) {
	var p mcp.LoggingMessageParams
	if json.Unmarshal(params, &p) != nil {
		return
	}
	g.forEachEndpoint(owner, func(e *endpoint) {
		for s := range e.server.Sessions() {
			if i := s.InitializeParams(); i != nil && !revision.IsStateless(i.ProtocolVersion) {
				e.notify(s, relay.Notification{Log: true, Size: len(params), Send: func() {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					_ = s.Log(ctx, &p) // fails if the client is gone
				}})
			}
		}
	})
}

// notify queues a notification outside of a call, for one session or, if s is nil, for all.
func (e *endpoint) notify(s *mcp.ServerSession, n relay.Notification) {
	e.mu.Lock()
	defer e.mu.Unlock()
	notifier := e.notifiers[s]
	if notifier == nil {
		maps.DeleteFunc(e.notifiers, func(_ *mcp.ServerSession, o *relay.Notifier) bool { return !o.Sending() })
		notifier = &relay.Notifier{}
		e.notifiers[s] = notifier
	}
	notifier.Put(n)
}

// sortTools is middleware that lists tools without arguments first, and then tools without
// required arguments: programs that check a server call its first tool without arguments.
func sortTools(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		r, err := next(ctx, method, req)
		if l, ok := r.(*mcp.ListToolsResult); ok && err == nil {
			slices.SortStableFunc(l.Tools, func(a, b *mcp.Tool) int { return argumentRank(a) - argumentRank(b) })
		}
		return r, err
	}
}

// argumentRank is 0 for a tool without arguments, 1 for one without required arguments, and
// else 2.
func argumentRank(t *mcp.Tool) int {
	s, ok := t.InputSchema.(map[string]any)
	if !ok || s["required"] != nil {
		return 2
	}
	if p, ok := s["properties"].(map[string]any); ok && len(p) == 0 {
		return 0
	}
	return 1
}

// toolHandler returns the SDK's handler for one of Sandlot's own tools.
func (g *Gateway) toolHandler(e *endpoint, name string) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		c := tool.NewCall(e.principal, name, req.Params.Arguments, e.answers.find(req.Extra).NewReservation())
		if token := req.Params.GetProgressToken(); token != nil {
			defer relay.Report(&c, func(p *mcp.ProgressNotificationParams) {
				p.ProgressToken = token
				_ = req.Session.NotifyProgress(ctx, p) // if the client is gone, the call itself ends
			})()
		}
		r, err := g.Hub.Call(ctx, c)
		form := e.resultsOf(req.Extra, req.ClientInfo())
		if err != nil {
			failed := rpc.LoggedError(ctx, g.Log, name, err)
			if result := rpc.FailedCall(err, name, true, form); result != nil {
				return result, nil
			}
			return nil, failed
		}
		return rpc.Result(r, form), nil
	}
}

// maxResource is the largest resource that resources/read returns, in bytes.
const maxResource = 8 << 20

// resourceHandler returns the SDK's handler for Sandlot's own resources.
func (g *Gateway) resourceHandler(e *endpoint) mcp.ResourceHandler {
	return func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		b, err := hub.ReadResource.Do(ctx, g.Hub, e.principal,
			hub.ResourceRead{URI: req.Params.URI, Max: maxResource, Reservation: e.answers.find(req.Extra).
				NewReservation()})
		if err != nil {
			failed := rpc.LoggedError(ctx, g.Log, "resources/read", err)
			if fault.Is(err, fault.NotFound) {
				return nil, mcp.ResourceNotFoundError(req.Params.URI)
			}
			return nil, failed
		}
		if b.Size > int64(len(b.Data)) {
			return nil, rpc.Error(fault.Limit("resource_bytes", b.Size, maxResource,
				"the file has %d bytes, and a resource is read "+
					"up to %d; use GET /v1/sessions/{id}/files/{path}", b.Size, maxResource))
		}
		c := &mcp.ResourceContents{URI: req.Params.URI, MIMEType: b.MIME}
		if utf8.Valid(b.Data) {
			c.Text = string(b.Data)
		} else {
			c.Blob = b.Data
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
	}
}
