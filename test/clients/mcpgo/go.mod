// The agent's own module: its dependencies are not those of the server.
module mcpgo

go 1.26.3

require github.com/mark3labs/mcp-go v1.2.1
