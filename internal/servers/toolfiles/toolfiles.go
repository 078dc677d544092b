// Package toolfiles makes the tool tree: the files by which code in a sandbox finds and calls the tools of its owner's
// third-party MCP servers. It owns the form of that tree, and that nothing in a definition, which is hostile text, can
// leave the place in a file where it belongs. It is pure: definitions in, files out.
package toolfiles

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"slices"
)

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

const (
	maxServer = 1 << 20 // bytes of a server's files
	maxTree   = 8 << 20
	// maxApart is how many tools have a document of their own; where there are more, their documents are parts of
	// the servers'. A file costs a sandbox 2 KB, and a whole last page.
	maxApart = 100
)

var (
	//go:embed files/mcp_tools.py
	pythonPackage []byte
	//go:embed files/_client.py
	pythonClient []byte
	//go:embed files/_client.mjs
	javascriptClient []byte
	//go:embed files/_client.d.mts
	javascriptTypes []byte
)

// agent is the program that is the command mcp.
const agent = "/.sandlot/agent"

// served is a server with what is made of it.
type served struct {
	Server
	module string
	tools  []*described
	left   int  // tools that have no room
	apart  bool // each tool has a document of its own
}

// described is a tool with what is made of it.
type described struct {
	Tool
	module, name   string
	schema, output map[string]any
	arguments      []argument
	open           bool // it takes others, too
	brief          bool // it is one of many: texts are shorter where they are said for the second time

	python, pythonTypes, typescript, markdown string
}

func (t *described) hasTimeout() bool {
	return slices.ContainsFunc(t.arguments, func(a argument) bool { return a.python == "timeout" })
}

// Tree returns the files of the tree, sorted by path; none if there are no servers.
func Tree(servers []Server) []File {
	if len(servers) == 0 {
		return nil
	}
	servers = slices.Clone(servers)
	slices.SortStableFunc(servers, func(a, b Server) int { return cmp.Compare(a.Name, b.Name) })
	names, count := modules(servers), 0
	for _, s := range servers {
		count += len(s.Tools)
	}
	files := []File{{Path: "mcp", Link: agent}, {Path: "python/mcp_tools/__init__.py", Content: pythonPackage},
		{Path: "_client.py", Content: pythonClient}, {Path: "_client.mjs", Content: javascriptClient},
		{Path: "_client.d.mts", Content: javascriptTypes}}
	var all []*served
	for i, s := range servers {
		room := min(maxServer, (maxTree-maxServer)/len(servers))
		made := describe(s, names[i], room, count <= maxApart)
		all = append(all, made)
		files = append(files, made.files()...)
	}
	files = append(files, File{Path: "README.md", Content: []byte(rootReadme(all))},
		File{Path: IndexFile, Content: index(all)})
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// describe makes what is in the files of a server, within room bytes.
func describe(s Server, module string, room int, apart bool) *served {
	made := &served{Server: s, module: module, apart: apart}
	tools := slices.Clone(s.Tools)
	slices.SortStableFunc(tools, func(a, b Tool) int { return cmp.Compare(a.Remote, b.Remote) })
	tools = slices.CompactFunc(tools, func(a, b Tool) bool { return a.Remote == b.Remote })
	var texts []string
	for _, t := range tools {
		texts = append(texts, t.Remote)
	}
	room -= 4 * maxInstructions
	for i, name := range identifiers(texts, functionWords) {
		t := &described{Tool: tools[i], module: module, name: name, brief: !apart}
		t.read()
		size := t.size()
		if fair := room / (len(tools) - i); size > max(fair, 4<<10) { // too much for one tool: only its names
			t.Input, t.Output, t.Description = nil, nil, line(t.Description, maxLine)
			t.read()
			size = t.size()
		}
		if size > room {
			made.left = len(tools) - i
			break
		}
		room -= size
		made.tools = append(made.tools, t)
	}
	return made
}

// read makes the parts of a tool.
func (t *described) read() {
	t.schema, t.output = decode(t.Input), decode(t.Output)
	t.arguments, t.open = arguments(t.schema, t.Input), isOpen(t.schema)
	t.python, t.pythonTypes = t.pythonFunction()
	t.typescript, t.markdown = t.typescriptDeclaration(), t.document()
}

// size is about how many bytes of the tree a tool has.
func (t *described) size() int {
	return len(t.python) + len(t.pythonTypes) + len(t.typescript) + len(t.markdown) + 4*len(t.Remote) + 512
}

// files returns the files of a server.
func (s *served) files() []File {
	files := []File{{Path: s.module + ".py", Content: []byte(s.pythonModule())},
		{Path: s.module + ".mjs", Content: []byte(s.javascriptModule())},
		{Path: s.module + ".d.mts", Content: []byte(s.declarations())},
		{Path: s.module + "/README.md", Content: []byte(s.readme())}}
	if s.apart {
		for _, t := range s.tools {
			files = append(files, File{Path: s.module + "/" + t.name + ".md", Content: []byte(t.markdown)})
		}
	}
	return files
}
