//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/revision"
	"sandlot/internal/toolview"
)

// proxyMiddleware answers requests for third-party servers, and calls of Sandlot's tools that
// elicit, instead of the SDK's own handlers. Of third-party tools, prompts and resources, the
// SDK knows only what it needs to notify clients of changes and to check headers.
func (g *Gateway) proxyMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			answers := e.answers.find(req.GetExtra())
			if q := g.relayRequest(ctx, e, method, req); q != nil {
				q.Method, q.Answers = method, answers
				return g.relay.SDKResult(ctx, e.calls, q)
			}
			switch r := req.(type) {
			case *mcp.ListToolsRequest, *mcp.ListPromptsRequest, *mcp.ListResourcesRequest,
				*mcp.ListResourceTemplatesRequest:
				g.waitReady(ctx, e)
				g.sync(e)
			case *mcp.CallToolRequest:
				_, own := e.own()[featureKey{method, r.Params.Name}]
				if !own && (g.Hub.HasExternal() || e.principal.Scope != "") {
					if missing := g.Hub.CheckTool(ctx, e.principal, r.Params.Name); missing != nil {
						return failedCall(missing, r.Params.Name, fault.Is(missing, fault.Forbidden), e.resultsOf(r.Extra, r.ClientInfo()))
					}
				}
				e.fast.Accept(r, nil)
			}
			return g.answerBySDK(ctx, e, next, method, req)
		}
	}
}

// answerBySDK has the SDK answer a request, and completes the definitions of a list.
func (g *Gateway) answerBySDK(ctx context.Context, e *endpoint, next mcp.MethodHandler, method string,
	req mcp.Request) (mcp.Result, error) {
	remember := e.fast.BeginList()
	res, err := g.authorize(ctx, e, method, func(ctx context.Context) (mcp.Result, error) {
		return next(ctx, method, req)
	})
	if err != nil {
		return res, err
	}
	res, err = e.completeList(res, rpc.IsStateless(req))
	if p, ok := res.(*rpc.Page); ok && err == nil {
		if err := e.answers.find(req.GetExtra()).NewReservation().ReserveAnswer(ctx, p.Size()); err != nil {
			return nil, rpc.Error(err)
		}
		remember(req, p)
	}
	return res, err
}

// relayRequest returns the request for the relay, if a third-party server or a tool that
// elicits has to answer it; nil: the SDK answers it.
func (g *Gateway) relayRequest(ctx context.Context, e *endpoint, method string, req mcp.Request) *relay.Request {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		external := g.isExternal(ctx, e, method, r.Params.Name)
		if !external {
			look := g.look(e, r.Params.Name)
			if !look.Asks && !(look.Hosts && relay.Supports(relay.Capabilities(r.ClientCapabilities()), "elicitation/create")) {
				return nil
			}
		}
		q := newRelayRequest(r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
		q.Own, q.Arguments, q.Results = !external, r.Params.Arguments, e.resultsOf(r.Extra, r.ClientInfo())
		if info := r.ClientInfo(); info != nil {
			q.Client = info.Name
		}
		e.fast.Accept(r, q.Capabilities)
		return q
	case *mcp.GetPromptRequest:
		if g.isExternal(ctx, e, method, r.Params.Name) {
			return newRelayRequest(r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
		}
	case *mcp.ReadResourceRequest:
		if g.Hub.HasExternal() && !isOwnURI(r.Params.URI) {
			return newRelayRequest(r, r.Params.URI, r.Params.InputResponses, r.Params.RequestState)
		}
	case *mcp.CompleteRequest:
		if g.Hub.HasExternal() && r.Params.Ref != nil && !isOwnURI(r.Params.Ref.URI) {
			return newRelayRequest(r, r.Params.Ref.Name+r.Params.Ref.URI, nil, "")
		}
	}
	return nil
}

// listTimeout is how long a client's list waits for servers that have not listed their
// features yet.
const listTimeout = 10 * time.Second

// waitReady waits for servers that have not listed their features yet, and adds them.
func (g *Gateway) waitReady(ctx context.Context, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if g.Hub.WaitReady(ctx, e.principal) {
		g.sync(e)
	}
}

// newRelayRequest returns the relay's request for one of the SDK.
func newRelayRequest[P mcp.Params](r *mcp.ServerRequest[P], key string, responses mcp.InputResponseMap,
	state string) *relay.Request {
	q := &relay.Request{Key: key, Stateless: rpc.IsStateless(r), Meta: r.Params.GetMeta(),
		Capabilities: relay.Capabilities(r.ClientCapabilities()), Params: rpc.Object{}}
	if b, err := json.Marshal(r.Params); err == nil {
		_ = json.Unmarshal(b, &q.Params)
	}
	for _, field := range []string{"_meta", "inputResponses", "requestState"} {
		delete(q.Params, field)
	}
	w := sessionWriter{session: r.Session}
	if t, ok := any(r.Params).(interface{ GetProgressToken() any }); ok {
		w.token = t.GetProgressToken()
	}
	q.Writer, q.Revision = w, revisionOf(r.Session, q.Stateless)
	if responses != nil {
		q.Inputs.Responses, _ = json.Marshal(responses)
	}
	q.Inputs.State = state
	return q
}

// revisionOf returns the revision of MCP that a client speaks.
func revisionOf(s *mcp.ServerSession, stateless bool) string {
	if stateless {
		return revision.Stateless
	}
	asked := ""
	if i := s.InitializeParams(); i != nil {
		asked = i.ProtocolVersion
	}
	return rpc.StatefulRevision(asked)
}

// resultsOf returns the form of results for a client: what its request asks for, or its address, or what is known of it.
func (e *endpoint) resultsOf(extra *mcp.RequestExtra, client *mcp.Implementation) toolview.Results {
	asked := toolview.Results("")
	if extra != nil {
		asked, _ = toolview.ParseResults(extra.Header.Get(rpc.ResultsHeader)) // it was checked before
	}
	switch {
	case asked != "":
		return asked
	case client == nil:
		return toolview.Both
	}
	return toolview.ResultsOf(client.Name)
}

// failedCall returns the answer to a call of a tool that failed.
func failedCall(err error, name string, own bool, form toolview.Results) (mcp.Result, error) {
	if r := rpc.FailedCall(err, name, own, form); r != nil {
		return r, nil
	}
	return nil, rpc.Error(err)
}

// look returns whom a call of one of Sandlot's own tools may ask.
func (g *Gateway) look(e *endpoint, name string) hub.Look {
	l := g.Hub.Look(e.principal, name)
	l.Asks = l.Asks || e.elicits[name]
	return l
}
