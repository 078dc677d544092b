//lint:file-ignore SA1019 clients of the older era have sampling and logging

package test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// put brings a file of test/servers into the home of the user of a token.
func (s *server) put(token, name string) string {
	s.t.Helper()
	text, err := os.ReadFile("servers/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	headers := []string{}
	if token != "" {
		headers = credentials(token)
	}
	if code, _, body := s.request("PUT", "/v1/sessions/home/files/workspace/"+name, strings.NewReader(string(text)),
		headers...); code >= 300 {
		s.t.Fatalf("PUT %s: %d %s", name, code, body)
	}
	return "/workspace/" + name
}

// odd connects test/servers/odd.py under a name.
func (c *client) odd(name, mode string, more args) *result {
	c.t.Helper()
	a := args{"name": name, "command": "python3", "args": []string{"/workspace/odd.py", mode, name}}
	for k, v := range more {
		a[k] = v
	}
	return c.call("connect_external_mcp", a)
}

// exposed is the name of a connection's tool.
func (r *result) exposed(t *testing.T, remote string) string {
	t.Helper()
	list, _ := r.Fields["tools"].([]any)
	for _, e := range list {
		if m, _ := e.(map[string]any); m["remoteName"] == remote {
			return m["toolName"].(string)
		}
	}
	t.Fatalf("no tool %s in %v", remote, r.Fields)
	return ""
}

// state is what list_external_mcp says of a connection.
func (c *client) state(name string) map[string]any {
	c.t.Helper()
	list, _ := c.call("list_external_mcp", args{}).Fields["connections"].([]any)
	for _, e := range list {
		if m, _ := e.(map[string]any); m["name"] == name {
			return m
		}
	}
	return nil
}

// toolNames lists the tools that a client sees.
func (c *client) toolNames() map[string]*mcp.Tool {
	c.t.Helper()
	all := map[string]*mcp.Tool{}
	for t, err := range c.Tools(c.t.Context(), nil) {
		if err != nil {
			c.t.Fatal(err)
		}
		all[t.Name] = t
	}
	return all
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; {
		began := time.Now()
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatal("waited too long until ", what)
		}
		// What takes work to find out is asked for less often: others want the processor for what is waited for.
		time.Sleep(min(max(50*time.Millisecond, 2*time.Since(began)), time.Second))
	}
}

