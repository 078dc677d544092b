package gateway

import (
	"context"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/event"
	"sandlot/internal/limit"
)

// answersHeader is a header of requests to the SDK: the key of the request's entry in
// runningAnswers. It replaces what a client sends in it.
const answersHeader = "Sandlot-Answers"

// runningAnswers are the reservations for the answers to an endpoint's running requests, by
// the value of answersHeader. The SDK's handlers get only the request's headers, and find the
// reservations here.
type runningAnswers struct {
	lastEntry atomic.Int64
	entries   sync.Map // of runningRequest
}

// runningRequest is what a handler has to know of the HTTP request.
type runningRequest struct {
	answers *limit.Answers
	origin  event.Origin
}

// add adds an entry until remove is called, and returns its key for answersHeader.
func (u *runningAnswers) add(answers *limit.Answers, origin event.Origin) (header string, remove func()) {
	header = strconv.FormatInt(u.lastEntry.Add(1), 10)
	u.entries.Store(header, runningRequest{answers, origin})
	return header, func() { u.entries.Delete(header) }
}

// find returns the entry of a request from the SDK; nil: the answer is not counted.
func (u *runningAnswers) find(extra *mcp.RequestExtra) *limit.Answers {
	return u.request(extra).answers
}

// origin returns the origin of a request from the SDK.
func (u *runningAnswers) origin(extra *mcp.RequestExtra) event.Origin { return u.request(extra).origin }

func (u *runningAnswers) request(extra *mcp.RequestExtra) runningRequest {
	if extra == nil {
		return runningRequest{}
	}
	entry, _ := u.entries.Load(extra.Header.Get(answersHeader))
	r, _ := entry.(runningRequest)
	return r
}

// originMiddleware gives the context of each request of the SDK its origin, for events.
func originMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if o := e.answers.origin(req.GetExtra()); o.Address != "" {
				ctx = event.WithOrigin(ctx, o)
			}
			trace, session := "", ""
			if p := req.GetParams(); p != nil && !isNil(p) {
				trace, _ = p.GetMeta()["traceparent"].(string)
			}
			if s := req.GetSession(); s != nil {
				session = s.ID()
			}
			return next(event.WithMCP(ctx, method, session, trace), method, req)
		}
	}
}

// isNil reports whether params are a nil pointer, as those of a request without params.
func isNil(p mcp.Params) bool {
	v := reflect.ValueOf(p)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
