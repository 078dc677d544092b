package toolcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/tool"
)

// world has Calls whose tools are the test's.
type world struct {
	t *testing.T
	*Calls
	mu     sync.Mutex
	any    bool
	files  []agent.ToolFile
	scopes map[string]auth.Scope
	logged []string
	named  int // how often a name was asked for
	offers []catalog.Offered
	// do is what each tool does. The session is that of a program in the background; empty: a run calls.
	do func(ctx context.Context, session string, c tool.Call) (*tool.Result, error)
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, any: true, scopes: map[string]auth.Scope{}}
	w.Calls = New(Config{Door: w, Servers: w, Finder: w, Sessions: w, Clients: w, Limits: limit.New(limit.Default),
		Log: slog.New(slog.DiscardHandler)})
	w.tree = func(auth.Principal) ([]agent.ToolFile, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.files, nil
	}
	w.do = func(_ context.Context, session string, c tool.Call) (*tool.Result, error) {
		return &tool.Result{Raw: json.RawMessage(fmt.Sprintf(`{"by": %q,
			"tool": %q, "scope": %q}`, session, c.Name, c.Principal.Scope))}, nil
	}
	return w
}

// CallExternal implements Door.
func (w *world) CallExternal(ctx context.Context, c tool.Call) (*tool.Result, error) {
	return w.do(ctx, "", c)
}

// CallInBackground implements Door.
func (w *world) CallInBackground(ctx context.Context, session string, c tool.Call) (*tool.Result, error) {
	return w.do(ctx, session, c)
}

// MayCall implements Door.
func (*world) MayCall(_ context.Context, session string, p auth.Principal, _, _ string) error {
	if d := policy.Decide(policy.Question{Principal: p, Operation: policy.CodeBackground}); session != "" {
		return d.Err()
	}
	return policy.Decide(policy.Question{Principal: p, Operation: policy.MCPCall}).Err()
}

// Elicit implements Door.
func (*world) Elicit(_ context.Context, e tool.Elicitation) (json.RawMessage, error) {
	of := strings.Join([]string{e.Owner, e.Session, e.Caller, e.Tool}, " ")
	return json.Marshal(map[string]any{"action": "accept", "of": of})
}

// Owns implements Door.
func (*world) Owns(name string) bool { return name == "execute_code" }

// ForwardLog implements Clients.
func (w *world) ForwardLog(owner string, params json.RawMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logged = append(w.logged, owner+" "+string(params))
}

// Offered implements Servers.
func (w *world) Offered(auth.Principal) []catalog.Offered { return w.offers }

// SearchJSON implements Finder.
func (*world) SearchJSON(_ context.Context, _ auth.Principal, query, _ string, _ int) (any, error) {
	if query == "panic" {
		panic("search")
	}
	return []string{query}, nil
}

// ScopeOf implements Sessions.
func (w *world) ScopeOf(session string) auth.Scope {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scopes[session]
}

// Narrow implements Sessions.
func (w *world) Narrow(session string, s auth.Scope) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scopes[session] = policy.Narrow(w.scopes[session], s)
}

// Any implements Servers.
func (w *world) Any(auth.Principal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.any
}

// ToolName implements Servers.
func (w *world) ToolName(_ context.Context, _ auth.Principal, server, name string) (string, error) {
	w.mu.Lock()
	w.named++
	w.mu.Unlock()
	if server != "s" {
		return "", fault.New(fault.NotFound, "there is no server %q", server)
	}
	return "s_" + name, nil
}

// box is a sandbox, and its agent.
type box struct {
	tools agent.Tools
	mu    sync.Mutex
	fails bool
	takes time.Duration
	got   []string // requests to change the tree
	old   bool     // its agent knows of no tree
	end   func()   // what OnEnd has got
}

func (b *box) SetTools(t agent.Tools) { b.tools = t }
func (b *box) OnEnd(f func())         { b.end = f }

func (b *box) UpdateTools(_ context.Context, files []agent.ToolFile, removed []string, complete bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	time.Sleep(b.takes)
	if b.old {
		return &agent.Refusal{Reason: agent.Unsupported, Message: "what is that"}
	}
	if b.fails {
		b.got = append(b.got, "failed")
		return errors.New("no agent")
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	slices.Sort(names)
	b.got = append(b.got, fmt.Sprintf("+%s -%s %t", strings.Join(names, " "), strings.Join(removed, " "), complete))
	return nil
}

func (b *box) requests() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.got, "; ")
}

