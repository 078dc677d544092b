package gateway

import (
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// methods are those that the SDK serves. It answers any other of the older era in
// words that are no JSON-RPC.
var methods = map[string]bool{
	"initialize": true, "ping": true, "server/discover": true, "completion/complete": true, "logging/setLevel": true,
	"tools/list": true, "tools/call": true, "prompts/list": true, "prompts/get": true,
	"resources/list": true, "resources/read": true, "resources/templates/list": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "subscriptions/listen": true,
	"notifications/cancelled": true, "notifications/initialized": true, "notifications/progress": true,
	"notifications/roots/list_changed": true,
}

// unknown answers a message of the older era whose method there is not, and says
// whether it did. In the newer one the SDK does.
func unknown(w http.ResponseWriter, r *http.Request, e *endpoint, m message) bool {
	session := r.Header.Get("Mcp-Session-Id")
	older := session != "" || r.Header.Get("Mcp-Protocol-Version") < statelessFrom
	switch {
	case !older, m.Method == "", methods[m.Method], session != "" && !e.lives(session):
		return false
	case len(m.ID) == 0 && strings.HasPrefix(m.Method, "notifications/"):
		w.WriteHeader(http.StatusAccepted) // nobody waits for an answer
		return true
	case !isID(m.ID):
		return false
	}
	writeJSON(w, http.StatusOK, rpcError(m.ID, jsonrpc.CodeMethodNotFound, "Method not found: \""+clip(m.Method)+"\"", nil))
	return true
}
