// Package serverstest has third-party MCP servers for the tests of several packages.
package serverstest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/revision"
)

// Empty starts an MCP server that offers nothing, and returns its URL. It calls saw,
// unless that is nil, for each request: with its MCP method, empty for a GET, and its
// headers. The server ends with the test.
func Empty(t testing.TB, saw func(method string, h http.Header)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, map[string]any{"initialize": initialized("x", map[string]any{})}, saw)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// initialized is the result of initialize in a stateful revision of MCP.
func initialized(name string, capabilities map[string]any) any {
	return map[string]any{"protocolVersion": revision.Stateful, "capabilities": capabilities,
		"serverInfo": map[string]any{"name": name, "version": "1"}}
}

// answer answers a request with the result of its method. It has no other answers than
// that to server/discover, which a stateful server does not know.
func answer(w http.ResponseWriter, r *http.Request, results map[string]any, saw func(method string, h http.Header)) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.NewDecoder(r.Body).Decode(&m) // a GET has no body
	if saw != nil {
		saw(m.Method, r.Header)
	}
	a := map[string]any{"jsonrpc": "2.0", "id": m.ID}
	switch result, ok := results[m.Method]; {
	case ok:
		a["result"] = result
	case m.Method == "server/discover":
		a["error"] = map[string]any{"code": -32601, "message": "no"}
	default:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	say(w, 200, a)
}

// Dial dials whatever it is asked for, as the Reach of a servers.Config.
func Dial(ctx context.Context, _ auth.Principal, _ bool, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}
