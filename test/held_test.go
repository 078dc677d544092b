package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/agent/command"
)

const upgrading = " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// slowest returns the 99th of 100 calls of bob's.
func slowest(t *testing.T, s *server, bob string) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 100 {
		began := time.Now()
		if code, _, text := s.request("POST", "/v1/tools/execute_code", strings.NewReader(`{"code":"6*7"}`),
			"Authorization", "Bearer "+bob); code != 200 || !strings.Contains(text, "42") {
			t.Fatalf("bob's call: %d %s", code, text)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[98]
}

// flood is a client that opens more than it may, as one user.
type flood struct {
	*server
	t     *testing.T
	token string
	links []*link // to ports that never answer
	deaf  bool    // its connections take next to nothing
}

// heldKind is something that a client can hold, and how many of it one user may.
type heldKind struct {
	name  string
	bound int
	reads bool // the client takes what comes
	open  func(f *flood, n int) net.Conn
}

func (f *flood) dial(head, body string) net.Conn {
	c, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		f.t.Error(err)
		return nil
	}
	if f.deaf {
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	}
	_, _ = io.WriteString(c, head+"\r\nAuthorization: Bearer "+f.token+"\r\n\r\n"+body) // it may be closed already
	return c
}

// session begins an MCP session; empty: it was refused.
func (f *flood) session() string {
	c := f.dial("POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "+
		"application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: "+fmt.Sprint(len(hello)),
		hello)
	if c == nil {
		return ""
	}
	defer c.Close()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return ""
	}
	return r.Header.Get("Mcp-Session-Id")
}

func fixed(head, body string) func(*flood, int) net.Conn {
	return func(f *flood, _ int) net.Conn { return f.dial(head, body) }
}

