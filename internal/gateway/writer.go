//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
	"sandlot/internal/rawjson"
)

// sessionWriter is the relay.ReplyWriter of a call that the SDK has read and will answer.
type sessionWriter struct {
	session *mcp.ServerSession
	token   any // the progress token; nil: the client wants no notifications of progress
}

func (w sessionWriter) Client() string { return clientID(w.session) }

func (w sessionWriter) Notify(ctx context.Context, method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		var p mcp.ProgressNotificationParams
		if w.token == nil || json.Unmarshal(params, &p) != nil {
			return
		}
		p.ProgressToken = w.token
		_ = w.session.NotifyProgress(ctx, &p)
	case "notifications/message":
		var p mcp.LoggingMessageParams
		if json.Unmarshal(params, &p) == nil {
			_ = w.session.Log(ctx, &p)
		}
	}
}

func (w sessionWriter) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	var res any
	var err error
	switch method {
	case "elicitation/create":
		var p mcp.ElicitParams
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, relay.Unreadable(method)
		}
		if schema, ok := rawjson.Members(params); ok && schema["requestedSchema"] != nil {
			p.RequestedSchema = schema["requestedSchema"] // a map has no order of the fields
		}
		res, err = w.session.Elicit(ctx, &p)
	case "sampling/createMessage":
		var p mcp.CreateMessageWithToolsParams
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, relay.Unreadable(method)
		}
		res, err = w.session.CreateMessageWithTools(ctx, &p)
	case "roots/list":
		res, err = w.session.ListRoots(ctx, &mcp.ListRootsParams{})
	default:
		return nil, relay.Unsupported(method)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(res)
}
