package toolfiles

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Maker makes the trees of one principal, one after the other. It remembers what it has made of each server, so that a
// change of one makes the files of that one alone.
type Maker struct{ made map[string]*made }

// Source is a server whose definitions are read when they are needed.
type Source struct {
	Name    string
	Tools   int   // how many it has
	Version int64 // another one as soon as anything of it is different; 0: it is not known whether it is
	Read    func() Server
}

// made is what a server has in a tree. It has no definitions.
type made struct {
	version int64
	module  string
	brief   bool
	room    int
	sizes   []int // of its tools; nil: they have less than they would with more room

	files []File
	index json.RawMessage // its part of the index
	line  string          // its line in the tree's README.md
}

// Tree returns the files of the tree, sorted by path; none if there are no servers.
func (m *Maker) Tree(servers []Source) []File {
	if len(servers) == 0 {
		m.made = nil
		return nil
	}
	servers = slices.Clone(servers)
	slices.SortStableFunc(servers, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	var names []string
	count := 0
	for _, s := range servers {
		names = append(names, s.Name)
		count += s.Tools
	}
	brief, room := count > maxTools, min(maxServer, (maxTree-maxServer)/len(servers))
	files, all, next := common(), []*made{}, map[string]*made{}
	for i, module := range modules(names) {
		s := servers[i]
		before := m.made[s.Name]
		if !before.is(s, module, brief, room) {
			before = makeServer(s, module, brief, room)
		}
		next[s.Name] = before
		all = append(all, before)
		files = append(files, before.files...)
	}
	files = append(files, file("README.md", rootReadme(all)), file(IndexFile, index(all)))
	m.made = next
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// common returns the files that all trees have.
func common() []File {
	return []File{{Path: "mcp", Link: agent}, file("python/mcp_tools/__init__.py", pythonPackage),
		file("_client.py", pythonClient), file("_client.mjs", javascriptClient), file("_client.d.mts", javascriptTypes)}
}

// is reports whether this would be made of a server again.
func (m *made) is(s Source, module string, brief bool, room int) bool {
	return m != nil && s.Version != 0 && m.version == s.Version && m.module == module && m.brief == brief &&
		(m.room == room || m.sizes != nil && fits(m.sizes, room))
}

// makeServer makes what a server has in the tree.
func makeServer(s Source, module string, brief bool, room int) *made {
	served := describe(s.Read(), module, room, brief)
	return &made{version: s.Version, module: module, brief: brief, room: room, sizes: served.sizes,
		files: served.files(), index: served.indexed(), line: served.line()}
}

// index returns the index of all servers.
func index(all []*made) string {
	parts := []json.RawMessage{}
	for _, m := range all {
		parts = append(parts, m.index)
	}
	text, _ := json.Marshal(parts) // each is valid
	return string(text)
}