// TestConnection: connecting, calling, listing, disconnecting, as the documents
// of the succeeded system say.
func TestConnection(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	eachEra(t, s, func(t *testing.T, c *client) {
		name := "odd " + c.InitializeResult().ProtocolVersion
		r := c.odd(name, "plain", args{"env": args{"ODD_KEY": "secret value"}})
		if r.IsError || r.Fields["success"] != true || r.Fields["name"] != name || r.Fields["toolCount"] != 12.0 ||
			r.Fields["envStored"] != false {
			t.Fatalf("%v\n%s", r.Fields, r.All)
		}
		if keys, _ := json.Marshal(r.Fields["envKeys"]); string(keys) != `["ODD_KEY"]` {
			t.Errorf("envKeys %s", keys)
		}
		id := r.Fields["connectionId"].(string)
		say := r.exposed(t, "say")
		if say != "ext_"+id+"_say" {
			t.Errorf("exposed as %s", say)
		}
		d := c.toolNames()[say]
		if d == nil || !strings.HasPrefix(d.Description, "[external:"+name+"] Says") {
			t.Fatalf("listed as %+v", d)
		}
		until(t, "execute_code says that code can call it", func() bool {
			return strings.Contains(c.toolNames()["execute_code"].Description, "/run/mcp/README.md")
		})
		if got := c.call(say, args{"text": "hi"}); got.Text != name+": hi" || got.IsError {
			t.Errorf("said %q", got.All)
		}
		if got := c.call(r.exposed(t, "env"), nil); !strings.Contains(got.Text, "secret value") {
			t.Errorf("its environment: %q", got.Text)
		}
		if got := c.call(r.exposed(t, "where"), nil); got.Text != "/workspace" {
			t.Errorf("it runs in %q", got.Text)
		}
		if list := c.call("list_external_mcp", args{}); strings.Contains(list.All, "secret value") {
			t.Error("a value of env is listed")
		}
		if row := c.state(name); row["state"] != "connected" || row["id"] != id || row["command"] != "python3" ||
			row["protocolVersion"] != "2025-11-25" {
			t.Errorf("listed as %v", row)
		}
		// The same name with other settings replaces the server; its tools keep their names.
		again := c.odd(name, "banner", nil)
		if again.Fields["connectionId"] != id || again.exposed(t, "say") != say {
			t.Errorf("replaced as %v", again.Fields)
		}
		if got := c.call(r.exposed(t, "env"), nil); got.Text != "{}" {
			t.Errorf("the environment of before: %q", got.Text)
		}
		if log := c.call("external_mcp_logs", args{"name": name}); !strings.Contains(log.Text,
			"[stdout] Welcome to the server!") {
			t.Errorf("log: %q", log.Text)
		}
		if gone := c.call("disconnect_external_mcp", args{"connectionId": id}); gone.Fields["success"] != true ||
			gone.Fields["deleted"] != false {
			t.Errorf("disconnected: %v", gone.Fields)
		}
		if row := c.state(name); row["state"] != "disabled" {
			t.Errorf("after disconnecting: %v", row)
		}
		if c.toolNames()[say] != nil {
			t.Error("a disconnected server's tool is listed")
		}
		if _, err := c.try(t.Context(), say, nil); err == nil {
			t.Error("a disconnected server's tool can be called")
		}
		if back := c.call("restart_external_mcp", args{"name": name}); back.exposed(t, "say") != say {
			t.Errorf("restarted: %v", back.Fields)
		}
		if gone := c.call("disconnect_external_mcp",
			args{"name": name, "delete": true}); gone.Fields["deleted"] != true || c.state(name) != nil {
			t.Errorf("deleted: %v %v", gone.Fields, c.state(name))
		}
	})
	// Its names are its user's alone: whoever reads the metrics sees one label.
	code, _, text := s.request("GET", "/metrics", nil)
	if code != 200 || !strings.Contains(text, `sandlot_tool_call_seconds_count{outcome="ok",tool="ext"}`) {
		t.Errorf("the metrics: %d\n%s", code, text)
	}
	for _, name := range []string{"ext_", "say", "odd"} {
		if strings.Contains(text, `"`+name) {
			t.Errorf("the metrics name %s", name)
		}
	}
}

// TestShellExec: the result has the succeeded system's fields.
func TestShellExec(t *testing.T) {
	t.Parallel()
	s := start(t)
	eachEra(t, s, func(t *testing.T, c *client) {
		r := c.call("sandbox_shell_exec", args{"command": "pwd; echo err >&2; exit 3"})
		if !r.IsError || r.Fields["exitCode"] != 3.0 || r.Fields["stdout"] != "/workspace\n" ||
			r.Fields["stderr"] != "err\n" || r.Fields["timedOut"] != false {
			t.Errorf("%v %q", r.Fields, r.All)
		}
		r = c.call("sandbox_shell_exec", args{"command": "pwd; sleep 60", "cwd": "/tmp", "timeoutMs": 500})
		if !r.IsError || r.Fields["exitCode"] != 124.0 || r.Fields["stdout"] != "/tmp\n" ||
			r.Fields["timedOut"] != true {
			t.Errorf("%v %q", r.Fields, r.All)
		}
	})
}