func (w *world) box(owner, session string) *box {
	b := &box{}
	w.Attach(owner, session, b, false)
	return b
}

// program is a connection of a program.
type program struct {
	t *testing.T
	net.Conn
	lines *bufio.Scanner
}

// dial makes a connection of a program whose tag is returned by from.
func (w *world) dial(b *box, from func() agent.Caller) *program {
	here, there := net.Pipe()
	go b.tools.Serve(w.t.Context(), there, from)
	p := &program{w.t, here, bufio.NewScanner(here)}
	p.lines.Buffer(nil, 1<<20)
	w.t.Cleanup(func() { here.Close() })
	return p
}

func tagged(tag string) func() agent.Caller {
	return func() agent.Caller { return agent.Caller{Tag: tag} }
}

func (p *program) send(text string) {
	p.t.Helper()
	if _, err := p.Write([]byte(text + "\n")); err != nil {
		p.t.Errorf("sending %.80q: %v", text, err)
	}
}

// next returns the next line; empty: the connection has ended.
func (p *program) next() string {
	p.lines.Scan()
	return p.lines.Text()
}

func (p *program) want(text string) {
	p.t.Helper()
	if got := p.next(); !strings.Contains(got, text) {
		p.t.Errorf("got %q, want %q", got, text)
	}
}

const callA = `{"call": {"server": "s", "tool": "a", "arguments": {}}}`

var ann = auth.User("ann", false)

// TestWhoseCall: a run calls with its own rights. What has no run, or that of another session, or one that has ended,
// calls in the background, with what all tokens had that started something in the session.
func TestWhoseCall(t *testing.T) {
	w := newWorld(t)
	one, two := w.box(ann.ID, "one"), w.box(ann.ID, "two")
	narrow := ann
	narrow.Scope = auth.NewScope("code.*", "mcp.call")
	tag, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: narrow})
	other, endOther := w.Begin(t.Context(), "two", "a command", tool.Call{Principal: ann})
	defer endOther()
	for _, tt := range []struct {
		of   *box
		tag  string
		want string
	}{
		{one, tag, `{"by":"","tool":"s_a","scope":"code.* mcp.call"}`},
		{two, other, `{"by":"","tool":"s_a","scope":""}`},
		{two, tag, `{"by":"two","tool":"s_a","scope":""}`},
		{one, other, `{"by":"one","tool":"s_a","scope":"code.* mcp.call"}`},
		{one, "", `{"by":"one","tool":"s_a","scope":"code.* mcp.call"}`},
		{one, "made up", `{"by":"one","tool":"s_a","scope":"code.* mcp.call"}`},
	} {
		p := w.dial(tt.of, tagged(tt.tag))
		p.send(callA)
		p.want(`{"result":` + tt.want + `}`)
	}
	p := w.dial(one, tagged(tag))
	p.send(callA)
	p.want(`"by":""`)
	end()
	p.send(callA)
	p.want(`"by":"one"`)
	if len(w.runs) != 1 {
		t.Errorf("runs that are left: %v", w.runs)
	}
	w.any = false
	if tag, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: ann}); tag != "" {
		t.Errorf("a tag of who has no servers: %q", tag)
	} else {
		end()
	}
}

// TestRequests: what is no request has an answer, and the connection goes on.
func TestRequests(t *testing.T) {
	w := newWorld(t)
	p := w.dial(w.box(ann.ID, "one"), tagged(""))
	for request, want := range map[string]string{
		"":                           codeInvalid,
		"[1]":                        codeInvalid,
		"{}":                         codeInvalid,
		`{"call": 7}`:                codeInvalid,
		strings.Repeat("[", 100_000): codeInvalid,
		`{"call": {"server": "x"}}`:  `"not_found","message":"there is no server`,
		`{"call": {"server": "sandlot", "tool": "execute_code"}}`: `use it from the client`,
	} {
		p.send(request)
		p.want(want)
	}
	go func() { p.send(callA + "\n" + callA + "\n" + callA) }() // one after the other
	for range 3 {
		p.want(`"result"`)
	}
	go func() { _, _ = p.Write([]byte(strings.Repeat("x", maxRequest) + "more\n" + callA + "\n")) }()
	p.want(codeTooLarge)
	p.want(`"result"`)
	w.do = func(context.Context, string, tool.Call) (*tool.Result, error) {
		return nil, &tool.ExternalError{Code: -32000, Message: "no", Data: json.RawMessage(`{"why": 1}`)}
	}
	p.send(callA)
	p.want(`{"error":{"code":"server_error","message":"no","data":{"code":-32000,"data":{"why":1}}}}`)
	w.do = func(context.Context, string, tool.Call) (*tool.Result, error) { return &tool.Result{}, nil }
	p.send(callA)
	p.want("is a tool of Sandlot itself")
}

