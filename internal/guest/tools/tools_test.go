package tools

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/toolfolder"
	"sandlot/proto/agentv1"
)

func text(path, data string) *agentv1.ToolFile {
	return &agentv1.ToolFile{Path: path, Data: []byte(data)}
}

// newTools returns Tools in a folder of the test, without a host.
func newTools(t *testing.T) *Tools {
	dir := filepath.Join(t.TempDir(), "run", "mcp")
	u := New(Config{Dir: dir, Whose: func(int) wire.ToolConn { return wire.ToolConn{} },
		Begin: func() func() { return func() {} },
		Dial:  func(context.Context) (net.Conn, error) { return nil, errors.New("there is no host") }})
	t.Cleanup(u.Close)
	return u
}

// content lists the files of the tree.
func content(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := strings.TrimPrefix(p, dir+"/")
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type() == fs.ModeSocket:
			name += "="
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			name += ">" + to
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			name += ":" + string(data) + ":" + st.Mode().String()
		}
		all = append(all, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestTree(t *testing.T) {
	u := newTools(t)
	if err := u.Set(&agentv1.SetToolsRequest{Complete: true}); err != nil || exists(u.config.Dir) {
		t.Fatalf("an empty tree made a folder: %v", err)
	}
	for _, tt := range []struct {
		request *agentv1.SetToolsRequest
		want    string
	}{
		{&agentv1.SetToolsRequest{Complete: true, Files: []*agentv1.ToolFile{text("README.md", "1"),
			text("a/b/c.md", "2"), {Path: "mcp", Link: "/.sandlot/agent"},
			{Path: "run", Data: []byte("3"), Executable: true}}},
			"README.md:1:-r--r--r-- a/b/c.md:2:-r--r--r-- mcp>/.sandlot/agent run:3:-r-xr-xr-x socket="},
		{&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("README.md", "longer"), text("a/d.md", "4")},
			Removed: []string{"run", "not/there"}},
			"README.md:longer:-r--r--r-- a/b/c.md:2:-r--r--r-- a/d.md:4:-r--r--r-- mcp>/.sandlot/agent socket="},
		// A file in place of a folder, and the reverse.
		{&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("a/b", "5"), text("README.md/x", "6")},
			Removed: []string{"mcp"}}, "README.md/x:6:-r--r--r-- a/b:5:-r--r--r-- a/d.md:4:-r--r--r-- socket="},
		{&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("z", "7")}, Complete: true},
			"socket= z:7:-r--r--r--"},
		{&agentv1.SetToolsRequest{Removed: []string{"z"}}, "socket="},
	} {
		if err := u.Set(tt.request); err != nil {
			t.Fatal(err)
		}
		if got := content(t, u.config.Dir); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
	if folders, err := os.ReadDir(u.config.Dir); err != nil || len(folders) != 1 {
		t.Errorf("folders are left: %v, %v", folders, err)
	}
	if st, err := os.Stat(u.config.Dir); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the folder: %v, %v", st, err)
	}
	// A socket that somebody has removed is made again.
	if err := os.Remove(filepath.Join(u.config.Dir, wire.ToolSocket)); err != nil {
		t.Fatal(err)
	}
	if err := u.Set(&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("y", "8")}}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, u.config.Dir); got != "socket= y:8:-r--r--r--" {
		t.Errorf("got %s", got)
	}
}