// TestConnectionInput: bad input is refused with a word of what to do, and a
// server that does not start leaves nothing.
func TestConnectionInput(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	for name, tt := range map[string]struct {
		tool string
		a    args
		want string
	}{
		"nothing to run": {"connect_external_mcp", args{"name": "x"}, "either a command"},
		"both": {"connect_external_mcp", args{"name": "x", "command": "a", "url": "http://a"},
			"either a command"},
		"no name":  {"connect_external_mcp", args{"command": "a"}, `"name" is missing`},
		"bad name": {"connect_external_mcp", args{"name": "../x", "command": "a"}, "begins with a letter"},
		"bad env": {"connect_external_mcp", args{"name": "x", "command": "a", "env": args{"A B": "1"}},
			"env name"},
		"large env": {"connect_external_mcp", args{"name": "x", "command": "a",
			"env": args{"A": strings.Repeat("x", 40<<10)}}, "env A"},
		"transport": {"connect_external_mcp", args{"name": "x", "command": "a", "transport": "http"},
			"goes with a url"},
		"url":               {"connect_external_mcp", args{"name": "x", "url": "ftp://a"}, "https://"},
		"url with password": {"connect_external_mcp", args{"name": "x", "url": "https://a:b@c/"}, "no password"},
		"option": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "npm", "spec": "--registry=http://evil"}}, "option"},
		"type": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "cargo", "spec": "a"}}, "one of npm, pip, git"},
		"inner argument": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "npm", "spec": "a", "sepc": "b"}}, "install.sepc"},
		"git over ssh": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "git", "spec": "git@host:a/b"}}, "https://"},
		"git ref": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "git", "spec": "https://h/r#--upload-pack=x"}}, "branch"},
		"workdir": {"auto_install_and_connect_mcp",
			args{"name": "x", "install": args{"type": "npm", "spec": "a"}, "workdir": "../../etc"},
			"beneath /workspace"},
		"nobody": {"disconnect_external_mcp", args{"name": "nobody"}, "list_external_mcp"},
		"which":  {"restart_external_mcp", args{}, "connectionId or name"},
		"no such program": {"connect_external_mcp", args{"name": "x", "command": "no-such-program"},
			"command not found: no-such-program"},
		"it ends": {"connect_external_mcp", args{"name": "x", "command": "python3",
			"args": []string{"/workspace/odd.py", "exit"}}, "exit code 7"},
		"a private address": {"connect_external_mcp", args{"name": "x", "url": s.URL + "/mcp"}, "may not be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.try(t.Context(), tt.tool, tt.a)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			if name == "it ends" {
				var e *jsonrpc.Error
				if !errors.As(err, &e) || !strings.Contains(string(e.Data), "cannot find my configuration") {
					t.Errorf("its last words are missing: %v", err)
				}
			}
		})
	}
	if row := c.state("x"); row != nil {
		t.Errorf("what did not start is there: %v", row)
	}
}

// TestConnectionFaults: what third-party servers do wrong is contained, and said.
func TestConnectionFaults(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	fine := c.odd("fine", "plain", nil)
	works := func() {
		t.Helper()
		if r := c.call(fine.exposed(t, "say"), args{"text": "still"}); r.Text != "fine: still" {
			t.Fatalf("another server: %q", r.All)
		}
		c.want("home", "6*7", "42")
	}
	// It takes all the time that a server has to answer; the others come meanwhile.
	endless := make(chan error, 1)
	go func() {
		_, err := c.try(t.Context(), "connect_external_mcp",
			args{"name": "noise", "command": "python3", "args": []string{"/workspace/odd.py", "noise"}})
		endless <- err
	}()
	t.Run("a crash in every call", func(t *testing.T) {
		r := c.odd("crash", "crash", nil)
		say := r.exposed(t, "say")
		for n := range 12 {
			_, err := c.try(t.Context(), say, nil)
			if err == nil {
				t.Fatal("a crash is an answer")
			}
			if n == 0 && (!strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), `"crash"`)) {
				t.Errorf("said %v", err)
			}
			if strings.Contains(err.Error(), "given up") {
				break
			}
		}
		row := c.state("crash")
		if row["state"] != "error" || !strings.Contains(row["lastError"].(string), "given up") {
			t.Errorf("after many crashes: %v", row)
		}
		if log := c.call("external_mcp_logs", args{"name": "crash"}); !strings.Contains(log.Text, "about to die") {
			t.Errorf("log %q", log.Text)
		}
		works()
	})
	t.Run("one crash", func(t *testing.T) {
		r := c.odd("once", "plain", nil)
		if _, err := c.try(t.Context(), r.exposed(t, "die"), nil); err == nil ||
			!strings.Contains(err.Error(), "started again") {
			t.Errorf("said %v", err)
		}
		if got := c.call(r.exposed(t, "say"), args{"text": "back"}); got.Text != "once: back" {
			t.Errorf("after a crash: %q", got.All)
		}
	})
	t.Run("flood", func(t *testing.T) {
		r := c.odd("flood", "plain", nil)
		done := make(chan string)
		go func() {
			got, err := c.try(context.Background(), r.exposed(t, "flood"), args{"seconds": 3})
			if err != nil {
				done <- err.Error()
				return
			}
			done <- got.Text
		}()
		for range 10 {
			works()
		}
		if got := <-done; got != "flooded" {
			t.Errorf("after the flood: %q", got)
		}
	})
	t.Run("memory", func(t *testing.T) {
		r := c.odd("hog", "plain", nil)
		_, err := c.try(t.Context(), r.exposed(t, "hog"), nil)
		if err == nil || !strings.Contains(err.Error(), "memory") {
			t.Errorf("said %v", err)
		}
		works()
	})
	t.Run("too much", func(t *testing.T) {
		r := c.odd("big", "plain", nil)
		got := c.call(r.exposed(t, "big"), nil)
		if len(got.All) > 10<<20 || !strings.HasPrefix(got.Text, "beginz") ||
			!strings.Contains(got.Text, "were left out") || !strings.HasSuffix(strings.TrimSpace(got.Text), "zend") {
			t.Errorf("%d bytes, %.100q", len(got.All), got.Text)
		}
	})
	t.Run("a line without an end", func(t *testing.T) {
		if err := <-endless; err == nil {
			t.Error("it is connected")
		}
		works()
	})
}

