//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
)

// sessionWriter is that of a call that the SDK reads and answers.
type sessionWriter struct {
	session *mcp.ServerSession
	token   any // of progress; nil: the client does not want to know
}

func (l sessionWriter) Client() string { return clientOf(l.session) }

func (l sessionWriter) Tell(ctx context.Context, method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		var p mcp.ProgressNotificationParams
		if l.token == nil || json.Unmarshal(params, &p) != nil {
			return
		}
		p.ProgressToken = l.token
		_ = l.session.NotifyProgress(ctx, &p)
	case "notifications/message":
		var p mcp.LoggingMessageParams
		if json.Unmarshal(params, &p) == nil {
			_ = l.session.Log(ctx, &p)
		}
	}
}

func (l sessionWriter) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	var res any
	var err error
	switch method {
	case "elicitation/create":
		var p mcp.ElicitParams
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, relay.Unreadable(method)
		}
		res, err = l.session.Elicit(ctx, &p)
	case "sampling/createMessage":
		var p mcp.CreateMessageWithToolsParams
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, relay.Unreadable(method)
		}
		res, err = l.session.CreateMessageWithTools(ctx, &p)
	case "roots/list":
		res, err = l.session.ListRoots(ctx, &mcp.ListRootsParams{})
	default:
		return nil, relay.Cannot(method)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(res)
}