// TestSharedTree: where the host has the tree, the agent makes a link to it, and the socket beside that.
func TestSharedTree(t *testing.T) {
	u := newTools(t)
	u.watched = true // what is spoiled here stays so
	u.config.Shared = t.TempDir()
	if err := os.MkdirAll(filepath.Dir(u.config.Dir), 0o755); err != nil {
		t.Fatal(err)
	}
	place := u.config.Dir + wire.SharedSocketSuffix
	if err := os.Symlink(place, filepath.Join(u.config.Shared, wire.ToolSocket)); err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func() error{
		func() error { return nil },
		func() error { return nil }, // again
		func() error { return errors.Join(os.Remove(place), os.Remove(u.config.Dir)) },
	} {
		if err := errors.Join(spoil(), u.Set(&agentv1.SetToolsRequest{Shared: true})); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("unix", filepath.Join(u.config.Dir, wire.ToolSocket))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if err := errors.Join(os.Remove(u.config.Dir), os.Symlink("/", u.config.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := u.Set(&agentv1.SetToolsRequest{Shared: true}); err != nil || !u.isShared() {
		t.Errorf("another link is in its place: %v", err)
	}
	// The host shares no folder any more, and then one again.
	if err := errors.Join(os.Remove(u.config.Dir), u.Set(&agentv1.SetToolsRequest{Shared: true}),
		u.Set(&agentv1.SetToolsRequest{Complete: true, Files: []*agentv1.ToolFile{text("a/own", "1")}})); err != nil {
		t.Fatal(err)
	}
	if got := content(t, u.config.Dir); got != "a/own:1:-r--r--r-- socket=" {
		t.Errorf("the agent's own tree: %s", got)
	}
	if all, err := os.ReadDir(u.config.Shared); err != nil || len(all) != 1 {
		t.Errorf("the shared folder has %v, %v", all, err)
	}
	if err := u.Set(&agentv1.SetToolsRequest{Shared: true}); err != nil || !u.isShared() {
		t.Errorf("a tree of the agent's own is in its place: %v", err)
	}
	u.Close()
	if exists(place) {
		t.Error("the socket is left")
	}
}

// TestTreeRefuses: no request makes the agent write anywhere but in the tree.
func TestTreeRefuses(t *testing.T) {
	u := newTools(t)
	for _, path := range []string{"", ".", "..", "../x", "/x", "a/../../x", "a//b", wire.ToolSocket,
		"a/" + toolfolder.NewPrefix + "0", "a/"} {
		for _, r := range []*agentv1.SetToolsRequest{{Files: []*agentv1.ToolFile{text("ok", ""), text(path, "x")}},
			{Files: []*agentv1.ToolFile{text("ok", "")}, Removed: []string{path}}} {
			if err := u.Set(r); err == nil {
				t.Errorf("%q is a path of the tree", path)
			}
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	// A link to a folder outside, below the tree.
	if err := u.Set(&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{{Path: "a", Link: outside}}}); err != nil {
		t.Fatal(err)
	}
	if err := u.Set(&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("a/f", "x")}}); err != nil {
		t.Fatal(err) // a folder replaces the link
	}
	if all, err := os.ReadDir(outside); err != nil || len(all) != 0 {
		t.Errorf("written outside: %v, %v", all, err)
	}
}

// TestPlaceIsTaken: what programs have put in the place of the tree and of the socket before there was a tree is moved
// aside, and nothing is written to where a link leads.
func TestPlaceIsTaken(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	full := func(dir string) error {
		return errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(dir+"/mine", nil, 0o600))
	}
	takes := map[string]func(run string) error{
		"a link":                func(run string) error { return os.Symlink(outside, run+"/mcp") },
		"a link to nothing":     func(run string) error { return os.Symlink(outside+"/none", run+"/mcp") },
		"a file":                func(run string) error { return os.WriteFile(run+"/mcp", nil, 0o644) },
		"a folder of others":    func(run string) error { return errors.Join(full(run+"/mcp"), os.Chmod(run+"/mcp", 0o777)) },
		"a link for the socket": func(run string) error { return os.Symlink(outside, run+"/mcp"+wire.SharedSocketSuffix) },
		"a folder for the socket": func(run string) error {
			return full(run + "/mcp" + wire.SharedSocketSuffix)
		},
		"a folder for the socket in the making": func(run string) error {
			return full(run + "/" + toolfolder.NewPrefix + "mcp" + wire.SharedSocketSuffix)
		},
	}
	for _, shared := range []bool{true, false} {
		for what, take := range takes {
			u := newTools(t)
			dir := u.config.Dir
			r := &agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("README.md", "tools")}, Complete: true}
			if shared {
				u.config.Shared = filepath.Join(t.TempDir(), "shared")
				if err := errors.Join(os.Mkdir(u.config.Shared, 0o755),
					os.WriteFile(filepath.Join(u.config.Shared, "README.md"), []byte("tools"), 0o600),
					os.Symlink(dir+wire.SharedSocketSuffix, filepath.Join(u.config.Shared, wire.ToolSocket))); err != nil {
					t.Fatal(err)
				}
				r = &agentv1.SetToolsRequest{Shared: true}
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), take(filepath.Dir(dir))); err != nil {
				t.Fatal(err)
			}
			if err := u.Set(r); err != nil {
				t.Errorf("%s, shared %v: %v", what, shared, err)
				continue
			}
			if b, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || string(b) != "tools" {
				t.Errorf("%s, shared %v: the tree has %q, %v", what, shared, b, err)
			}
			c, err := net.Dial("unix", filepath.Join(dir, wire.ToolSocket))
			if err != nil {
				t.Errorf("%s, shared %v: %v", what, shared, err)
				continue
			}
			c.Close()
		}
	}
	if all, err := os.ReadDir(outside); err != nil || len(all) != 0 {
		t.Errorf("written outside: %v, %v", all, err)
	}
}

