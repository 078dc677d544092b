package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
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

// TestToolTreeMemory: a tool tree of 500 tools, each with a document of its own, costs a sandbox little memory. What
// programs have read is not kept.
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
	const limit = 2 << 20
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
	if got := shell(t, c, "cat /run/mcp/*/*.md | grep -c '^## '"); got != "500" {
		t.Errorf("%s tools have documents", got)
	}
	pid, _ := b.(*box).process()
	open, err := hostfile.OpenBy(pid)
	if err != nil {
		t.Fatal(err)
	}
	open = slices.DeleteFunc(open, func(f hostfile.Open) bool { return !strings.Contains(f.Target, wire.SharedTools) })
	if len(open) > 5 {
		t.Errorf("after its programs have ended, the sandbox has %d files of the tree open", len(open))
	}
}

// TestToolTreeHeld: the files of earlier trees that programs have open take no more of the host's disk than is allowed.
// When programs have closed them, the tree changes again.
func TestToolTreeHeld(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	run(t, s.client, "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); held = []")
	update := func(n int) error {
		var all []agent.ToolFile
		for i := range 8 {
			data := []byte(strings.Repeat(fmt.Sprint(n%10), 1<<20))
			all = append(all, agent.ToolFile{Path: fmt.Sprint("m", i), Data: data})
		}
		return s.client.UpdateTools(t.Context(), all, nil, true)
	}
	var err error
	for n := 0; err == nil; n++ {
		if n == 15 {
			t.Fatal("its programs have 112 MB of earlier files open")
		}
		if err = update(n); err == nil {
			run(t, s.client, "held += [open('/run/mcp/m%d' % i) for i in range(8)]")
		}
	}
	if !strings.Contains(err.Error(), "until they have closed some") {
		t.Fatal(err)
	}
	run(t, s.client, "for f in held: f.close()")
	for range 50 { // gVisor closes them a moment later
		if err = update(1); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("after they were closed:", err)
}

// TestToolTreeAsleep: programs that have files or folders of the tool tree open go on after they have slept, and in
// copies, though the tree has changed meanwhile.
func TestToolTreeAsleep(t *testing.T) {
	t.Parallel()
	s := newSleeping(t)
	tree := func(pairs ...string) {
		t.Helper()
		var all []agent.ToolFile
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, agent.ToolFile{Path: pairs[i], Data: []byte(pairs[i+1])})
		}
		if err := s.client.UpdateTools(t.Context(), all, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(code, want string) {
		t.Helper()
		if got := run(t, s.client, code); got != want {
			t.Errorf("%s: %s", code, got)
		}
	}
	tree("README.md", "same", "a/t.md", "first", "a/gone.md", "gone", "c/d/e.md", "")
	wants("import os; f, g, h = [open('/run/mcp/' + p) for p in ('a/t.md', 'a/gone.md', 'README.md')]; "+
		"os.chdir('/run/mcp/c/d'); l = os.open('/run/mcp/socket', os.O_PATH | os.O_NOFOLLOW); os.listdir()", "['e.md']")
	latest := []string{"README.md", "same", "a/t.md", "second", "b/x.md", "new"}
	tree(latest...)
	i := s.freeze()
	copied, err := s.r.CopyFrozen(t.Context(), i.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []sandbox.FrozenImage{i, copied} {
		if err := s.wake(image); err != nil {
			t.Fatal(err)
		}
		wants("f.read() + g.read() + h.read() + os.getcwd()", "'firstgonesame/run/sandlot/mcp/c/d'")
		tree(latest...)
		wants("open('/run/mcp/a/t.md').read() + open('/run/mcp/b/x.md').read()", "'secondnew'")
		s.wantX("after it has slept")
		if image.Name == i.Name {
			if err := s.box.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.client.Close()
		}
	}
	wants("f2 = open('/run/mcp/a/t.md'); f2.read()", "'second'")
	_, err = s.r.Freeze(t.Context(), s.box, "ann", gigabyte)
	if err == nil || !strings.Contains(err.Error(), "/run/mcp/a/t.md") {
		t.Errorf("two files of one name are open: %v", err)
	}
	if err := s.r.Thaw(t.Context(), s.box); err != nil {
		t.Fatal(err)
	}
	s.client.Close()
	s.use(s.box)
	wants("f.close(); f2.seek(0), f2.read()", "(0, 'second')")
	tree("a/t.md", "third")
	wants("open('/run/mcp/a/t.md').read()", "'third'")
	s.client.Close()
	_, err = s.r.Freeze(t.Context(), s.box, "ann", gigabyte)
	if err == nil || !strings.HasPrefix(err.Error(), "a program has a file of /run/mcp open") {
		t.Errorf("gVisor knows that a file is another one: %v", err)
	}
	if err := s.r.Thaw(t.Context(), s.box); err != nil {
		t.Fatal(err)
	}
	s.use(s.box)
	wants("f2.close(); os.chdir('/'); open('/run/mcp/a/t.md').read()", "'third'")

	var changed atomic.Bool
	began := make(chan bool)
	go s.box.ChangeTools(func(string) error {
		close(began)
		time.Sleep(5 * time.Second)
		changed.Store(true)
		return nil
	})
	<-began
	s.client.Close()
	if _, err := s.r.Freeze(t.Context(), s.box, "ann", gigabyte); err != nil {
		t.Fatal(err)
	}
	if !changed.Load() {
		t.Error("the image was made while the tree changed")
	}
}
