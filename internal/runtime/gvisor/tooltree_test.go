package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/servers/toolfiles"
)

// unreclaimable returns how many bytes of a sandbox's memory are not the pages of files on disk: those of gVisor's
// kernel, and those of programs, which gVisor has in a file in memory.
func unreclaimable(t *testing.T, id string) (kernel, programs int64) {
	t.Helper()
	found, _ := filepath.Glob("/sys/fs/cgroup/memory/sandlot-*/" + id + "/memory.stat")
	if len(found) == 0 {
		found, _ = filepath.Glob("/sys/fs/cgroup/sandlot-*/" + id + "/memory.stat")
	}
	if len(found) != 1 {
		t.Fatalf("the sandbox has the memory.stat %q", found)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var n int64
		fmt.Sscan(line, &name, &n)
		switch name {
		case "rss", "anon":
			kernel = n
		case "shmem":
			programs = n
		}
	}
	return kernel, programs
}

// manyTools returns 25 servers with 20 tools of eight arguments.
func manyTools() (all []toolfiles.Server) {
	var arguments []string
	for n := range 8 {
		arguments = append(arguments, fmt.Sprintf(`"argument_%d":{"type":"string","description":"What it is about, in `+
			`one line of at most 200 characters"}`, n))
	}
	input := `{"type":"object","properties":{` + strings.Join(arguments, ",") + `},"required":["argument_0"]}`
	for s := range 25 {
		made := toolfiles.Server{Name: fmt.Sprint("service-", s)}
		for n := range 20 {
			name := fmt.Sprint("create_thing_", n)
			made.Tools = append(made.Tools, toolfiles.Tool{Name: "ext_" + name, Remote: name, Input: []byte(input),
				Description: strings.Repeat("It says when to use it, what it returns, and what not. ", 5)})
		}
		all = append(all, made)
	}
	return all
}

// TestToolTreeMemory: a tool tree of 500 tools costs a sandbox little memory after it was written. Without freeing what
// writing it took, it is over 7 MB.
func TestToolTreeMemory(t *testing.T) {
	s := subject(t, false)
	r := s.Open(t)
	defer r.Close()
	if !r.(*Runtime).cgroups.Usable() {
		t.Skip("sandboxes have no cgroups here")
	}
	spec := s.Spec()
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(t.Context())
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	if err := c.Configure(t.Context(), agent.Settings{Template: s.Template, Limits: spec.Limits}); err != nil {
		t.Fatal(err)
	}
	update := func(files []toolfiles.File) {
		t.Helper()
		var all []agent.ToolFile
		for _, f := range files {
			all = append(all, agent.ToolFile{Path: f.Path, Data: f.Content, Link: f.Link})
		}
		if err := c.UpdateTools(t.Context(), all, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	update(toolfiles.Tree(manyTools()[:1]))
	time.Sleep(5 * time.Second) // the agent frees what its start took
	kernel, programs := unreclaimable(t, spec.ID)
	update(toolfiles.Tree(manyTools()))
	const limit = 5 << 20
	var k, p int64
	for range 60 {
		time.Sleep(500 * time.Millisecond)
		k, p = unreclaimable(t, spec.ID)
		if k, p = k-kernel, p-programs; k+p < limit {
			break
		}
	}
	t.Logf("gVisor's kernel has %+d kB more, and programs %+d kB", k>>10, p>>10)
	if k+p >= limit {
		t.Errorf("the tree costs %d kB", (k+p)>>10)
	}
}
