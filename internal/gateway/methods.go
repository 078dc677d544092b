package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/revision"
	"sandlot/internal/toolview"
)

// operations are the operations of the methods that the SDK answers by itself. The other
// requests are authorized where the gateway calls the hub: calls of tools, requests to
// third-party servers, Sandlot's own resources, and subscriptions.
var operations = map[string]policy.Operation{
	"initialize":               policy.ClientConnect,
	"server/discover":          policy.ClientConnect,
	"logging/setLevel":         policy.ClientSetLevel,
	"tools/list":               policy.ToolList,
	"prompts/list":             policy.PromptList,
	"prompts/get":              policy.PromptGet,
	"resources/list":           policy.ResourceList,
	"resources/templates/list": policy.ResourceList,
	"subscriptions/listen":     policy.ResourceSubscribe,
	"completion/complete":      policy.CompletionComplete,
}

// authorize has the hub authorize a request that the SDK answers by itself.
func (g *Gateway) authorize(ctx context.Context, e *endpoint, method string,
	answer func(context.Context) (mcp.Result, error)) (mcp.Result, error) {
	o, ok := operations[method]
	if !ok {
		return answer(ctx)
	}
	refused := true
	request := hub.Request{Principal: e.principal, Operation: o}
	res, err := hub.Do(ctx, g.Hub, request, func(ctx context.Context) (mcp.Result, error) {
		refused = false
		return answer(ctx)
	})
	if refused {
		return nil, rpc.Error(err)
	}
	return res, err
}

// methods are the methods that the SDK supports. In the stateful protocol, the SDK answers
// other methods with plain text and not with JSON-RPC.
var methods = map[string]bool{
	"initialize": true, "ping": true, "server/discover": true, "completion/complete": true, "logging/setLevel": true,
	"tools/list": true, "tools/call": true, "prompts/list": true, "prompts/get": true,
	"resources/list": true, "resources/read": true, "resources/templates/list": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "subscriptions/listen": true,
	"notifications/cancelled": true, "notifications/initialized": true, "notifications/progress": true,
	"notifications/roots/list_changed": true,
}

// refuseUnknownMethod answers a message with an unknown method, in the stateful protocol, and
// reports whether it answered. In the stateless protocol the SDK answers.
func refuseUnknownMethod(w http.ResponseWriter, r *http.Request, e *endpoint, m rpc.Message) bool {
	session := r.Header.Get("Mcp-Session-Id")
	stateful := session != "" || !revision.IsStateless(r.Header.Get("Mcp-Protocol-Version"))
	switch {
	case !stateful, m.Method == "", methods[m.Method], session != "" && !e.hasSession(session):
		return false
	case len(m.ID) == 0 && strings.HasPrefix(m.Method, "notifications/"):
		w.WriteHeader(http.StatusAccepted) // notifications have no answer
		return true
	case !rpc.IsID(m.ID):
		return false
	}
	message := "Method not found: \"" + fault.Clip(m.Method) + "\""
	rpc.Write(w, http.StatusOK, rpc.ErrorResponse(m.ID, jsonrpc.CodeMethodNotFound, message, nil))
	return true
}

// refuseDiscover answers server/discover of a client that goes on after a restart of the server only with the stateful
// protocol, and reports whether it answered. The answer is that of a server that has no other protocol: the client sends
// initialize next.
func refuseDiscover(w http.ResponseWriter, m rpc.Message) bool {
	if m.Method != "server/discover" || !rpc.IsID(m.ID) {
		return false
	}
	var params struct {
		Meta struct {
			Client struct{ Name string } `json:"io.modelcontextprotocol/clientInfo"`
		} `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &params) != nil || !toolview.LosesServers(params.Meta.Client.Name) {
		return false
	}
	rpc.Write(w, http.StatusNotFound, rpc.ErrorResponse(m.ID, jsonrpc.CodeMethodNotFound,
		"Method not found: this client has the stateful protocol; send initialize", nil))
	return true
}
