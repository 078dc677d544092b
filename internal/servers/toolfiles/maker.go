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
	apart   bool // each tool has a document of its own
	room    int
	sizes   []int // of its tools; nil: they have less than they would with more room

	modules, documents []File
	together, alone    int             // what it costs with its documents together, and with those of their own
	index              json.RawMessage // its part of the index
	line               string          // its line in the tree's README.md
}

// What a file costs a sandbox, in bytes: its name and inode, and its pages. See decision 72.
const (
	fileCost = 2 << 10
	pageCost = 4 << 10
	// maxCost is what a tree may cost with documents of their own. A server that has them keeps them while it costs
	// not much more, so that they do not come and go.
	maxCost, maxMore = 1_880_000, 32 << 10
)

func costOf(files []File) (cost int) {
	for _, f := range files {
		cost += fileCost + (len(f.Content)+pageCost-1)/pageCost*pageCost
	}
	return cost
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
			apart := before != nil && before.apart // most likely it stays so
			before = makeServer(s, module, brief, apart, room)
		}
		next[s.Name] = before
		all = append(all, before)
		files = append(files, before.modules...)
	}
	files = append(files, file("README.md", rootReadme(all)), file(IndexFile, index(all)))
	left := maxCost - costOf(files) - len(all)*fileCost // each has a folder
	for i, apart := range chooseApart(all, left) {
		if all[i].apart != apart {
			all[i] = makeServer(servers[i], all[i].module, brief, apart, room)
			next[servers[i].Name] = all[i]
		}
		files = append(files, all[i].documents...)
	}
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
func makeServer(s Source, module string, brief, apart bool, room int) *made {
	served := describe(s.Read(), module, room, brief)
	together, alone := served.documents(false), served.documents(true)
	m := &made{version: s.Version, module: module, brief: brief, apart: apart, room: room, sizes: served.sizes,
		modules: served.modules(), documents: together, together: costOf(together), alone: costOf(alone),
		index: served.indexed(), line: served.line()}
	if apart {
		m.documents = alone
	}
	return m
}

// chooseApart returns which servers have documents of their own for each tool, where all documents may cost so many
// bytes: those with the fewest files first, so that a change of one moves as few others as can be.
func chooseApart(all []*made, left int) []bool {
	for _, m := range all {
		left -= m.together
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(all[a].alone, all[b].alone), cmp.Compare(all[a].module, all[b].module))
	})
	apart := make([]bool, len(all))
	for _, i := range order {
		left -= all[i].alone - all[i].together
		if left < 0 && !(all[i].apart && left >= -maxMore) {
			break
		}
		apart[i] = true
	}
	return apart
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
