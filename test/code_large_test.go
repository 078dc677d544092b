package test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// huge connects test/servers/huge.py.
func (c *client) huge() *result {
	c.t.Helper()
	r := c.call("connect_external_mcp", args{"name": "huge", "command": "python3",
		"args": []string{"/workspace/huge.py"}})
	if r.IsError {
		c.t.Fatal(r.All)
	}
	return r
}

// Texts of test/servers/huge.py repeat unit, a literal of Python and of JavaScript with 19 bytes, and have textBytes.
// Its files have fileBytes.
const (
	unit      = `'ab"c\\dé\n0123456789'`
	units     = 50_000_000 / 19
	textBytes = units * 19
	fileBytes = 50_000_000 / 256 * 256
)

// TestCodeLarge: code gets results of 50 MB whole, in all languages and over both transports, and clients get no more
// than ever.
func TestCodeLarge(t *testing.T) {
	t.Parallel()
	s := startConfigured(t, "mcp: {remote: {url: \"http://"+largeRemote(t)+"/mcp\"}}\n")
	s.put("", "huge.py")
	c := s.connect(older, "", nil)
	text := c.huge().exposed(t, "text")
	took := func(what string, call func()) {
		t.Helper()
		began := time.Now()
		call()
		t.Logf("%s: %v", what, time.Since(began))
	}
	for what, code := range map[string]string{
		"text": fmt.Sprintf("huge.text() == %s * %d", unit, units),
		"structured": fmt.Sprintf("(lambda r: r['rows'] == [%s * 1000] * %d and r['n'] == 12345678901234567890)("+
			"huge.structured())", unit, units/1000),
		"image": fmt.Sprintf("(lambda i: (i == bytes(range(256)) * %d, i.mime_type))(await huge.aio.image()) == "+
			"(True, 'image/png')", fileBytes/256),
		"remote":    "remote.text() == 'é\\n' * 16_666_666",
		"no base64": "huge.odd_image(bytes=20_000_000)",
	} {
		took("Python, "+what, func() {
			r := c.code("home", "from mcp_tools import huge, remote\n"+code)
			if want := "True"; r.Text != want && (what != "no base64" ||
				r.Text != "'[a block of type image was left out: its data is not base64]\\nbeside it'") {
				t.Errorf("%s: %.300q", what, r.All)
			}
		})
	}
	took("JavaScript", func() {
		r := c.node("import * as hub from '/run/mcp/huge.mjs';\n" + fmt.Sprintf("const i = await hub.blob();\n"+
			"(await hub.text()) === %s.repeat(%d) && i.length === %d && i.every((b, at) => b === at %% 256)", unit,
			units, fileBytes))
		if !strings.HasPrefix(r.Text, "true") {
			t.Errorf("JavaScript: %.300q", r.All)
		}
	})
	for command, want := range map[string]string{
		"mcp call huge text | wc -c":                                 fmt.Sprint(textBytes + 1), // with the line's end
		"mcp call huge image --out /tmp/out && wc -c < /tmp/out/im*": fmt.Sprint(fileBytes),
	} {
		took(command, func() {
			if r := c.shell("home", command); !strings.Contains(r.Text, want) {
				t.Errorf("%s: %.300q, want %q", command, r.All, want)
			}
		})
	}
	if r, err := c.try(t.Context(), text, args{}); err == nil ||
		!strings.Contains(err.Error(), "an answer of over 16777216 bytes") {
		t.Errorf("a client got %v, %v", r, err)
	}
	if r := c.call(text, args{"bytes": 12 << 20}); !strings.Contains(r.All, "bytes were left out") ||
		len(r.All) > 3<<20 {
		t.Errorf("a client got %d bytes: %.300q", len(r.All), r.All)
	}
}

// largeRemote is a server over Streamable HTTP whose tool returns a text of 50 MB.
func largeRemote(t *testing.T) (address string) {
	remote := mcp.NewServer(&mcp.Implementation{Name: "remote", Version: "1"}, nil)
	large := strings.Repeat("é\n", 16_666_666)
	remote.AddTool(&mcp.Tool{Name: "text", InputSchema: map[string]any{"type": "object"}}, nothing(large))
	l := listen(t)
	web := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return remote }, nil)}
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })
	return l.Addr().String()
}