// TestConnectionPasses: what a server sends comes through whole.
func TestConnectionPasses(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	var mu sync.Mutex
	var steps, logs, asked []string
	opts := &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			steps = append(steps, r.Params.Message)
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			mu.Lock()
			defer mu.Unlock()
			b, _ := json.Marshal(r.Params)
			logs = append(logs, string(b))
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, r.Params.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"colour": "blue"}}, nil
		},
		CreateMessageHandler: func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "test", Role: "assistant",
				Content: &mcp.TextContent{Text: "hello yourself: " + r.Params.SystemPrompt}}, nil
		},
	}
	for _, era := range []string{older, newer} {
		t.Run(era, func(t *testing.T) {
			c := s.connect(era, "", opts)
			r := c.odd("passes", "plain", nil)
			mu.Lock()
			steps, logs, asked = nil, nil, nil
			mu.Unlock()
			res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: r.exposed(t, "slow"), Arguments: args{},
				Meta: mcp.Meta{"progressToken": "p"}})
			if err != nil || res.Content[0].(*mcp.TextContent).Text != "done" {
				t.Fatalf("%v %v", res, err)
			}
			until(t, "all progress has come", func() bool { mu.Lock(); defer mu.Unlock(); return len(steps) >= 3 })
			if got := strings.Join(steps, ", "); got != "step 1, step 2, step 3" {
				t.Errorf("progress %s", got)
			}
			if got := c.call(r.exposed(t, "ask"), nil); !strings.Contains(got.Text, `"colour": "blue"`) ||
				len(asked) != 1 || asked[0] != "The MCP server passes asks:\n> Which colour?" {
				t.Errorf("asked %v, answered %q", asked, got.All)
			}
			if got := c.call(r.exposed(t, "ask"), args{"method": "sampling/createMessage"}); !strings.Contains(got.Text,
				"hello yourself: The MCP server passes asks for this, through Sandlot.") {
				t.Errorf("sampling: %q", got.All)
			}
			if era == older {
				if err := c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
					t.Fatal(err)
				}
				c.call(r.exposed(t, "log"), nil)
				until(t, "the log has come", func() bool { mu.Lock(); defer mu.Unlock(); return len(logs) > 0 })
				if !strings.Contains(logs[0], "from passes") || !strings.Contains(logs[0], "passes/odd") {
					t.Errorf("logged %v", logs)
				}
			}
		})
	}
	t.Run("numbers and unknown fields", func(t *testing.T) {
		c := s.connect(older, "", nil)
		number := ""
		for _, tool := range c.state("passes")["tools"].([]any) {
			if m := tool.(map[string]any); m["remoteName"] == "number" {
				number = m["toolName"].(string)
			}
		}
		_, _, body := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+number+
			`","arguments":{}}}`)
		if !strings.Contains(body, "12345678901234567890") || !strings.Contains(body, `"kept":true`) {
			t.Errorf("came as %s", body)
		}
	})
	t.Run("a client that cannot be asked", func(t *testing.T) {
		c := s.connect(older, "", nil)
		r := c.odd("passes", "plain", nil)
		if got := c.call(r.exposed(t, "ask"), nil); !strings.Contains(got.Text, "cannot ask its user") {
			t.Errorf("said %q", got.All)
		}
	})
	t.Run("cancellation", func(t *testing.T) {
		c := s.connect(older, "", nil)
		r := c.odd("passes", "plain", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.try(ctx, r.exposed(t, "slow"), args{"steps": 1000}); err == nil {
			t.Error("a cancelled call is answered")
		}
		if got := c.call(r.exposed(t, "say"), args{"text": "on"}); got.Text != "passes: on" {
			t.Errorf("after a cancelled call: %q", got.All)
		}
	})
}

