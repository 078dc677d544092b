// Package toolfiles makes the tool tree: the files by which code in a sandbox finds and calls the tools of its owner's
// third-party MCP servers. It owns the form of that tree, and that nothing in a definition, which is hostile text, can
// leave the place in a file where it belongs. It is pure: definitions in, files out.
package toolfiles

import "encoding/json"

// Folder is where the tree is in a sandbox, Socket where its programs call tools, Python what PYTHONPATH gets.
const (
	Folder = "/run/mcp"
	Socket = Folder + "/socket"
	Python = Folder + "/python"
)

// Server is a third-party MCP server, as one principal has it.
type Server struct {
	Name, Title, Instructions string
	State                     string // why it cannot be called now, in words; "": it can
	Tools                     []Tool
}

// Tool is a tool of a server.
type Tool struct {
	Name               string // as clients call it
	Remote             string // the server's own name for it
	Title, Description string
	Input, Output      json.RawMessage // schemas; Output may be nil
	Held               string          // why it is held back, in words; "": it can be called
}

// File is a file of the tree, or a symbolic link.
type File struct {
	Path    string // below Folder, with slashes
	Content []byte
	Link    string // the target of a symbolic link; "": a file
}

// Tree returns the files of the tree, sorted by path; none if there are no servers.
func Tree(servers []Server) []File {
	if len(servers) == 0 {
		return nil
	}
	return nil
}