// blocking makes tools wait until their context ends, or release is called.
func (w *world) blocking() (begun chan context.Context, release func()) {
	begun, free := make(chan context.Context, 1000), make(chan struct{})
	w.do = func(ctx context.Context, _ string, _ tool.Call) (*tool.Result, error) {
		begun <- ctx
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-free:
			return &tool.Result{Raw: json.RawMessage(`{}`)}, nil
		}
	}
	return begun, sync.OnceFunc(func() { close(free) })
}

// TestEnds: a call ends with its run, its connection, its timeout, and the server.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.box(ann.ID, "one")
		begun, _ := w.blocking()
		tag, end := w.Begin(event.NewContext(t.Context(), "1.2.3.4", ""), "one", "a cell in python",
			tool.Call{Principal: ann})
		p := w.dial(b, tagged(tag))
		p.send(callA)
		const caller = "code of session one, a cell in python"
		if o := event.FromContext(<-begun); o.Address != "1.2.3.4" || o.Caller != caller {
			t.Errorf("its origin: %+v", o)
		}
		end()
		p.want(codeEnded)

		p.send(callA)
		ctx := <-begun
		p.Close()
		<-ctx.Done()

		p = w.dial(b, func() agent.Caller { return agent.Caller{Process: "p7"} })
		began := time.Now()
		p.send(`{"call": {"server": "s", "tool": "a", "timeout": 2.5}}`)
		if o := event.FromContext(<-begun); o.Caller != "code of session one, process p7" {
			t.Errorf("its origin: %+v", o)
		}
		p.want(codeTimeout)
		if took := time.Since(began); took != 2500*time.Millisecond {
			t.Errorf("a timeout after %s", took)
		}

		p.send(callA)
		<-begun
		half := w.dial(b, tagged(""))
		half.Write([]byte(callA[:5]))
		synctest.Wait()
		closed := make(chan struct{})
		go func() { w.Close(); close(closed) }()
		p.want(codeEnded)
		// What was not begun may be tried again.
		half.want(`"unavailable"`)
		<-closed
		after := w.dial(b, tagged(""))
		if line := after.next(); !strings.Contains(line, `"code":"unavailable"`) || !strings.Contains(line, `"retry":true`) {
			t.Errorf("after the end: %s", line)
		}
		w.Close()
	})
}

// TestBounds: how many calls are under way, and how long a program may say, or read, nothing.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		boxes := []*box{w.box(ann.ID, "one"), w.box(ann.ID, "two"), w.box(ann.ID, "three")}
		begun, release := w.blocking()
		began := time.Now()
		var all []*program
		for _, b := range boxes {
			for range maxCalls + 1 {
				p := w.dial(b, tagged(""))
				p.send(callA)
				all = append(all, p)
			}
		}
		synctest.Wait()
		if len(begun) != maxPrincipal {
			t.Errorf("%d calls are under way", len(begun))
		}
		time.Sleep(busyAfter)
		synctest.Wait()
		release()
		count := map[string]int{}
		for _, p := range all {
			line := p.next()
			for _, kind := range []string{codeBusy, "result"} {
				if strings.Contains(line, kind) {
					count[kind]++
				}
			}
		}
		if count[codeBusy] != 3*(maxCalls+1)-maxPrincipal || count["result"] != maxPrincipal ||
			time.Since(began) != busyAfter {
			t.Errorf("%v after %s", count, time.Since(began))
		}
		w.mu.Lock()
		if len(w.slots) != 0 {
			t.Errorf("slots are left: %v", w.slots)
		}
		w.mu.Unlock()

		idle := w.dial(boxes[0], tagged(""))
		began = time.Now()
		if line := idle.next(); line != "" || time.Since(began) != idleLimit {
			t.Errorf("an idle connection: %q after %s", line, time.Since(began))
		}
		half := w.dial(boxes[0], tagged(""))
		_, _ = half.Write([]byte(`{"call"`))
		began = time.Now()
		if line := half.next(); line != "" || time.Since(began) != stallLimit {
			t.Errorf("half a request: %q after %s", line, time.Since(began))
		}
		w.do = func(context.Context, string, tool.Call) (*tool.Result, error) {
			return &tool.Result{Raw: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}, nil
		}
		slow := w.dial(boxes[0], tagged(""))
		slow.send(callA)
		time.Sleep(stallLimit + time.Second)
		if _, err := slow.Write([]byte("x")); err == nil {
			t.Error("a connection whose program reads nothing goes on")
		}
		w.do = func(context.Context, string, tool.Call) (*tool.Result, error) {
			return &tool.Result{Raw: make(json.RawMessage, maxAnswer+1)}, nil
		}
		large := w.dial(boxes[0], tagged(""))
		large.send(callA)
		large.want(codeTooLarge)
	})
}

