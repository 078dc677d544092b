// Mcppeer is an MCP server with one tool, made with the official SDK:
//
//	mcppeer                  over stdio
//	mcppeer tools=N          over stdio, with N more tools
//	mcppeer ADDRESS          over Streamable HTTP
//	mcppeer ADDRESS URL      not a server, but a proxy that passes all on to URL
//	mcppeer ADDRESS = TEXT   no tool, but TEXT as the result of each call
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch len(args) {
	case 0:
		return echo(0).Run(context.Background(), &mcp.StdioTransport{})
	case 1:
		var more int
		if n, _ := fmt.Sscanf(args[0], "tools=%d", &more); n == 1 {
			return echo(more).Run(context.Background(), &mcp.StdioTransport{})
		}
		server := echo(0)
		return http.ListenAndServe(args[0],
			mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	case 2:
		to, err := url.Parse(args[1])
		if err != nil {
			return err
		}
		return http.ListenAndServe(args[0],
			&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	default:
		return http.ListenAndServe(args[0], constant(args[2]))
	}
}

// query is the schema of the tools that echo adds.
const query = `{"type": "object", "required": ["query"], "properties": {
	"query": {"type": "string", "description": "The words to look for."},
	"labels": {"type": "array", "items": {"type": "string"}},
	"state": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
	"page": {"type": "integer", "minimum": 1, "default": 1}}}`

// echo returns a server with the tool echo, and as many more.
func echo(more int) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "mcppeer", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object",
		"properties": map[string]any{"text": map[string]any{"type": "string"}}}},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
		})
	for n := range more {
		server.AddTool(&mcp.Tool{Name: fmt.Sprintf("find_%d", n), InputSchema: json.RawMessage(query),
			Description: "Finds the records that match a query, the newest ones first, and returns a page of them."},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
	}
	return server
}

// constant is the smallest server that a client of the revision 2025-11-25 can call.
type constant string

func (c constant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ID     json.RawMessage
		Method string
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&q) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	result := string(c)
	switch q.Method {
	case "initialize":
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"constant","version":"1"}}`
	case "tools/call":
	default:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)
}