// TestCodeLargeAttacked: servers of some users send too much, never end, or stop in the middle. Others get small and
// large results meanwhile.
func TestCodeLargeAttacked(t *testing.T) {
	t.Parallel()
	s := start(t)
	mallory, victim := s.token("mallory"), s.token("victim")
	s.put(mallory, "huge.py")
	s.put(victim, "huge.py")
	m, v := s.connect(older, mallory, nil), s.connect(older, victim, nil)
	m.huge()
	v.huge()
	proven(t, m, "home")
	end := bystander(t, s, victim)
	// A permit is held by what stops in the middle, and not given back when the call ends.
	for _, a := range []struct{ code, want string }{
		{"huge.huge()", "an answer of over 134217728 bytes"},
		{"huge.hang(bytes=20_000_000, timeout=1.5)", "there was no answer in 1.5 seconds"},
	} {
		r := m.code("home", "from mcp_tools import huge, ToolError\ntry: "+a.code+"\nexcept ToolError as e: print(e)")
		if !strings.Contains(r.Text, a.want) {
			t.Errorf("%s: %.300q, want %q", a.code, r.All, a.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var endless sync.WaitGroup
	endless.Go(func() { // in a connection of its own, as the first one is in the middle of a message
		m.call("connect_external_mcp", args{"name": "more", "command": "python3",
			"args": []string{"/workspace/huge.py"}})
		_, _ = m.try(ctx, "execute_code", args{"session_id": "home",
			"code": "from mcp_tools import more\nmore.endless()"})
	})
	defer endless.Wait()
	defer cancel()
	for range 3 {
		v.want("home", fmt.Sprintf("from mcp_tools import huge\nhuge.small(), len(huge.text()) == %d", units*18),
			"('small', True)")
	}
	end()
}

// TestCodeLargeMany: several users get 50 MB at once, and the server's memory is bounded. SANDLOT_LARGE is how many
// they are.
func TestCodeLargeMany(t *testing.T) {
	t.Parallel()
	users, err := strconv.Atoi(cmp.Or(os.Getenv("SANDLOT_LARGE"), "2"))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t)
	clients := make([]*client, users)
	for n := range clients {
		token := s.token(fmt.Sprintf("user%d", n))
		s.put(token, "huge.py")
		clients[n] = s.connect(older, token, nil)
		clients[n].huge()
		clients[n].want("home", "from mcp_tools import huge\nhuge.small()", "'small'")
	}
	peak := func(what string, call func()) int64 {
		t.Helper()
		status := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
		if err := os.WriteFile(status+"clear_refs", []byte("5"), 0); err != nil { // the peak begins here
			t.Fatal(err)
		}
		before := memoryOf(t, status, "VmRSS:")
		began := time.Now()
		call()
		most := memoryOf(t, status, "VmHWM:")
		t.Logf("%s: %d MB before, at most %d MB, %v", what, before>>20, most>>20, time.Since(began))
		return most
	}
	text := func(c *client) { c.want("home", fmt.Sprintf("len(huge.text()) == %d", units*18), "True") }
	image := func(c *client) { c.want("home", fmt.Sprintf("len(huge.image()) == %d", fileBytes), "True") }
	most := peak(fmt.Sprintf("%d at once", users), func() {
		var all sync.WaitGroup
		for n, c := range clients {
			all.Go(func() {
				for k := range 2 {
					[]func(*client){text, image}[(n+k)%2](c)
				}
			})
		}
		all.Wait()
	})
	// Each of two may have 128 MiB, and what it grew from, until the next collection of garbage.
	if most > 1<<30 {
		t.Errorf("the server had %d MB", most>>20)
	}
}

// memoryOf returns a number of bytes from a process's status in /proc.
func memoryOf(t *testing.T, process, name string) (n int64) {
	t.Helper()
	b, err := os.ReadFile(process + "status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), name)
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}