// person is a client that answers.
type person struct {
	mu   sync.Mutex
	at   int // how many are asked now
	most int
	told []string

	cannot bool // ask its user
}

func (p *person) ID() string { return "c" }
func (p *person) Capabilities() json.RawMessage {
	if p.cannot {
		return json.RawMessage(`{"roots":{}}`)
	}
	return json.RawMessage(`{"elicitation":{}}`)
}
func (p *person) Retries() bool { return true }

func (p *person) Ask(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	p.mu.Lock()
	p.at++
	p.most = max(p.most, p.at)
	p.mu.Unlock()
	time.Sleep(time.Second)
	p.mu.Lock()
	p.at--
	p.mu.Unlock()
	return json.RawMessage(`{"action":"accept"}`), nil
}

func (p *person) Notify(method string, params json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, method+" "+string(params))
}

// TestClientOfRun: a run's client is asked one thing at a time, and told what the tools tell. A tool cannot make it try
// the call again.
func TestClientOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, user := newWorld(t), &person{}
		var mu sync.Mutex
		var progress []string
		w.do = func(ctx context.Context, _ string, c tool.Call) (*tool.Result, error) {
			if c.Client == nil || c.Client.Retries() || c.Client.ID() != "c" {
				t.Errorf("the client %v", c.Client)
			}
			c.Client.Notify("notifications/progress", json.RawMessage(`{"progress": 1, "total": 4}`))
			c.Client.Notify("notifications/progress", json.RawMessage(`{"progress": 2, "message": "half"}`))
			c.Client.Notify("notifications/message", json.RawMessage(`{"data": 1}`))
			raw, err := c.Client.Ask(ctx, "elicitation/create", nil)
			go func() { // a late one is dropped
				time.Sleep(time.Millisecond)
				c.Progress("late")
			}()
			return &tool.Result{Raw: raw}, err
		}
		b := w.box(ann.ID, "one")
		note := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			progress = append(progress, text)
		}
		tag, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: ann, Client: user, Progress: note})
		defer end()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				p := w.dial(b, tagged(tag))
				p.send(callA)
				p.want(`{"progress":"1 of 4"}`)
				p.want(`{"progress":"half"}`)
				p.want(`{"result":{"action":"accept"}}`)
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if user.most != 1 || len(user.told) != 5 || user.told[0] != `notifications/message {"data": 1}` {
			t.Errorf("asked %d at once, told %q", user.most, user.told)
		}
		if len(progress) != 10 || slices.Contains(progress, "late") {
			t.Errorf("progress %q", progress)
		}
	})
}