// host listens in place of a server's socket.
type host struct {
	*net.UnixListener
	place string
	whose wire.ToolConn
	mu    sync.Mutex
	down  bool
	used  int // how many programs wait for an answer
	peers int // how many were looked up
}

// startHost returns Tools with a host that answers each line with itself, after two lines of progress.
func startHost(t *testing.T) (*Tools, *host) {
	t.Helper()
	h := &host{place: filepath.Join(t.TempDir(), "s"), whose: wire.ToolConn{Tag: "t", Languages: []string{"python"}}}
	u := newTools(t)
	u.config.Dial = func(ctx context.Context) (net.Conn, error) {
		h.mu.Lock()
		down := h.down
		h.mu.Unlock()
		if down {
			return nil, errors.New("it is down")
		}
		return new(net.Dialer).DialContext(ctx, "unix", h.place)
	}
	u.config.Whose = func(pid int) wire.ToolConn {
		if pid != os.Getpid() {
			t.Errorf("process %d has connected", pid)
		}
		h.mu.Lock()
		h.peers++
		h.mu.Unlock()
		return h.whose
	}
	u.config.Begin = func() func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.used++
		return func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.used--
		}
	}
	var err error
	if h.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: h.place}); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := h.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { h.serve(t, c) })
		}
	})
	t.Cleanup(func() {
		h.Close()
		u.Close()
		serving.Wait()
	})
	if err := u.Set(&agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("f", "x")}}); err != nil {
		t.Fatal(err)
	}
	return u, h
}

func (h *host) serve(t *testing.T, c net.Conn) {
	defer c.Close()
	who, err := wire.ReadToolConn(c)
	if err != nil || who.Tag != h.whose.Tag || !slices.Equal(who.Languages, h.whose.Languages) {
		t.Errorf("%+v, %v", who, err)
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if lines.Text() == "end" {
			return
		}
		_, _ = io.WriteString(c, progress+"1}\n"+progress+"2}\n")
		if lines.Text() == "wait" {
			continue
		}
		_, _ = io.WriteString(c, lines.Text()+"\n")
	}
}

func (h *host) inUse() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

func (h *host) setDown(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

// program is a program that is connected.
type program struct {
	net.Conn
	lines *bufio.Scanner
}

func dialTree(t *testing.T, u *Tools) *program {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(u.config.Dir, wire.ToolSocket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &program{c, bufio.NewScanner(c)}
}

func (p *program) ask(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p, line+"\n"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{progress + "1}", progress + "2}", line} {
		if !p.lines.Scan() || p.lines.Text() != want {
			t.Fatalf("got %q, want %q", p.lines.Text(), want)
		}
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited too long until ", what)
		}
	}
}

// TestCarry: connections are carried to the host, and the sandbox is in use while a program waits for an answer, which
// progress is not.
func TestCarry(t *testing.T) {
	u, h := startHost(t)
	p := dialTree(t, u)
	p.ask(t, "one")
	p.ask(t, strings.Repeat("long", 10_000))
	until(t, "nobody waits", func() bool { return h.inUse() == 0 })
	_, _ = io.WriteString(p, "wait\n")
	for range 2 {
		if !p.lines.Scan() {
			t.Fatal("no progress")
		}
	}
	if h.inUse() != 1 {
		t.Error("a program waits, and the sandbox is not in use")
	}
	p.Close()
	until(t, "nobody waits", func() bool { return h.inUse() == 0 })
	p = dialTree(t, u)
	p.ask(t, "two")
	_, _ = io.WriteString(p, "end\n")
	if p.lines.Scan() {
		t.Errorf("after the end: %q", p.lines.Text())
	}
	until(t, "no connection is left", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.conns) == 0 && len(u.slots) == 0 && len(u.queue) == 0
	})
}

// TestCut: connections that a host serves end, and those that wait for one go on waiting.
func TestCut(t *testing.T) {
	u, h := startHost(t)
	served := dialTree(t, u)
	served.ask(t, "one")
	h.setDown(true)
	waits := dialTree(t, u)
	_, _ = io.WriteString(waits, "two\n")
	until(t, "both are known", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.conns) == 3
	})
	u.Cut()
	if served.lines.Scan() {
		t.Errorf("after Cut: %q", served.lines.Text())
	}
	h.setDown(false)
	for _, want := range []string{progress + "1}", progress + "2}", "two"} {
		if !waits.lines.Scan() || waits.lines.Text() != want {
			t.Fatalf("got %q, want %q", waits.lines.Text(), want)
		}
	}
}

