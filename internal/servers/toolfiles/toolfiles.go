// Package toolfiles makes the tool tree: the files by which code in a sandbox finds and calls the tools of its owner's
// third-party MCP servers. It owns the form of that tree, and that nothing in a definition, which is hostile text, can
// leave the place in a file where it belongs. It is pure: definitions in, files out.
//
// What a server has in the tree is kept with the versions of its definitions (Maker), so a change of one
// server makes the files of that one. A module with 50 tools is imported in 10 ms in gVisor: what type
// checkers alone read is compiled and not run, annotations are texts, what a call needs is imported by the
// first call, and a function only puts its arguments into a dictionary. Attributes of mcp_tools are looked up
// by _client.Package, which compares the file of a loaded module with the one that was loaded, so that
// changed definitions count in every interpreter. In JavaScript a module is loaded once for each address: the
// driver adds the file's revision to it, and other programs of Node see what they have loaded. A file for
// each tool in Python was not chosen: the module of a server would have to find them.
package toolfiles

import (
	"cmp"
	"crypto/sha256"
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
	State                     string // why it cannot be called now, and what helps, in words; "": it can
	Off                       bool   // it is disconnected: the tree has its name and its state alone
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
	Link    string            // the target of a symbolic link; "": a file
	Sum     [sha256.Size]byte // of the content
}

const (
	maxServer = 1 << 20 // bytes of a server's files
	maxTree   = 8 << 20
	fileSize  = 2 << 10 // for a tool's document, beside its text, so that there are no more than some thousand
	// maxTools is how many tools have all of their texts in each place; where there are more, those are shorter that
	// are said for the second time.
	maxTools = 100
	// maxServerWork bounds the work for a server, see maxWork. Tools beyond it have their names alone.
	maxServerWork = 400_000
)

var (
	//go:embed files/mcp_tools.py
	pythonPackage string
	//go:embed files/_client.py
	pythonClient string
	//go:embed files/_client.mjs
	javascriptClient string
	//go:embed files/_client.d.mts
	javascriptTypes string
)

// agent is the program that is the command mcp.
const agent = "/.sandlot/agent"

// served is a server with what is made of it.
type served struct {
	Server
	module string
	tools  []*described
	left   int   // tools that have no room
	sizes  []int // of all tools; nil: some have less than they would with more room
}

// described is a tool with what is made of it.
type described struct {
	Tool
	module, name   string
	schema, output map[string]any
	arguments      []argument
	open           bool // it takes others, too
	brief          bool // it is one of many: texts are shorter where they are said for the second time
	work           int  // see maxWork

	python, pythonTypes, typescript, markdown string
}

func (t *described) hasTimeout() bool {
	return slices.ContainsFunc(t.arguments, func(a argument) bool { return a.python == "timeout" })
}

// Tree returns the files of the tree, sorted by path; none if there are no servers.
func Tree(servers []Server) []File {
	var all []Source
	for _, s := range servers {
		all = append(all, Source{Name: s.Name, Tools: len(s.Tools), Read: func() Server { return s }})
	}
	return (&Maker{}).Tree(all)
}

// describe makes what is in the files of a server, within room bytes.
func describe(s Server, module string, room int, brief bool) *served {
	made := &served{Server: s, module: module}
	tools := slices.Clone(s.Tools)
	slices.SortStableFunc(tools, func(a, b Tool) int { return cmp.Compare(a.Remote, b.Remote) })
	tools = slices.CompactFunc(tools, func(a, b Tool) bool { return a.Remote == b.Remote })
	var texts []string
	for _, t := range tools {
		texts = append(texts, t.Remote)
	}
	work, cut := 0, false
	for i, name := range identifiers(texts, functionWords) {
		t := &described{Tool: tools[i], module: module, name: name, brief: brief}
		if work <= maxServerWork {
			t.read()
		}
		if work += t.work; work > maxServerWork || isTooMuch(t.size(), roomLeft(room, made.sizes), len(tools)-i) {
			t = &described{Tool: Tool{Name: t.Tool.Name, Remote: t.Remote, Description: line(t.Description, maxLine),
				Held: t.Held}, module: module, name: name, brief: brief}
			t.read()
			cut = true
		}
		if t.size() > roomLeft(room, made.sizes) {
			made.left, cut = len(tools)-i, true
			break
		}
		made.sizes = append(made.sizes, t.size())
		made.tools = append(made.tools, t)
	}
	if cut {
		made.sizes = nil
	}
	return made
}

// roomLeft returns how many bytes a server has after tools of these sizes.
func roomLeft(room int, sizes []int) int {
	room -= 4 * maxInstructions
	for _, size := range sizes {
		room -= size
	}
	return room
}

// isTooMuch reports whether one of so many tools would have too much of the room that they have together.
func isTooMuch(size, room, tools int) bool { return size > max(room/tools, 4<<10) }

// fits reports whether all tools have all of their texts in so many bytes.
func fits(sizes []int, room int) bool {
	room = roomLeft(room, nil)
	for i, size := range sizes {
		if isTooMuch(size, room, len(sizes)-i) || size > room {
			return false
		}
		room -= size
	}
	return true
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
	return len(t.python) + len(t.pythonTypes) + len(t.typescript) + len(t.markdown) + 4*len(t.Remote) + fileSize
}

// files returns the files of a server: its modules, and its documents.
func (s *served) files() []File {
	if s.Off {
		return nil
	}
	files := []File{file(s.module+".py", s.pythonModule()), file(s.module+".mjs", s.javascriptModule()),
		file(s.module+".d.mts", s.declarations()), file(s.module+"/README.md", s.readme())}
	for _, t := range s.tools {
		files = append(files, file(s.module+"/"+t.name+".md", t.markdown))
	}
	return files
}

// file returns a file.
func file(path, content string) File {
	return File{Path: path, Content: []byte(content), Sum: sha256.Sum256([]byte(content))}
}