// TestFirstTree: what starts in a new sandbox, in the background too, waits for its first tree longer than for changes.
func TestFirstTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		w.mu.Lock()
		w.any, w.files = true, []agent.ToolFile{{Path: "a"}}
		w.mu.Unlock()
		for takes, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Minute: firstTreeWait} {
			b := &box{takes: takes}
			w.Attach(ann.ID, "one", b, false)
			began := time.Now()
			if !w.BeginBackground(t.Context(), "one", ann) || time.Since(began) != want {
				t.Errorf("a program waited %s for a tree that takes %s", time.Since(began), takes)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestSandboxBeside: a session whose second sandbox ends has the first one, and one whose first one ends the second.
func TestSandboxBeside(t *testing.T) {
	w := newWorld(t)
	defer w.Close()
	has := func(what string, want *box) {
		t.Helper()
		w.Calls.mu.Lock()
		defer w.Calls.mu.Unlock()
		if s := w.sandboxes["one"]; (s == nil) != (want == nil) || s != nil && s.agent != Agent(want) {
			t.Errorf("%s: %v", what, s)
		}
	}
	first, other := w.box(ann.ID, "one"), w.box(ann.ID, "two")
	has("at first", first)
	second := w.box(ann.ID, "one")
	has("beside it", second)
	second.end()
	has("when the second has ended", first)
	third := w.box(ann.ID, "one")
	first.end()
	has("when the first has ended", third)
	third.end()
	has("at the end", nil)
	other.end()
}

// TestTree: a sandbox gets the tree at once, and then what changes of it. Who has no servers gets none.
func TestTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.any = false
		b := w.box(ann.ID, "one")
		set := func(any bool, files ...agent.ToolFile) {
			w.mu.Lock()
			w.any, w.files = any, files
			w.mu.Unlock()
			w.Changed(ann.ID)
			synctest.Wait()
		}
		file := func(name, text string) agent.ToolFile { return agent.ToolFile{Path: name, Data: []byte(text)} }
		set(false)
		set(true, file("a", "1"), file("b", "1"))
		set(true, file("a", "1"), file("b", "1"))
		set(true, file("a", "2"), file("c", "1"))
		w.Changed(auth.User("bob", false).ID)
		b.fails = true
		set(true, file("a", "3"))
		b.mu.Lock()
		b.fails = false
		b.mu.Unlock()
		begin := func() time.Duration {
			began := time.Now()
			_, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: ann})
			end()
			return time.Since(began)
		}
		begin() // tries again
		synctest.Wait()
		set(false)
		want := "+a b - true; +a c -b false; failed; +a - true; + -a false"
		if got := b.requests(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		b.mu.Lock()
		b.takes = 30 * time.Millisecond
		b.mu.Unlock()
		set2 := func(text string) {
			w.mu.Lock()
			w.any, w.files = true, []agent.ToolFile{file("a", text)}
			w.mu.Unlock()
			w.Changed("")
			w.Changed("")
		}
		set2("4")
		if took := begin(); took < 30*time.Millisecond || took > treeWait {
			t.Errorf("a run waited %s for the tree", took)
		}
		b.mu.Lock()
		b.takes = time.Minute
		b.mu.Unlock()
		set2("5")
		if took := begin(); took != treeWait {
			t.Errorf("a run waited %s for a tree that does not come", took)
		}
		time.Sleep(3 * time.Minute)
		w.Close()
		w.Changed("") // starts nothing
		begin()
	})
}

// TestWhatCellsLeave: a call from an interpreter has no more than all tokens had that have started something in the
// sandbox, since a thread of an earlier cell cannot be told apart. A command has what its own token has.
func TestWhatCellsLeave(t *testing.T) {
	w := newWorld(t)
	b := w.box(ann.ID, "one")
	narrow := ann
	narrow.Scope = auth.NewScope("code.*", "mcp.call", "file.*")
	_, end := w.Begin(t.Context(), "one", "a cell in python", tool.Call{Principal: narrow})
	end()
	tag, end := w.Begin(t.Context(), "one", "a cell in python", tool.Call{Principal: ann})
	defer end()
	for language, want := range map[string]string{"": `"scope":""`, "python": `"scope":"code.* file.* mcp.call"`} {
		p := w.dial(b, func() agent.Caller { return agent.Caller{Tag: tag, Language: language} })
		p.send(callA)
		p.want(want)
	}
	narrow.Scope = auth.NewScope("code.*")
	_, end = w.Begin(t.Context(), "one", "a cell in python", tool.Call{Principal: narrow})
	end()
	p := w.dial(b, func() agent.Caller { return agent.Caller{Tag: tag, Language: "python"} })
	p.send(callA)
	p.want("cannot be told apart from this code")
	p = w.dial(b, tagged(tag))
	p.send(callA)
	p.want(`"scope":""`)
}

// TestMayFirst: who must not call is told so before a server is looked at, which may have to be started.
func TestMayFirst(t *testing.T) {
	w := newWorld(t)
	b := w.box(ann.ID, "one")
	narrow := ann
	narrow.Scope = auth.NewScope("mcp.call") // and not code.background
	tag, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: narrow})
	defer end()
	p := w.dial(b, tagged(""))
	for _, request := range []string{callA, `{"call": {"server": "none"}}`,
		`{"call": {"server": "s", "tool": "execute_code"}}`} {
		p.send(request)
		p.want(`"forbidden"`)
	}
	if w.named != 0 {
		t.Errorf("%d names were asked for", w.named)
	}
	p = w.dial(b, tagged(tag))
	p.send(callA)
	p.want(`"result"`)
}

