// Package serverstest has third-party MCP servers for the tests of several packages.
package serverstest

import (
	"context"
	"encoding/json"
	"fmt"
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
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m) // a GET has no body
		if saw != nil {
			saw(m.Method, r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		switch m.Method {
		case "initialize":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{},`+
				`"serverInfo":{"name":"x","version":"1"}}}`, m.ID, revision.Stateful)
		case "server/discover":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Reach dials whatever it is asked for, as the Reach of a servers.Config.
func Reach(ctx context.Context, _ auth.Principal, _ bool, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}