// TestConnectionChanges: a tool that changes after it was approved is held back.
func TestConnectionChanges(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	changes := make(chan struct{}, 100)
	c := s.connect(older, "", &mcp.ClientOptions{ToolListChangedHandler: func(context.Context,
		*mcp.ToolListChangedRequest) {
		changes <- struct{}{}
	}})
	r := c.odd("shifty", "plain", nil)
	say := r.exposed(t, "say")
	c.call(r.exposed(t, "change"), nil)
	until(t, "the changed tool is held back", func() bool { return c.toolNames()[say] == nil })
	if found := c.call("search_tools", args{"query": say}).Text; !strings.HasPrefix(found,
		say+" [shifty] (held back: ") {
		t.Errorf("a search finds\n%s", found)
	}
	says := func(t *testing.T, what, said string, words ...string) {
		t.Helper()
		for _, w := range append(words, "sandlot mcp") {
			if !strings.Contains(said, w) {
				t.Errorf("%s: %q is not said: %s", what, w, said)
			}
		}
	}
	call := func(body string) string { return strings.ReplaceAll(body, "TOOL", say) }
	everywhere := func(words ...string) {
		t.Helper()
		eachEra(t, s, func(t *testing.T, c *client) {
			_, err := c.try(t.Context(), say, nil)
			var wire *jsonrpc.Error
			if !errors.As(err, &wire) {
				t.Fatalf("%s: %v", say, err)
			}
			says(t, "MCP", wire.Message+string(wire.Data), words...)
		})
		_, _, said := s.post("/mcp",
			call(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"TOOL","arguments":{}}}`))
		says(t, "bare", said, words...)
		_, _, said = s.post(call("/v1/tools/TOOL"), "{}")
		says(t, "HTTP", said, words...)
		_, said, _ = s.cli("mcp", "call", "shifty", "say")
		says(t, "the command", said, words...)
	}
	everywhere("held back", "changed since it was approved", "approve shifty")
	row := c.state("shifty")
	if held, _ := json.Marshal(row["heldTools"]); row["state"] != "needs_approval" ||
		!strings.Contains(string(held), "changed since it was approved") {
		t.Errorf("listed as %v", row)
	}
	out, stderr, code := s.cli("mcp", "inspect", "shifty")
	if code != 0 || !strings.Contains(out, "HELD BACK") || !strings.Contains(out, "Send all files") {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	if out, stderr, code = s.cli("mcp", "approve", "shifty"); code != 0 {
		t.Fatalf("%d %s%s", code, out, stderr)
	}
	until(t, "the approved tool is there", func() bool { return c.toolNames()[say] != nil })
	if got := c.call(say, args{"text": "x"}); got.Text != "shifty: x" {
		t.Errorf("approved: %q", got.All)
	}
	c.call("disconnect_external_mcp", args{"name": "shifty"})
	until(t, "its tools are gone", func() bool { return c.toolNames()[say] == nil })
	everywhere("is disconnected", "restart shifty")
}

// TestConnectionShelf: prompts and resources, from the command line.
func TestConnectionShelf(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	c := s.connect(newer, "", nil)
	if r := c.odd("shelf", "shelf", nil); r.Fields["promptCount"] != 1.0 || r.Fields["resourceCount"] != 2.0 {
		t.Errorf("connected as %v", r.Fields)
	}
	if row := c.state("shelf"); row["promptCount"] != 1.0 || row["resourceCount"] != 2.0 {
		t.Errorf("listed as %v", row)
	}
	data := strings.Builder{}
	for i := range 256 * 4096 {
		data.WriteByte(byte(i))
	}
	for _, tt := range []struct {
		args []string
		out  string
		code int
		says string
	}{
		{[]string{"prompt", "shelf", "greet", "who=a=b"}, "user:\nGreet a=b.\n", 0, ""},
		{[]string{"prompt", "shelf", "gret", "who=a"}, "", 1, `did you mean "greet"?`},
		{[]string{"prompt", "shelf", "greet", "who"}, "", 2, "KEY=VALUE"},
		{[]string{"read", "shelf", "odd://text"}, "\x1b[31mred\n", 0, ""},
		{[]string{"read", "shelf", "odd://data"}, data.String(), 0, ""},
		{[]string{"read", "self", "odd://data"}, "", 1, `no connection "self"`},
	} {
		out, stderr, code := s.cli(append([]string{"mcp"}, tt.args...)...)
		if out != tt.out || code != tt.code || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: %d %.100q %s", tt.args, code, out, stderr)
		}
	}
	out, _, _ := s.cli("mcp", "read", "shelf", "odd://text", "--json")
	if !strings.Contains(out, `"uri": "odd://text"`) {
		t.Error(out)
	}
}

// TestConnectionUsers: two users with a connection of the same name, and an
// attacker who knows its id.
func TestConnectionUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob, eve := s.token("ann"), s.token("bob"), s.token("eve")
	s.put(ann, "odd.py")
	s.put(bob, "odd.py")
	var mu sync.Mutex
	heard := map[string][]string{}
	listen := func(who string) *mcp.ClientOptions {
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			heard[who] = append(heard[who], what)
		}
		return &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { note("changed") },
			LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
				b, _ := json.Marshal(r.Params.Data)
				note(string(b))
			},
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				note("asked")
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"colour": who}}, nil
			},
		}
	}
	a, b, e := s.connect(older, ann, listen("ann")), s.connect(older, bob, listen("bob")),
		s.connect(older, eve, listen("eve"))
	for _, c := range []*client{a, b, e} {
		if err := c.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
			t.Fatal(err)
		}
	}
	ra := a.odd("same", "plain", args{"env": args{"ODD_KEY": "of ann"}})
	rb := b.odd("same", "plain", args{"env": args{"ODD_KEY": "of bob"}})
	id := ra.Fields["connectionId"].(string)
	if id == rb.Fields["connectionId"] {
		t.Fatal("both have one id")
	}
	for _, c := range []*client{b, e} {
		for _, call := range []struct {
			tool string
			a    args
		}{
			{ra.exposed(t, "say"), nil}, {"disconnect_external_mcp", args{"connectionId": id, "delete": true}},
			{"restart_external_mcp", args{"connectionId": id}}, {"external_mcp_logs", args{"connectionId": id}},
		} {
			if r, err := c.try(t.Context(), call.tool, call.a); err == nil {
				t.Errorf("%s of another user: %s", call.tool, r.All)
			}
		}
		for _, path := range []string{"/v1/connections/" + id} {
			if code, _, body := s.request("GET", path, nil, "Authorization", "Bearer "+eve); code != 404 {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
	}
	if n := len(e.toolNames()); n == 0 || e.state("same") != nil {
		t.Error("eve sees a connection")
	}
	var all sync.WaitGroup
	for _, u := range []struct {
		c    *client
		r    *result
		name string
	}{{a, ra, "ann"}, {b, rb, "bob"}} {
		all.Go(func() {
			for range 10 {
				if got := u.c.call(u.r.exposed(t, "env"), nil); !strings.Contains(got.Text, "of "+u.name) {
					t.Errorf("%s has %s", u.name, got.Text)
				}
				if got := u.c.call(u.r.exposed(t, "ask"), nil); !strings.Contains(got.Text, u.name) {
					t.Errorf("%s was not asked: %s", u.name, got.Text)
				}
			}
		})
	}
	all.Wait()
	mu.Lock()
	heard = map[string][]string{}
	mu.Unlock()
	a.call(ra.exposed(t, "log"), nil)
	a.call(ra.exposed(t, "change"), nil)
	until(t, "ann has heard of both", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard["ann"]) >= 1 })
	time.Sleep(300 * time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	if len(heard["bob"])+len(heard["eve"]) > 0 {
		t.Errorf("others heard %v", heard)
	}
}

// TestConnectionStartsLate: a server that needs half of its time to start is started once, also when a call starts it
// again.
func TestConnectionStartsLate(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "late.py")
	c := s.connect(older, "", nil)
	late := c.call("connect_external_mcp", args{"name": "late", "command": "python3", "args": []string{"/workspace/late.py"}})
	for _, starts := range []string{"s", "ss"} {
		if got := c.call(late.exposed(t, "greet"), nil); got.Text != "hello" {
			t.Errorf("it says %q", got.All)
		}
		if got := c.shell("home", "cat starts.txt").Text; got != starts {
			t.Errorf("it was started %q, not %q", got, starts)
		}
		if starts == "s" {
			s.stop()
			transport.CloseIdleConnections()
			s.launch()
			if row := c.state("late"); row["state"] != "idle" {
				t.Errorf("it is %v", row)
			}
		}
	}
}

// TestConnectionServerKilled: connections are there after a crash of Sandlot.
func TestConnectionServerKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	plain := c.odd("plain", "plain", nil)
	keyed := c.odd("keyed", "plain", args{"env": args{"ODD_KEY": "k"}})
	off := c.odd("off", "plain", nil)
	c.call("disconnect_external_mcp", args{"name": "off"})
	go c.try(t.Context(), plain.exposed(t, "slow"), args{"steps": 100})
	time.Sleep(300 * time.Millisecond)
	s.kill()
	s.launch()
	c = s.connect(newer, "", nil)
	names := c.toolNames()
	if names[plain.exposed(t, "say")] == nil || names[keyed.exposed(t, "say")] == nil ||
		names[off.exposed(t, "say")] != nil {
		t.Errorf("after a crash: %d tools", len(names))
	}
	if row := c.state("plain"); row["state"] != "idle" {
		t.Errorf("plain: %v", row)
	}
	if got := c.call(plain.exposed(t, "say"), args{"text": "again"}); got.Text != "plain: again" {
		t.Errorf("after a crash: %q", got.All)
	}
	if row := c.state("keyed"); row["state"] != "needs_env" {
		t.Errorf("keyed: %v", row)
	}
	if _, err := c.try(t.Context(), keyed.exposed(t, "say"), nil); err == nil ||
		!strings.Contains(err.Error(), "ODD_KEY") {
		t.Errorf("without its values: %v", err)
	}
	if _, err := c.try(t.Context(), "restart_external_mcp", args{"name": "keyed",
		"env": args{"OTHER": "x"}}); err == nil || !strings.Contains(err.Error(), "ODD_KEY") {
		t.Errorf("with other values: %v", err)
	}
	c.call("restart_external_mcp", args{"name": "keyed", "env": args{"ODD_KEY": "new"}})
	if got := c.call(keyed.exposed(t, "env"), nil); !strings.Contains(got.Text, "new") {
		t.Errorf("with its values: %q", got.All)
	}
	if got := c.shell("home", "ps ax -o args | grep -c '[o]dd.py'; true"); strings.TrimSpace(got.Text) != "2" {
		t.Errorf("servers that run: %q", got.All)
	}
}