// TestFinding: search and describe count as calls, and the definitions of a large server are refused as a whole.
func TestFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		large := catalog.Offered{Name: "large"}
		for n := range 40 {
			text := fmt.Sprintf(`{"name":"t%d","description":"%s"}`, n, strings.Repeat("x", 100<<10))
			d := catalog.Definition{Remote: fmt.Sprint("t", n), Raw: json.RawMessage(text)}
			large.Tools = append(large.Tools, d)
		}
		w.offers = []catalog.Offered{large}
		b := w.box(ann.ID, "one")
		begun, release := w.blocking()
		for range maxCalls {
			w.dial(b, tagged("")).send(callA)
			<-begun
		}
		p := w.dial(b, tagged(""))
		began := time.Now()
		const one = `{"describe": {"server": "large", "tool": "t1"}}`
		for _, request := range []string{one, `{"search": {"query": "x"}}`} {
			p.send(request)
			p.want(codeBusy)
		}
		if took := time.Since(began); took != 2*busyAfter {
			t.Errorf("two answers after %s", took)
		}
		release()
		synctest.Wait()
		p.send(`{"describe": {"server": "large"}}`)
		p.want(`"too_large","message":"the definitions of all 40 tools of \"large\"`)
		p.send(`{"describe": {"server": "large", "tool": "t1"}}`)
		p.want(`{"described":[{"server":"large","tool":"t1"`)
		synctest.Wait()
		if _, err := w.Limits.Acquire(ann.ID, limit.AnswerBytes, limit.Default[limit.AnswerBytes]); err != nil {
			t.Fatal(err)
		}
		p.send(`{"describe": {"server": "large", "tool": "t2"}}`)
		if line := p.next(); !strings.Contains(line, `"resource_limit_exceeded"`) {
			t.Errorf("got %.200q", line)
		}
	})
}

// TestPanics: a panic ends what it is in, and nothing else.
func TestPanics(t *testing.T) {
	w := newWorld(t)
	b := w.box(ann.ID, "one")
	do := w.do
	w.do = func(context.Context, string, tool.Call) (*tool.Result, error) { panic("a tool") }
	p := w.dial(b, tagged(""))
	p.send(callA)
	p.want(`"internal_error"`)
	w.do = do
	p.send(callA)
	p.want(`"result"`)
	p.send(`{"search": {"query": "panic"}}`)
	if line := p.next(); line != "" {
		t.Errorf("after a panic: %q", line)
	}
	w.spawn(func() { panic("work") })
	p = w.dial(b, tagged(""))
	p.send(callA)
	p.want(`"result"`)
	w.Close()
}

// TestCancelBehindRequests: closing the connection cancels the call, though the program has sent more.
func TestCancelBehindRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		begun, _ := w.blocking()
		p := w.dial(w.box(ann.ID, "one"), tagged(""))
		p.send(callA + "\n" + callA)
		ctx := <-begun
		p.Close()
		<-ctx.Done()
	})
}

// TestInTheBackground: what a server asks in a call of a program in the background goes to the waiting questions, and
// its log to its owner's clients. Empty progress is no line.
func TestInTheBackground(t *testing.T) {
	w := newWorld(t)
	w.do = func(ctx context.Context, _ string, c tool.Call) (*tool.Result, error) {
		if tool.CanAsk(c.User()) {
			t.Error("rules would ask through it")
		}
		c.Progress("")
		c.Client.Notify("notifications/progress", json.RawMessage(`{"progress": 1, "message": "half"}`))
		c.Client.Notify("notifications/message", json.RawMessage(`{"data": 1}`))
		if _, err := c.Client.Ask(ctx, "sampling/createMessage", nil); err == nil ||
			!strings.Contains(err.Error(), "there is no client for sampling/createMessage") {
			t.Errorf("sampling: %v", err)
		}
		raw, err := c.Client.Ask(ctx, "elicitation/create", nil)
		return &tool.Result{Raw: raw}, err
	}
	p := w.dial(w.box(ann.ID, "one"), func() agent.Caller { return agent.Caller{Process: "p7"} })
	p.send(callA)
	p.want(`{"progress":"half"}`)
	p.want(`"of":"user:ann one process p7 a"`)
	if len(w.logged) != 1 || w.logged[0] != `user:ann {"data": 1}` {
		t.Errorf("logged %q", w.logged)
	}
}

