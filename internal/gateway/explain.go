package gateway

import (
	"context"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Explain serves one client over a pair of streams in place of a server that could not start, until the input ends. It
// says why in its instructions, and in the answer of each call: clients show their users both, and no log.
func Explain(ctx context.Context, version, why string, in io.ReadCloser, out io.WriteCloser) error {
	text := "Sandlot could not start, so there is no computer to run anything on. Tell the user why, and that this " +
		"MCP server has to be started again afterwards. " + why
	s := mcp.NewServer(&mcp.Implementation{Name: "sandlot", Title: "Sandlot", Version: version},
		&mcp.ServerOptions{Instructions: text})
	s.AddTool(&mcp.Tool{Name: "execute_code", Description: text, InputSchema: map[string]any{"type": "object"}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
		})
	return s.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out})
}