// heldKinds are all that a client with a token can hold.
func heldKinds(t *testing.T) []heldKind {
	var flooding bytes.Buffer // a process whose output nobody takes
	head := command.Command{Args: []string{"head", "-c", "8000000", "/dev/zero"}}
	if err := head.Write(&flooding); err != nil {
		t.Fatal(err)
	}
	const listen = `{"jsonrpc":"2.0","id":8,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	return []heldKind{
		{"processes", 64, false, fixed("POST /v1/sessions/home/exec"+upgrading+"sandlot-exec", flooding.String())},
		{"stdio", 64, false, fixed("POST /v1/stdio"+upgrading+"sandlot-mcp", hello+"\n")},
		{"ports", 64, false, fixed("POST /v1/sessions/home/ports/8080"+upgrading+"sandlot-dial", "")},
		{"visits", 192, false, func(f *flood, n int) net.Conn {
			l := f.links[n%len(f.links)] // of two sessions: one alone has a bound of its own
			return f.dial("GET / HTTP/1.1\r\nHost: "+l.host+"\r\n"+tokenHeader+": "+l.token, "")
		}},
		{"streams of sessions", 256, true, func(f *flood, _ int) net.Conn {
			return f.dial("GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: "+
				f.session(), "")
		}},
		{"bodies", 128, false, fixed("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nContent-Length: 16000000", strings.Repeat(" ", 200<<10))},
		{"subscriptions", 512, true, fixed("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nAccept: application/json, text/event-stream"+
			"\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: "+
			fmt.Sprint(len(listen)), listen)},
	}
}

// open opens n of a kind, and returns how many are over: refused, or made to give
// way. It waits until that many are, or for half a minute.
func (f *flood) open(k heldKind, n, until int) int {
	var over atomic.Int64
	turns := make(chan struct{}, 50)
	var all sync.WaitGroup
	for i := range n {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			c := k.open(f, i)
			if c == nil {
				return
			}
			f.t.Cleanup(func() { c.Close() })
			told := make(chan struct{})
			go func() {
				from := bufio.NewReaderSize(c, 512)
				r, err := http.ReadResponse(from, nil)
				refused := err != nil || r.StatusCode >= 400
				if refused {
					over.Add(1)
				}
				close(told)
				if refused || !k.reads {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body) // until it ends
				over.Add(1)
			}()
			select {
			case <-told:
			case <-time.After(300 * time.Millisecond): // most that are held say nothing
			}
		})
	}
	all.Wait()
	for deadline := time.Now().Add(30 * time.Second); int(over.Load()) < until && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	return int(over.Load())
}

// hanging exposes a port that takes connections, and answers none, in two sessions.
func (f *flood) hanging() {
	c := f.connect(older, f.token, nil)
	hang := "import socket, sys\ns = socket.socket()\ns.bind(('127.0.0.1', int(sys.argv[1])))\ns.listen(1000)\nheld " +
		"= []\nwhile True: held.append(s.accept())"
	for _, session := range []string{"home", "new"} {
		id := begin(c, session, "hang.py", hang, 8080)
		f.links = append(f.links, f.expose(c, args{"port": 8080, "session_id": id}))
	}
}

// TestOneUserHoldsMuch takes a thousand of each thing that a client can hold, with
// one token: most are refused, the server stays small, and others' calls are as
// fast as before. Those who come without a token take nothing from those with one.
// Then a user for each kind shows that it is its own bound that holds.
func TestOneUserHoldsMuch(t *testing.T) {
	s := start(t, "SANDLOT_AUTH=required")
	bob := s.token("bob")
	slowest(t, s, bob)
	before := slowest(t, s, bob)
	t.Run("all", func(t *testing.T) { // what is held ends with it
		const each = 1000
		ann := &flood{server: s, t: t, token: s.token("ann")}
		ann.hanging()
		for _, k := range heldKinds(t) {
			over := ann.open(k, each, each-k.bound)
			t.Logf("%s: %d of %d are over, the server has %d MiB", k.name, over, each, memory(t, s.cmd.Process.Pid)>>20)
			if over < each-k.bound {
				t.Errorf("%s: only %d of %d are over", k.name, over, each)
			}
		}
		for range each { // strangers
			c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		after := slowest(t, s, bob)
		m := memory(t, s.cmd.Process.Pid)
		t.Logf("bob's P99 was %v and is %v; the server has %d MiB", before, after, m>>20)
		if m > 300<<20 {
			t.Errorf("the server has %d MiB", m>>20)
		}
		if after > 3*before+500*time.Millisecond {
			t.Errorf("bob's P99 was %v and is %v", before, after)
		}
	})
	t.Run("each", func(t *testing.T) {
		for i, k := range heldKinds(t) {
			f := &flood{server: s, t: t, token: s.token(fmt.Sprint("user", i))}
			if k.name == "ports" || k.name == "visits" {
				f.hanging()
			} else if code, _, text := s.request("POST", "/v1/tools/execute_code", strings.NewReader(`{"code":"6*7"}`),
				"Authorization", "Bearer "+f.token); code != 200 {
				t.Fatalf("%d %s", code, text)
			}
			const more = 100
			over := f.open(k, k.bound+more, more)
			t.Logf("%s: of %d, %d are over", k.name, k.bound+more, over)
			if over < more || over > more+k.bound/4 {
				t.Errorf("%s: of %d, %d are over", k.name, k.bound+more, over)
			}
		}
	})
}

// large is a third-party server whose every answer has 8 MiB, nearly; it speaks the
// stateless protocol over HTTP.
func large(t *testing.T) *httptest.Server {
	text := strings.Repeat("x", 8<<20-2048)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{}},"serverInfo":{"name":"large","version":"1"}}`
		switch q.Method {
		case "tools/list":
			result = `{"resultType":"complete","tools":[{"name":"all","inputSchema":{"type":"object"}}]}`
		case "resources/list":
			result = `{"resultType":"complete","resources":[{"uri":"large://all","name":"all"}]}`
		case "resources/templates/list":
			result = `{"resultType":"complete","resourceTemplates":[]}`
		case "tools/call":
			result = `{"resultType":"complete","content":[{"type":"text","text":"` + text + `"}]}`
		case "resources/read":
			result = `{"resultType":"complete","contents":[{"uri":"large://all","text":"` + text + `"}]}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)
	}))
	t.Cleanup(s.Close)
	return s
}

// largeProgram is one over standard input and output, of the stateful protocol.
const largeProgram = `import json, sys
for line in sys.stdin:
    q = json.loads(line)
    if "id" not in q: continue
    r = {"tools": [{"name": "all", "inputSchema": {"type": "object"}}]}
    if q["method"] == "initialize": r = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "l", "version": "1"}}
    if q["method"] == "tools/call": r = {"content": [{"type": "text", "text": "x" * ((8 << 20) - 2048)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": q["id"], "result": r}), flush=True)
`

// unreadKinds are all ways in which a large answer goes to a client.
func unreadKinds(session string) map[string]func(f *flood, n int) net.Conn {
	post := func(path, more, body string) func(*flood, int) net.Conn {
		return func(f *flood, n int) net.Conn {
			b := strings.ReplaceAll(body, "ID", fmt.Sprint(n+1000))
			return f.dial("POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
				"Accept: application/json, text/event-stream"+more+"\r\nContent-Length: "+fmt.Sprint(len(b)), b)
		}
	}
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	const stateless = "\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: "
	const stateful = "\r\nMcp-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: "
	call := func(tool, more string) string {
		return `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}` + more + `}}`
	}
	return map[string]func(*flood, int) net.Conn{
		"bare calls":       post("/mcp", "", call("remote_all", "")),
		"stateless calls":  post("/mcp", stateless+"tools/call\r\nMcp-Name: remote_all", call("remote_all", ","+meta)),
		"stateful calls":   post("/mcp", stateful+session, call("local_all", "")),
		"calls of the API": post("/v1/tools/local_all", "", "{}"),
		"resources":        post("/mcp", stateless+"resources/read\r\nMcp-Name: large://all", `{"jsonrpc":"2.0","id":ID,"method":"resources/read","params":{"uri":"large://all",`+meta+`}}`),
		"files": post("/mcp", stateless+"resources/read\r\nMcp-Name: sandlot://sessions/home/files/workspace/large",
			`{"jsonrpc":"2.0","id":ID,"method":"resources/read","params":{"uri":"sandlot://sessions/home/files/workspace/large",`+meta+`}}`),
		"stdio": func(f *flood, n int) net.Conn {
			lines := hello + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
			for i := range 20 {
				lines += strings.ReplaceAll(call("local_all", ""), "ID", fmt.Sprint(i+1)) + "\n"
			}
			return f.dial("POST /v1/stdio"+upgrading+"sandlot-mcp", lines)
		},
	}
}

// TestAnswersNobodyReads has one user call for hundreds of answers of 8 MiB, in every
// way, and read none: the server stays small, others are served, and as soon as the
// user reads, so is that user.
func TestAnswersNobodyReads(t *testing.T) {
	program := filepath.Join(t.TempDir(), "large.py")
	rewrite(t, program, largeProgram)
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, file, fmt.Sprintf("mcp:\n  remote: {url: %q, prefix: remote}\n"+
		"  local: {command: python3, args: [%q], where: host, user: \"0\", prefix: local}\n", large(t).URL, program))
	s := start(t, "SANDLOT_AUTH=required", "SANDLOT_CONFIG="+file)
	bob := s.token("bob")
	slowest(t, s, bob)
	before := slowest(t, s, bob)
	ann := &flood{server: s, t: t, token: s.token("ann"), deaf: true}
	if code, _, text := s.request("POST", "/v1/tools/execute_code", strings.NewReader(`{"code":"open('large', 'w').write('x' * (8 << 20))"}`), "Authorization", "Bearer "+ann.token); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	whole := func(tool string) (int, string) {
		code, _, text := s.request("POST", "/v1/tools/"+tool, strings.NewReader(`{}`), "Authorization", "Bearer "+ann.token)
		return code, text
	}
	for _, tool := range []string{"remote_all", "local_all"} {
		code, text := whole(tool)
		for deadline := time.Now().Add(time.Minute); code == 503 && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond) // it is starting
			code, text = whole(tool)
		}
		if code != 200 || len(text) < 8<<20-2048 {
			t.Fatalf("one that is read, of %s: %d, %d bytes: %.1000s", tool, code, len(text), text)
		}
	}
	most := int64(0)
	looks := func() {
		most = max(most, memory(t, s.cmd.Process.Pid))
	}
	var open []net.Conn
	for name, dial := range unreadKinds(ann.session()) {
		for n := range 50 {
			if c := dial(ann, n); c != nil {
				open = append(open, c)
			}
			looks()
		}
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			looks()
		}
		t.Logf("%s: the server had %d MiB, and has %d", name, most>>20, memory(t, s.cmd.Process.Pid)>>20)
	}
	began := time.Now()
	if code, _ := whole("remote_all"); code != http.StatusTooManyRequests || time.Since(began) > 2*time.Minute {
		t.Errorf("one more, while none is read: %d after %v", code, time.Since(began))
	}
	after := slowest(t, s, bob)
	looks()
	t.Logf("bob's P99 was %v and is %v; the server had %d MiB", before, after, most>>20)
	if most > 400<<20 { // of 2,800 MiB of answers; what the collector has not freed yet counts too
		t.Errorf("the server had %d MiB", most>>20)
	}
	if after > 3*before+500*time.Millisecond {
		t.Errorf("bob's P99 was %v and is %v", before, after)
	}
	for _, c := range open {
		c.Close()
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if code, text := whole("remote_all"); code == 200 && len(text) >= 8<<20-2048 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("what was held is not given back: %d", code)
		}
	}
}
