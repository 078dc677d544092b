package toolfiles

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// manyServers returns servers whose tools have eight arguments and texts of the usual length.
func manyServers(servers, tools int) (all []Server) {
	words := strings.Fields("create get list search update delete move copy merge close open assign label comment " +
		"watch archive restore export import approve")
	for s := range servers {
		made := Server{Name: fmt.Sprintf("service-%d", s),
			Instructions: "Use it for work with the things of a workspace."}
		for n := range tools {
			name := fmt.Sprintf("%s_thing_%d", words[n%len(words)], n)
			made.Tools = append(made.Tools, Tool{Name: "ext_service_" + name, Remote: name,
				Description: "Does something with a thing of a workspace. " + strings.Repeat(
					"It says when to use it, what it returns, and what not. ", 4),
				Input: schema(fmt.Sprintf(`{"type":"object","additionalProperties":false,"properties":{
				"workspace":{"type":"string","description":"The name of the workspace, without its owner"},
				"title":{"type":"string","description":"What it is about, in one line of at most 200 characters"},
				"body":{"type":"string","description":"A text in Markdown; images have to be given by their addresses"},
				"labels":{"type":"array","items":{"type":"string"},"description":"Names of labels that exist"},
				"state":{"enum":["open","closed","all"],"default":"open","description":"Which state it must have"},
				"assignee":{"anyOf":[{"type":"string"},{"type":"null"}],"description":"The login name of a person"},
				"per_page":{"type":"integer","minimum":1,"maximum":100,"default":30,"description":"How many on a page"},
				"after_%d":{"type":"string","description":"The cursor of the last page"}},
				"required":["workspace","title"]}`, n))})
		}
		all = append(all, made)
	}
	return all
}

func BenchmarkTree(b *testing.B) {
	servers := manyServers(25, 20)
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Tree(servers)
		}
	})
}

// sources returns servers as sources, whose first one has another version at each call.
func sources(servers []Server) func() []Source {
	version := int64(1)
	return func() (all []Source) {
		version++
		for i, s := range servers {
			made := Source{Name: s.Name, Tools: len(s.Tools), Version: 1, Read: func() Server { return s }}
			if i == 0 {
				made.Version = version
			}
			all = append(all, made)
		}
		return all
	}
}

func BenchmarkTreeChange(b *testing.B) {
	changed, m := sources(manyServers(25, 20)), &Maker{}
	m.Tree(changed())
	b.ReportAllocs()
	for b.Loop() {
		m.Tree(changed())
	}
}

// A Maker makes what changes, and nothing else; what it makes is what Tree makes.
func TestMaker(t *testing.T) {
	servers := manyServers(9, 12)
	m, read, version := &Maker{}, map[string]int{}, int64(1)
	versions := map[string]int64{}
	of := func(servers []Server) (all []Source) {
		for _, s := range servers {
			if versions[s.Name] == 0 {
				versions[s.Name] = version
			}
			all = append(all, Source{Name: s.Name, Tools: len(s.Tools), Version: versions[s.Name], Read: func() Server {
				read[s.Name]++
				return s
			}})
		}
		return all
	}
	same := func(servers []Server) {
		t.Helper()
		got, want := m.Tree(of(servers)), Tree(servers)
		if !slices.EqualFunc(got, want, func(a, b File) bool {
			return a.Path == b.Path && string(a.Content) == string(b.Content) && a.Sum == b.Sum
		}) {
			t.Errorf("the tree of %d servers is not what Tree makes", len(servers))
		}
	}
	same(servers)
	clear(read)
	servers[3].Instructions, versions[servers[3].Name] = "Other words.", 2
	same(servers)
	if len(read) != 1 || read[servers[3].Name] != 1 {
		t.Errorf("one server has changed, and these were read: %v", read)
	}
	clear(read)
	more := append(slices.Clone(servers), Server{Name: "another", Tools: servers[0].Tools[:3]})
	same(more) // there is less room for each, which all have
	same(servers)
	if len(read) != 1 {
		t.Errorf("one server came and went, and these were read: %v", read)
	}
	if m.Tree(nil) != nil || m.made != nil {
		t.Error("there is a tree without servers")
	}
}

// TestOwnDocuments: each tool has a document of its own. A tree is bounded, also in how many files it has.
func TestOwnDocuments(t *testing.T) {
	tiny := Server{Name: "tiny"}
	for n := range 20_000 {
		tiny.Tools = append(tiny.Tools, Tool{Name: fmt.Sprint("t", n), Remote: fmt.Sprint("t", n), Input: []byte("{}")})
	}
	var many []Server
	for n := range 20 {
		tiny.Name = fmt.Sprint("tiny", n)
		many = append(many, tiny)
	}
	for _, tt := range []struct {
		servers     []Server
		least, most int
	}{{manyServers(1, 100), 100, 100}, {manyServers(25, 20), 500, 500}, {manyServers(60, 20), 1200, 1200},
		{many, 1000, maxTree / fileSize}} {
		n, size := 0, 0
		for _, f := range Tree(tt.servers) {
			if _, name, _ := strings.Cut(f.Path, "/"); strings.HasSuffix(name, ".md") && name != "README.md" {
				n++
			}
			size += len(f.Content)
		}
		if n < tt.least || n > tt.most || size > maxTree {
			t.Errorf("%d servers: %d documents, %d bytes", len(tt.servers), n, size)
		}
	}
}