// TestSilentClients: what a server asks in the call of a run waits for an answer elsewhere, if the run's client cannot
// ask its user, or if there is none, as over the HTTP API. All else goes to the client.
func TestSilentClients(t *testing.T) {
	w, silent := newWorld(t), &person{cannot: true}
	w.do = func(ctx context.Context, _ string, c tool.Call) (*tool.Result, error) {
		if tool.CanAsk(c.User()) || !strings.Contains(string(c.Client.Capabilities()), `"elicitation":{"form":{}}`) {
			t.Errorf("rules would ask through it, or servers not: %s", c.Client.Capabilities())
		}
		if raw, err := c.Client.Ask(ctx, "roots/list", nil); heardBy(c) == "c" && err != nil {
			t.Errorf("roots: %s, %v", raw, err)
		}
		raw, err := c.Client.Ask(ctx, "elicitation/create", nil)
		return &tool.Result{Raw: raw}, err
	}
	b := w.box(ann.ID, "one")
	for _, c := range []tool.Client{silent, nil} {
		tag, end := w.Begin(t.Context(), "one", "a cell in python", tool.Call{Principal: ann, Client: c})
		p := w.dial(b, tagged(tag))
		p.send(callA)
		p.want(`"of":"user:ann one a cell in python a"`)
		end()
	}
	if silent.most != 1 {
		t.Error("the client was not asked for its roots")
	}
}

// heardBy returns where the log messages of a call go.
func heardBy(c tool.Call) string {
	h, _ := c.Client.(tool.Hearing)
	return h.HeardBy()
}

// TestCallsApart: a question that waits for an answer elsewhere names program and tool of its call. So each such call
// is a client of its own: a server that asks gets them one after the other. Its log goes to one place.
func TestCallsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		var mu sync.Mutex
		ids, heard := map[string]bool{}, map[string]bool{}
		w.do = func(_ context.Context, _ string, c tool.Call) (*tool.Result, error) {
			id := c.Client.ID()
			mu.Lock()
			ids[id], heard[heardBy(c)] = true, true
			mu.Unlock()
			time.Sleep(time.Second) // all are in flight at once
			if id != c.Client.ID() {
				t.Error("a call's client has two ids")
			}
			return &tool.Result{Raw: json.RawMessage("{}")}, nil
		}
		b := w.box(ann.ID, "one")
		tag, end := w.Begin(t.Context(), "one", "a command", tool.Call{Principal: ann, Client: &person{cannot: true}})
		defer end()
		began := time.Now()
		var all sync.WaitGroup
		for _, of := range []string{tag, tag, "", ""} {
			all.Go(func() {
				p := w.dial(b, tagged(of))
				p.send(callA)
				p.want(`{"result":`)
			})
		}
		all.Wait()
		if len(ids) != 4 || len(heard) != 2 || time.Since(began) != time.Second {
			t.Errorf("four calls of the ids %v, heard by %v, took %s", ids, heard, time.Since(began))
		}
	})
}

// TestUsedSandbox: a sandbox that slept, or was recovered, may have a tree of another time, also if its owner has no
// servers any more. One that an older version of Sandlot made has none, and its user is told where it is missed.
func TestUsedSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		w.any = false
		fresh, used, old := &box{}, &box{}, &box{old: true}
		w.Attach(ann.ID, "fresh", fresh, false)
		w.Attach(ann.ID, "used", used, true)
		w.Attach(ann.ID, "old", old, true)
		synctest.Wait()
		if f, u := fresh.requests(), used.requests(); f != "" || u != "+ - true" {
			t.Errorf("a fresh sandbox got %q, a used one %q", f, u)
		}
		noted := func(session, text string) bool {
			r := w.Noted(session, &tool.Result{Content: []tool.Content{tool.Text(text)}})
			return len(r.Content) == 2 && strings.Contains(*r.Content[1].Text, "older version")
		}
		const missing = "ModuleNotFoundError: No module named 'mcp_tools'"
		if noted("old", missing) {
			t.Error("who has no servers is told of /run/mcp")
		}
		w.mu.Lock()
		w.any = true
		w.mu.Unlock()
		for session, want := range map[string]bool{"old": true, "used": false, "fresh": false, "none": false} {
			if noted(session, missing) != want || noted(session, "42") {
				t.Errorf("the session %s: told is %v", session, !want)
			}
		}
	})
}