// TestManyConnections: only so many are served at once, and more wait until one ends. Whose one is that waits is known
// by then: its process may end, and another one get its id.
func TestManyConnections(t *testing.T) {
	u, h := startHost(t)
	var all []*program
	for range maxConns {
		p := dialTree(t, u)
		p.ask(t, "one")
		all = append(all, p)
	}
	late := dialTree(t, u)
	_, _ = io.WriteString(late, "late\n")
	until(t, "it waits", func() bool { return len(u.queue) == maxConns+1 })
	until(t, "it is known who waits", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.peers == maxConns+1
	})
	if len(u.slots) != maxConns {
		t.Errorf("%d are served", len(u.slots))
	}
	for range maxWaiting + 20 {
		dialTree(t, u)
	}
	until(t, "no more wait", func() bool { return len(u.queue) == cap(u.queue) })
	all[0].Close()
	if !late.lines.Scan() {
		t.Error("the one that waited was not served")
	}
}

// Whatever a program does to the tree and the socket, they are put back, by themselves and before programs start.
func TestPutBack(t *testing.T) {
	does := map[string]func(dir string) error{
		"moves it":     func(dir string) error { return os.Rename(dir, dir+".moved") },
		"moves it far": func(dir string) error { return os.Rename(dir, filepath.Join(filepath.Dir(filepath.Dir(dir)), "far")) },
		"replaces it by a folder": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o755), os.WriteFile(dir+"/mine", nil, 0o600))
		},
		"replaces it by a file": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".gone"), os.WriteFile(dir, []byte("mine"), 0o600))
		},
		"replaces it by a link": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".left"), os.Symlink("/nowhere", dir))
		},
	}
	for _, shared := range []bool{true, false} {
		for _, watched := range []bool{true, false} {
			u := newTools(t)
			dir := u.config.Dir
			r := &agentv1.SetToolsRequest{Files: []*agentv1.ToolFile{text("README.md", "tools")}, Complete: true}
			if shared {
				u.config.Shared = filepath.Join(t.TempDir(), "shared")
				if err := errors.Join(os.Mkdir(u.config.Shared, 0o755), os.MkdirAll(filepath.Dir(dir), 0o755),
					os.WriteFile(filepath.Join(u.config.Shared, "README.md"), []byte("tools"), 0o600),
					os.Symlink(dir+wire.SharedSocketSuffix, filepath.Join(u.config.Shared, wire.ToolSocket))); err != nil {
					t.Fatal(err)
				}
				r = &agentv1.SetToolsRequest{Shared: true}
			}
			u.watched = !watched
			if err := u.Set(r); err != nil {
				t.Fatal(err)
			}
			own := map[string]func(string) error{
				"removes the socket": func(string) error { return os.Remove(u.socket) },
				"replaces the socket": func(string) error {
					return errors.Join(os.Rename(u.socket, u.socket+".moved"), os.WriteFile(u.socket, nil, 0o600))
				},
			}
			if shared {
				own["removes the link"] = os.Remove
			}
			maps.Copy(own, does)
			isPutBack := func(what string, does func(string) error) {
				u.setting.Lock() // nobody puts it back meanwhile
				if err := does(dir); err != nil {
					t.Fatal(what, err)
				}
				u.setting.Unlock()
				if !watched || strings.Contains(what, "socket") && !shared { // nothing watches the agent's own folder
					u.Restore()
				}
				until(t, fmt.Sprintf("%s, shared %v, watched %v", what, shared, watched), func() bool {
					b, err := os.ReadFile(filepath.Join(dir, "README.md"))
					c, dialErr := net.Dial("unix", filepath.Join(dir, wire.ToolSocket))
					if dialErr == nil {
						c.Close()
					}
					return err == nil && string(b) == "tools" && dialErr == nil
				})
			}
			for what, does := range own {
				isPutBack(what, does)
			}
			if b, err := os.ReadFile(dir + ".old0/mine"); err != nil && !slices.ContainsFunc([]string{"1", "2"}, func(n string) bool {
				_, err := os.Stat(dir + ".old" + n + "/mine")
				return err == nil
			}) {
				t.Errorf("what was in its place is lost: %q, %v", b, err)
			}
			for n := range 2 { // the second time, the folder is one that the agent has made
				isPutBack("moves the folder above it", func(dir string) error {
					above := filepath.Dir(dir)
					return os.Rename(above, fmt.Sprint(above, ".above", n))
				})
			}
			isPutBack("moves it again", does["moves it"])
		}
	}
}