// TestHeldBack: of a tool that is held back, code sees the name and why, and nothing that nobody has approved.
func TestHeldBack(t *testing.T) {
	w := newWorld(t)
	w.tree = nil
	raw := `{"name":"ext_s_a","title":"SECRETLY","description":"SECRETLY","inputSchema":{"type":"object",` +
		`"properties":{"SECRETLY":{}}},"outputSchema":{"title":"SECRETLY"},"x":"SECRETLY"}`
	w.offers = []catalog.Offered{{Name: "s", Tools: []catalog.Definition{{Exposed: "ext_s_a", Remote: "a",
		Raw: json.RawMessage(raw), HeldBecause: "it has changed"}}}}
	files, err := w.treeOf(&owned{making: make(chan struct{}, 1)}, ann)
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	told := 0
	for _, f := range files {
		if strings.Contains(string(f.Data), "SECRETLY") {
			t.Errorf("%s has what is held back: %s", f.Path, f.Data)
		}
		told += strings.Count(string(f.Data), "it has changed")
	}
	all, err := w.describe(ann, Describe{Server: "s"})
	text, _ := json.Marshal(all)
	if want := `[{"server":"s","tool":"a","definition":{"name":"ext_s_a"},"held":"it has changed"}]`; err != nil ||
		string(text) != want || told == 0 {
		t.Errorf("described: %s %v, and told %d times", text, err, told)
	}
}

// TestTreesAreShared: an owner's sandboxes share one tree, a change of one server makes the files of that one alone,
// few trees are made at once, and trees are forgotten.
func TestTreesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		var mu sync.Mutex
		making, most, made := 0, 0, 0
		w.tree = func(auth.Principal) ([]agent.ToolFile, error) {
			mu.Lock()
			making, made = making+1, made+1
			most = max(most, making)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			making--
			mu.Unlock()
			return []agent.ToolFile{{Path: "a", Data: []byte("1")}}, nil
		}
		const owners = maxTrees + 8
		for n := range owners {
			for s := range 3 {
				w.box(fmt.Sprint("user:u", n), fmt.Sprint(n, "-", s))
			}
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		made, most = 0, 0
		mu.Unlock()
		w.Changed("")
		synctest.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if made != owners || most != maxMaking {
			t.Errorf("%d trees were made for %d owners, %d at once", made, owners, most)
		}
		w.Calls.mu.Lock()
		kept := 0
		for _, o := range w.owners {
			if o.tree != nil {
				kept++
			}
		}
		w.Calls.mu.Unlock()
		if kept != maxTrees || len(w.kept) != maxTrees {
			t.Errorf("%d trees are kept, and %d are said to be", kept, len(w.kept))
		}
	})
}

// TestSmallResult: a small result comes at once, so that who waits for it wakes once.
func TestSmallResult(t *testing.T) {
	w := newWorld(t)
	defer w.Close()
	p := w.dial(w.box(ann.ID, "one"), tagged(""))
	p.send(`{"call": {"server": "s", "tool": "a", "arguments": {}}}`)
	b := make([]byte, 64<<10)
	n, err := p.Read(b)
	if got := string(b[:n]); err != nil || !strings.HasPrefix(got, `{"result":`) || !strings.HasSuffix(got, "}\n") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSettle: what promises tools waits until the sandboxes of their owner have them, but not for ever, and not for those
// of others.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		bob := auth.User("bob", false)
		slow, hangs := &box{}, &box{takes: time.Hour}
		w.Attach(ann.ID, "one", slow, false)
		w.Attach(bob.ID, "two", hangs, false)
		synctest.Wait()
		waits := func(owner string) time.Duration {
			began := time.Now()
			w.Settle(t.Context(), owner)
			return time.Since(began)
		}
		if took := waits(ann.ID); took != 0 {
			t.Errorf("waited %s for a tree that is there", took)
		}
		slow.mu.Lock()
		slow.takes = 5 * time.Second
		slow.mu.Unlock()
		for _, text := range []string{"1", "2"} {
			w.mu.Lock()
			w.files = []agent.ToolFile{{Path: "a", Data: []byte(text)}}
			w.mu.Unlock()
			w.Changed(ann.ID)
			if took := waits(ann.ID); took != 5*time.Second {
				t.Errorf("waited %s for the tree", took)
			}
			if got := slow.requests(); !strings.Contains(got, "+a") {
				t.Errorf("the tree is %s", got)
			}
		}
		if took := waits(bob.ID); took != settleWait {
			t.Errorf("waited %s for a tree that does not come", took)
		}
		if took := waits("nobody"); took != 0 {
			t.Errorf("waited %s for nobody", took)
		}
	})
}
