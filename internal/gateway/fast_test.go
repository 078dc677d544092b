package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/fastpath"
	"sandlot/internal/hub"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// testClient is a client of a gateway behind a real HTTP server, with a session of the stateful
// protocol.
type testClient struct {
	t            *testing.T
	g            *Gateway
	url          string
	session      string
	capabilities string
}

// withUser returns the gateway's handler, with the user of the header User as the principal.
func withUser(g *Gateway) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := auth.Local
		if name := r.Header.Get("User"); name != "" {
			p = auth.User(name, false)
		}
		g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), p)))
	})
}

func newTestClient(t *testing.T, g *Gateway, capabilities string) *testClient {
	s := httptest.NewServer(withUser(g))
	t.Cleanup(s.Close)
	c := &testClient{t: t, g: g, url: s.URL, capabilities: capabilities}
	res := c.post(t.Context(), request("0", "initialize", initParams("2025-11-25", capabilities)), nil)
	c.session = res.Header.Get("Mcp-Session-Id")
	if c.session == "" {
		t.Fatal("no session")
	}
	c.stateful(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *testClient) post(ctx context.Context, body string, headers map[string]string) *http.Response {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		q.Header.Del(k)
		if v != "" {
			q.Header.Set(k, v)
		}
	}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

// response is an answer to an HTTP request.
type response struct {
	status int
	fast   bool           // one JSON object, which the SDK would send as an event stream: from the fast path
	body   map[string]any // the JSON-RPC message
	text   string         // the HTTP body
}

func (c *testClient) read(res *http.Response) response {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	s := response{status: res.StatusCode, text: string(b)}
	s.fast = res.StatusCode == http.StatusOK && res.Header.Get("Content-Type") == "application/json"
	_, data, events := strings.Cut(string(b), "data: ")
	if !events {
		data = string(b)
	}
	_ = json.Unmarshal([]byte(data), &s.body) // a body that is not JSON leaves it nil
	return s
}

func (c *testClient) statefulHeaders() map[string]string {
	return map[string]string{"Mcp-Session-Id": c.session, "Mcp-Protocol-Version": "2025-11-25"}
}

func (c *testClient) stateful(body string) response {
	return c.read(c.post(c.t.Context(), body, c.statefulHeaders()))
}

func statelessHeaders(name string) map[string]string {
	return map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name}
}

// statelessCall returns the body of a call in the stateless protocol; meta is added to its
// _meta.
func (c *testClient) statelessCall(params, meta string) string {
	return request("7", "tools/call", params+","+statelessMeta(c.capabilities, meta))
}

func (c *testClient) stateless(name, params, meta string) response {
	return c.read(c.post(c.t.Context(), c.statelessCall(params, meta), statelessHeaders(name)))
}

// newMixedGateway returns a gateway with Sandlot's own and third-party tools. The arguments of a call say
// how it ends.
func newMixedGateway(calls *atomic.Int64) *Gateway {
	own := fakeElicitor{call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
		calls.Add(1)
		switch {
		case strings.Contains(string(c.Args), "panic"):
			panic("as asked")
		case strings.Contains(string(c.Args), "fault"):
			return nil, fault.New(fault.InvalidParameters, "no such thing").With("argument", "a")
		}
		return &tool.Result{Content: []tool.Content{tool.Text("told " + string(c.Args))},
			Fields: map[string]any{"n": 1, "html": "<&>"}, Summary: "words",
			IsError: strings.Contains(string(c.Args), "wrong")}, nil
	}}
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`),
		externalTool("ext_h", `{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}`)},
		call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
			calls.Add(1)
			meta, _ := json.Marshal(c.Meta)
			switch {
			case strings.Contains(string(c.Args), "refuse"):
				return nil, &tool.ExternalError{Code: -32001, Message: "theirs", Data: json.RawMessage(`{"x":1}`)}
			case strings.Contains(string(c.Args), "typed"):
				raw := json.RawMessage(`{"resultType":"complete","content":[],"_meta":{"theirs":1}}`)
				return &tool.Result{Raw: raw}, nil
			}
			return &tool.Result{Raw: json.RawMessage(fmt.Sprintf(`{"content":[{"type":"text","text":"é"}],`+"\n"+
				`"structuredContent":{"args":%s,"meta":%s},"unknown":[1.0]}`, c.Args, meta))}, nil
		}}
	return newGateway(own, external)
}

// The fast path gives the same answers as the SDK.
func TestFastPathSaysTheSame(t *testing.T) {
	var calls atomic.Int64
	r := newTestClient(t, newMixedGateway(&calls), `{}`)
	for _, name := range []string{"careless", "careful", "ext_a"} {
		for _, args := range []string{`{"a":"1"}`, `{"a":"wrong"}`, `{"a":"fault"}`, `{"a":"panic"}`, `{"a":"refuse"}`,
			`{"a":"typed"}`, ``} {
			for _, stateless := range []bool{false, true} {
				params := fmt.Sprintf(`"name":%q`, name)
				if args != "" {
					params += `,"arguments":` + args
				}
				ask := func(n int) response {
					if stateless {
						return r.stateless(name, params, `,"theirs":{"n":[1, 2]}`)
					}
					return r.stateful(request(fmt.Sprint(n), "tools/call", params+`,"_meta":{"theirs":{"n":[1, 2]}}`))
				}
				what := fmt.Sprintf("%s %s stateless=%v", name, args, stateless)
				if name == "ext_a" && args == "" {
					continue // the fake puts the arguments into its result
				}
				r.g.forEachEndpoint("", func(e *endpoint) { e.fast.Reset() })
				first, second := ask(5), ask(5)
				if first.fast {
					t.Fatalf("%s: the first call took the fast path: %s", what, first.text)
				}
				if first.status == http.StatusOK && !second.fast {
					t.Errorf("%s: the second call did not take the fast path: %s", what, second.text)
				}
				if first.body == nil || first.status != second.status || !reflect.DeepEqual(first.body, second.body) {
					t.Errorf("%s:\nthe SDK    %d %s\nfast path  %d %s", what,
						first.status, first.text, second.status, second.text)
				}
			}
		}
	}
	if calls.Load() == 0 {
		t.Error("nothing was called")
	}
}

// The SDK answers calls that differ from the accepted one.
func TestFastPathIsNarrow(t *testing.T) {
	var calls atomic.Int64
	r := newTestClient(t, newMixedGateway(&calls), `{}`)
	const params = `"name":"careless","arguments":{"a":"1"}`
	statefulCall := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + params + `}}`
	warmUp := func() {
		t.Helper()
		r.stateful(statefulCall)
		r.stateless("careless", params, "")
		r.stateless("ext_a", `"name":"ext_a","arguments":{}`, "")
		if !r.stateful(statefulCall).fast || !r.stateless("careless", params, "").fast ||
			!r.stateless("ext_a", `"name":"ext_a","arguments":{}`, "").fast {
			t.Fatal("a call that the SDK took does not take the fast path")
		}
	}
	with := func(base map[string]string, more ...string) map[string]string {
		h := map[string]string{}
		for k, v := range base {
			h[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	stateless := statelessHeaders("careless")
	for what, c := range map[string]struct {
		body    string
		headers map[string]string
		status  int
		says    string
	}{
		"another name in the header": {
			r.statelessCall(params, ""), with(stateless, "Mcp-Name", "careful"), 400, "Mcp-Name"},
		"no name in the header": {
			r.statelessCall(params, ""), with(stateless, "Mcp-Name", ""), 400, "Mcp-Name"},
		"another method in the header": {
			r.statelessCall(params, ""), with(stateless, "Mcp-Method", "tools/list"), 400, "Mcp-Method"},
		"another revision in the header": {
			r.statelessCall(params, ""), with(stateless, "Mcp-Protocol-Version", "2025-11-25"), 400, ""},
		"no revision in _meta": {
			statefulCall, stateless, 400, "protocolVersion"},
		"another revision in _meta": {
			strings.Replace(r.statelessCall(params, ""), "2026-07-28", "2025-11-25", 1), stateless, 400, ""},
		"no event stream accepted": {
			statefulCall, with(r.statefulHeaders(), "Accept", "application/json"), 400, "Accept"},
		"another type of body": {
			statefulCall, with(r.statefulHeaders(), "Content-Type", "text/plain"), 415, "Content-Type"},
		"an event to resume from": {
			statefulCall, with(r.statefulHeaders(), "Last-Event-Id", "1"), 400, "Last-Event-ID"},
		"an unknown session": {
			statefulCall, with(r.statefulHeaders(), "Mcp-Session-Id", "ABC"), 404, "session not found"},
		"another user's session": {
			statefulCall, with(r.statefulHeaders(), "User", "eve"), 404, "session not found"},
		"an unknown revision": {
			statefulCall, with(r.statefulHeaders(), "Mcp-Protocol-Version", "2020-01-01"), 400, "nsupported"},
		"the client's own fingerprint": {
			r.statelessCall(params, ""), with(stateless, "Mcp-Name", "careful", "Sandlot-Fingerprint", "x"), 400,
			"Mcp-Name"},
		"no id": {
			strings.Replace(statefulCall, `"id":1,`, "", 1), r.statefulHeaders(), 400, ""},
		"an invalid id": {
			strings.Replace(statefulCall, `"id":1`, `"id":{}`, 1), r.statefulHeaders(), 400, ""},
	} {
		warmUp()
		before := calls.Load()
		got := r.read(r.post(t.Context(), c.body, c.headers))
		if got.status != c.status || !strings.Contains(got.text, c.says) {
			t.Errorf("%s: %d %s", what, got.status, got.text)
		}
		if calls.Load() != before {
			t.Errorf("%s: it was called", what)
		}
	}
	// The SDK must answer these valid calls.
	for what, ask := range map[string]func() response{
		"wants logs": func() response {
			return r.stateless("careless", params, `,"io.modelcontextprotocol/logLevel":"debug"`)
		},
		"another client":  func() response { return r.stateless("careless", params, `,"io.modelcontextprotocol/other":1`) },
		"another session": func() response { return newTestClient(t, r.g, `{}`).stateful(statefulCall) },
		"a retry":         func() response { return r.stateless("careless", params+`,"inputResponses":{}`, "") },
		"arguments in headers": func() response {
			h := with(statelessHeaders("ext_h"), "Mcp-Param-A", "x")
			body := r.statelessCall(`"name":"ext_h","arguments":{"a":"x"}`, "")
			r.read(r.post(t.Context(), body, h))
			return r.read(r.post(t.Context(), body, h))
		},
		"an invalid progress token": func() response {
			return r.stateful(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + params +
				`,"_meta":{"progressToken":[1]}}}`)
		},
	} {
		warmUp()
		if got := ask(); got.fast {
			t.Errorf("%s: it took the fast path: %s", what, got.text)
		}
	}
	// The tools change.
	warmUp()
	r.g.forEachEndpoint("", func(e *endpoint) { e.replaceDefinitions(e.external.current()) })
	if r.stateful(statefulCall).fast {
		t.Error("a call took the fast path after the tools changed")
	}
	// Only the SDK can send log messages to a session that wants them.
	warmUp()
	r.stateful(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
	for range 3 {
		if r.stateful(statefulCall).fast {
			t.Error("a call took the fast path, and its session wants logs")
		}
	}
	r = newTestClient(t, r.g, `{}`)
	warmUp()
	q, _ := http.NewRequest(http.MethodDelete, r.url, nil)
	for k, v := range r.statefulHeaders() {
		q.Header.Set(k, v)
	}
	if res, err := http.DefaultClient.Do(q); err != nil || res.StatusCode/100 != 2 {
		t.Fatal("the session was not ended")
	}
	if got := r.stateful(statefulCall); got.status != http.StatusNotFound {
		t.Errorf("after its session's end: %d %s", got.status, got.text)
	}
}

// Only the SDK can send requests other than roots/list to a client.
func TestFastPathOfElicitingTools(t *testing.T) {
	var calls atomic.Int64
	for _, capabilities := range []string{`{"elicitation":{}}`, `{"sampling":{}}`} {
		r := newTestClient(t, newMixedGateway(&calls), capabilities)
		for name, short := range map[string]bool{"ext_a": false, "careful": false, "careless": true} {
			body := callOf("1", name, "{}")
			r.stateful(body)
			if got := r.stateful(body); got.fast != short {
				t.Errorf("%s with %s: fast path %v: %s", name, capabilities, got.fast, got.text)
			}
		}
	}
}

// noAnswers is a store of questions without answers, which keeps none.
type noAnswers struct{}

func (noAnswers) PutAnswer(context.Context, question.Answer) error   { return nil }
func (noAnswers) Answers(context.Context) ([]question.Answer, error) { return nil, nil }
func (noAnswers) RemoveAnswer(context.Context, string) error         { return nil }

// A call that the fast path learnt while nobody was asked about hosts gets to ask as soon as network.hold says so. A
// client that cannot ask stays on the fast path.
func TestFastPathAsksHosts(t *testing.T) {
	questions, err := question.New(t.Context(), noAnswers{})
	if err != nil {
		t.Fatal(err)
	}
	defer questions.Close()
	var hold atomic.Int64
	own := fakeElicitor{call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
		return &tool.Result{Summary: fmt.Sprint("asks: ", tool.CanAsk(c.User()))}, nil
	}}
	g := New(Config{Log: slog.New(slog.DiscardHandler), Hub: hub.New(hub.Config{Sources: []tool.Source{own},
		Questions: questions, NetworkHold: func() time.Duration { return time.Duration(hold.Load()) }})})
	for _, capabilities := range []string{`{"elicitation":{}}`, `{}`} {
		can := capabilities != `{}`
		r := newTestClient(t, g, capabilities)
		for protocol, call := range map[string]func() response{
			"stateful":  func() response { return r.stateful(callOf("1", "careless", "{}")) },
			"stateless": func() response { return r.stateless("careless", `"name":"careless","arguments":{}`, "") },
		} {
			for _, now := range []time.Duration{0, 20 * time.Second} {
				hold.Store(int64(now))
				for range 2 {
					want := fmt.Sprint("asks: ", can && now > 0)
					if got := call(); !strings.Contains(got.text, want) {
						t.Errorf("%s with %s, hold %v: %s, want %s", protocol, capabilities, now, got.text, want)
					}
				}
				if got := call(); !can && !got.fast {
					t.Errorf("%s, hold %v: a client that cannot ask is not on the fast path: %s", protocol, now, got.text)
				}
			}
		}
	}
}

// newWaitingGateway returns a gateway with a tool that sends a notification, and waits until it gets
// something from let or its context ends.
func newWaitingGateway() (g *Gateway, began chan tool.Call, ended chan error, finish chan struct{}) {
	began, ended, finish = make(chan tool.Call, 10), make(chan error, 10), make(chan struct{}, 10)
	own := fakeElicitor{call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		if c.Progress != nil {
			c.Progress("as it\nwere")
		}
		if string(c.Args) == `{"quick":true}` {
			return &tool.Result{Summary: "quick"}, nil
		}
		began <- c
		select {
		case <-ctx.Done():
			ended <- ctx.Err()
			return nil, fault.From(ctx.Err())
		case <-finish:
			ended <- nil
			return &tool.Result{Summary: "let go"}, nil
		}
	}}
	return newGateway(own), began, ended, finish
}

const quick, slow = `"name":"careless","arguments":{"quick":true}`, `"name":"careless","arguments":{}`

// A call of the stateful protocol ends when the client cancels it, and not with the
// connection. A call of the stateless protocol ends with the connection.
func TestFastPathCancel(t *testing.T) {
	g, began, ended, finish := newWaitingGateway()
	r := newTestClient(t, g, `{}`)
	call := func(id, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{%s}}`, id, params)
	}
	r.stateful(call("1", quick))
	done := make(chan response, 1)
	go func() { done <- r.stateful(call(`"a"`, slow)) }()
	<-began
	for _, other := range []string{`"b"`, `1`, `{}`, `null`} {
		r.stateful(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + other + `}}`)
	}
	stranger := newTestClient(t, g, `{}`)
	stranger.stateful(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
	select {
	case err := <-ended:
		t.Fatalf("the call ended without being cancelled: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	got := r.stateful(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
	if got.status != http.StatusAccepted {
		t.Errorf("cancelled: %d %s", got.status, got.text)
	}
	if err := <-ended; err == nil {
		t.Error("the call was not given up")
	}
	if got := <-done; got.body["error"] == nil || !got.fast {
		t.Errorf("what was cancelled: %s", got.text)
	}

	ctx, disconnect := context.WithCancel(t.Context())
	send := func(body string, headers map[string]string) {
		q, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url, strings.NewReader(body))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range headers {
			q.Header.Set(k, v)
		}
		if res, err := http.DefaultClient.Do(q); err == nil {
			res.Body.Close()
		}
	}
	go send(call("3", slow), r.statefulHeaders())
	<-began
	disconnect()
	select {
	case err := <-ended:
		t.Fatalf("a call of the stateful protocol ended with its connection: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	finish <- struct{}{}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	r.stateless("careless", quick, "")
	ctx, disconnect = context.WithCancel(t.Context())
	go send(r.statelessCall(slow, ""), statelessHeaders("careless"))
	<-began
	disconnect()
	if err := <-ended; err == nil {
		t.Error("a call of the stateless protocol outlived its connection")
	}
}

// The second of two calls with the same id is refused, whether or not the first is on the fast
// path.
func TestFastPathSameID(t *testing.T) {
	g, began, ended, finish := newWaitingGateway()
	r := newTestClient(t, g, `{}`)
	call := func(id, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{%s}}`, id, params)
	}
	for _, warm := range []bool{false, true} {
		if warm {
			r.stateful(call("1", quick))
		}
		for _, odd := range []string{"", `,"_meta":{"a":"b\u0063"}`, `,"_meta":{"progressToken":[]}`} {
			done := make(chan response, 1)
			go func() { done <- r.stateful(call("9", slow)) }()
			<-began
			if got := r.stateful(call("9", slow+odd)); got.status != http.StatusBadRequest ||
				!strings.Contains(got.text, "duplicate in-flight request ID 9") {
				t.Errorf("warm=%v %s: %d %s", warm, odd, got.status, got.text)
			}
			if got := r.stateful(call("10", quick)); got.body["result"] == nil {
				t.Errorf("another id: %s", got.text)
			}
			finish <- struct{}{}
			<-ended
			if got := <-done; got.body["result"] == nil || got.fast != warm {
				t.Errorf("warm=%v: %s", warm, got.text)
			}
			r.g.forEachEndpoint("", func(e *endpoint) {
				if _, _, _, running := e.fast.(*fastpath.Path).Sizes(); running > 0 {
					t.Errorf("%d calls are left", running)
				}
				if !warm {
					e.fast.Reset()
				}
			})
		}
	}
}

// A client that sends a progress token gets notifications before the answer.
func TestFastPathProgress(t *testing.T) {
	g, began, ended, finish := newWaitingGateway()
	r := newTestClient(t, g, `{}`)
	for _, token := range []string{`"t"`, `17`} {
		for _, stateless := range []bool{false, true} {
			ask := func(params string) response {
				if stateless {
					return r.stateless("careless", params, `,"progressToken":`+token)
				}
				return r.stateful(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{` + params +
					`,"_meta":{"progressToken":` + token + `}}}`)
			}
			ask(quick)
			done := make(chan response, 1)
			go func() { done <- ask(slow) }()
			<-began
			finish <- struct{}{}
			<-ended
			got := <-done
			events := strings.Split(strings.TrimSpace(got.text), "\n\n")
			if len(events) != 2 {
				t.Fatalf("stateless=%v: %d events: %s", stateless, len(events), got.text)
			}
			for i, want := range []string{`"progressToken":` + token, `let go`} {
				data, ok := strings.CutPrefix(events[i], "event: message\ndata: ")
				if !ok || !json.Valid([]byte(data)) || !strings.Contains(data, want) {
					t.Errorf("stateless=%v: event %d: %s", stateless, i, events[i])
				}
			}
			if !strings.Contains(events[0], `"message":"as it\nwere"`) ||
				!strings.Contains(events[0], `"method":"notifications/progress"`) {
				t.Errorf("stateless=%v: %s", stateless, events[0])
			}
		}
	}
}

// A server may ask for the client's roots. Only the client can answer, in a request of its own.
func TestFastPathRoots(t *testing.T) {
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_r", `{"type":"object"}`)},
		call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
			if string(c.Args) == `{"quick":true}` {
				return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
			}
			roots, err := c.Client.Ask(ctx, "roots/list", nil)
			if err != nil {
				return nil, &tool.ExternalError{Code: -32000, Message: "no roots: " + err.Error()}
			}
			return &tool.Result{Raw: json.RawMessage(`{"content":[],"structuredContent":` + string(roots) + `}`)}, nil
		}}
	g := newGateway(external)
	r := newTestClient(t, g, `{"roots":{"listChanged":true}}`)
	r.stateful(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_r","arguments":{"quick":true}}}`)
	for _, reply := range []string{`"result":{"roots":[{"uri":"file:///a"}]}`, `"error":{"code":-1,"message":"no"}`} {
		res := r.post(t.Context(), callOf("2", "ext_r", "{}"), r.statefulHeaders())
		lines := newEventReader(res.Body)
		var q struct{ ID, Method string }
		if err := json.Unmarshal([]byte(lines.data()), &q); err != nil || q.Method != "roots/list" {
			t.Fatalf("asked %+v: %v", q, err)
		}
		stranger := newTestClient(t, g, `{}`)
		const strangers = `{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///stranger"}]}}`
		stranger.stateful(fmt.Sprintf(strangers, q.ID))
		got := r.stateful(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,%s}`, q.ID, reply))
		if got.status != http.StatusAccepted {
			t.Errorf("its answer: %d %s", got.status, got.text)
		}
		want := "no roots"
		if strings.HasPrefix(reply, `"result"`) {
			want = "file:///a"
		}
		if result := lines.data(); !strings.Contains(result, want) {
			t.Errorf("%s gave %s", reply, result)
		}
		res.Body.Close()
	}
}

// eventReader reads the events of a stream.
type eventReader struct{ *bufio.Scanner }

func newEventReader(r io.Reader) eventReader { return eventReader{bufio.NewScanner(r)} }

func (l eventReader) data() string {
	for l.Scan() {
		if d, ok := strings.CutPrefix(l.Text(), "data: "); ok {
			return d
		}
	}
	return ""
}

// Many clients call at once, each in its own session.
func TestFastPathMany(t *testing.T) {
	var calls atomic.Int64
	g := newMixedGateway(&calls)
	const clients, each = 8, 40
	done := make(chan int, clients)
	for n := range clients {
		r := newTestClient(t, g, `{}`)
		go func() {
			short := 0
			for i := range each {
				want := fmt.Sprintf("%d-%d", n, i)
				name, text := "careless", "told "
				if i%2 == 1 {
					name, text = "ext_a", ""
				}
				got := r.stateful(callOf(fmt.Sprintf("%q", want), name, fmt.Sprintf(`{"a":%q}`, want)))
				if got.body["id"] != want || !strings.Contains(got.text, want) ||
					text != "" && !strings.Contains(got.text, text) {
					t.Errorf("%s: %s", want, got.text)
				}
				if got.fast {
					short++
				}
			}
			done <- short
		}()
	}
	for range clients {
		if short := <-done; short != each-2 {
			t.Errorf("%d of %d took the fast path", short, each)
		}
	}
}

// The fast path gives the same lists as the SDK, and never an outdated one.
func TestFastPathLists(t *testing.T) {
	item := func(field, key string) []tool.Item {
		raw := fmt.Sprintf(`{%q:%q,"name":"n","_meta":{"x":"<&>"}}`, field, key)
		return []tool.Item{{Key: key, Raw: json.RawMessage(raw)}}
	}
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`)}, prompts: item("name", "p"),
		resources: item("uri", "a://b"), templates: item("uriTemplate", "a://{c}")}
	r := newTestClient(t, newGateway(fakeBuiltin{}, external), `{}`)
	ask := func(stateless bool, method, params string) response {
		if !stateless {
			return r.stateful(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s}}`, method, params))
		}
		body := r.statelessCall(params, "")
		if params == "" {
			body = strings.Replace(body, "{,", "{", 1)
		}
		h := statelessHeaders("")
		h["Mcp-Method"] = method
		return r.read(r.post(t.Context(), strings.Replace(body, "tools/call", method, 1), h))
	}
	for method, name := range map[string]string{
		"tools/list":               "ext_a",
		"prompts/list":             `"p"`,
		"resources/list":           "a://b",
		"resources/templates/list": "a://{c}",
	} {
		for _, stateless := range []bool{false, true} {
			first, second := ask(stateless, method, ""), ask(stateless, method, "")
			if first.fast || !second.fast || !strings.Contains(first.text, name) ||
				!reflect.DeepEqual(first.body, second.body) {
				t.Errorf("%s stateless=%v:\nthe SDK    %s\nfast path  %s", method, stateless, first.text, second.text)
			}
			for range 2 {
				if got := ask(stateless, method, `"cursor":"nonsense"`); got.fast && got.body["error"] == nil {
					t.Errorf("%s stateless=%v: with a cursor that is none: %s", method, stateless, got.text)
				}
			}
		}
	}
	external.tools = append([]tool.Tool{externalTool("ext_b", `{"type":"object"}`)}, external.tools...)
	for _, stateless := range []bool{false, true} {
		for range 2 {
			if got := ask(stateless, "tools/list", ""); !strings.Contains(got.text, "ext_b") {
				t.Errorf("stateless=%v: an old list: %s", stateless, got.text)
			}
		}
	}
	r.g.forEachEndpoint("", func(e *endpoint) {
		if _, pages, bytes, _ := e.fast.(*fastpath.Path).Sizes(); bytes <= 0 || pages != 2 {
			t.Errorf("%d pages of %d bytes are kept", pages, bytes)
		}
	})
}

// A request that JSON decoders read differently does not teach the fast path anything, and what
// the SDK refuses stays refused, however many similar requests it accepted before.
func TestFastPathIsNotFooled(t *testing.T) {
	var calls atomic.Int64
	r := newTestClient(t, newMixedGateway(&calls), `{}`)
	meta := statelessMeta("{}", "")
	call := func(inside string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call",` + inside + `}`
	}
	good := `{"name":"careless","arguments":{"a":"1"},` + meta + `}`
	other := `{"name":"ext_a","arguments":{"a":"1"},` + meta + `}`
	headed := `{"name":"ext_h","arguments":{"a":"x"},` + meta + `}`
	ambiguous := []string{
		call(`"params":` + good + `,"Params":` + other),
		call(`"Params":` + other + `,"params":` + good),
		call(`"params":` + good + `,"params":` + good),
		call(`"params":` + good + `,"Params":` + headed),
		call(`"params":` + good + `,"METHOD":"tools/list"`),
		call(`"params":` + good + `,"extra":1`),
		call(`"params":` + strings.Replace(good, `"name":"careless"`, `"name":"careless","name":"careless"`, 1)),
		call(`"params":` + strings.Replace(good, `"_meta":`, `"_meta":{},"_meta":`, 1)),
		call(`"params":` + strings.TrimSuffix(good, "}") + `,"_meta":{}}`),
		call(`"params":` + strings.Replace(good, `"_meta":{`,
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`, 1)),
		call(`"params":` + strings.Replace(good, "careless", "care\\u006cess", 1)),
	}
	for _, poison := range ambiguous {
		for range 2 {
			if got := r.read(r.post(t.Context(), poison, statelessHeaders("careless"))); got.fast {
				t.Errorf("it took the fast path: %s", poison)
			}
		}
		for _, body := range []string{
			call(`"params":` + other),
			call(`"params":` + headed),
			call(`"params":{"name":"careless","arguments":{"a":"1"}}`),
		} {
			before := calls.Load()
			got := r.read(r.post(t.Context(), body, statelessHeaders("careless")))
			if got.status != http.StatusBadRequest || calls.Load() != before {
				t.Fatalf("after %s:\n%s was answered %d %s", poison, body, got.status, got.text)
			}
		}
	}
	// The answers are the same before and after accepted requests.
	deep := strings.Repeat(`{"a":`, 1500) + "1" + strings.Repeat("}", 1500)
	for what, body := range map[string]string{
		"no jsonrpc":     `{"id":1,"method":"tools/call","params":{"name":"careless","arguments":{}}}`,
		"jsonrpc 1.0":    `{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"careless","arguments":{}}}`,
		"other letters":  `{"jsonrpc":"2.0","ID":1,"METHOD":"tools/call","PARAMS":{"name":"careless","arguments":{}}}`,
		"deep":           callOf("1", "careless", deep),
		"a long number":  callOf("1e400", "careless", "{}"),
		"a fraction":     callOf("1.5", "careless", "{}"),
		"an error":       strings.Replace(callOf("1", "careless", "{}"), `"params"`, `"error":null,"params"`, 1),
		"half a token":   callOf("1", "careless", `{},"_meta":{"progressToken":1.5}`),
		"something else": callOf("1", "careless", "{}") + " {}",
		"bad letters":    callOf("\"\xff\"", "careless", "{}"),
	} {
		cold := newTestClient(t, r.g, `{}`).stateful(body)
		for range 2 {
			r.stateful(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"careless","arguments":{}}}`)
		}
		warm := r.stateful(body)
		if warm.status != cold.status || warm.fast || !reflect.DeepEqual(warm.body, cold.body) {
			t.Errorf("%s:\ncold %d %s\nwarm %d %s", what, cold.status, cold.text, warm.status, warm.text)
		}
	}
}

// What is stored of accepted requests is bounded.
func TestFastPathIsBounded(t *testing.T) {
	var calls atomic.Int64
	r := newTestClient(t, newMixedGateway(&calls), `{"experimental":{"x":"`+strings.Repeat("a", 1<<20)+`"}}`)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_a","arguments":{}}}`
	for i := range 2 * fastpath.MaxAccepted / 100 {
		h := r.statefulHeaders()
		h["Accept"] = fmt.Sprintf("application/json, text/event-stream, text/x%d", i)
		for range 2 {
			if got := r.read(r.post(t.Context(), body, h)); got.fast {
				t.Error("it took the fast path")
			}
		}
	}
	small := newTestClient(t, r.g, `{}`)
	for i := range fastpath.MaxAccepted + 50 {
		h := small.statefulHeaders()
		h["Accept"] = fmt.Sprintf("application/json, text/event-stream, text/x%d", i)
		small.read(small.post(t.Context(), body, h))
	}
	r.g.forEachEndpoint("", func(e *endpoint) {
		requests, _, size, _ := e.fast.(*fastpath.Path).Sizes()
		if requests > fastpath.MaxAccepted || size > 1<<20 {
			t.Errorf("%d requests of %d bytes are remembered", requests, size)
		}
	})
}

// unreadySource is a source of third-party servers that have not listed their features.
type unreadySource struct {
	*fakeExternal
	asked atomic.Int64
}

func (s *unreadySource) WaitReady(ctx context.Context, _ auth.Principal) bool {
	if ctx.Err() == nil {
		s.asked.Add(1)
	}
	return true
}

// A list that has to wait for servers waits once, and the SDK answers it.
func TestFastPathDoesNotWait(t *testing.T) {
	external := &unreadySource{fakeExternal: &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`)}}}
	r := newTestClient(t, newGateway(external), `{}`)
	for range 3 {
		before := external.asked.Load()
		if got := r.stateful(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); got.fast ||
			!strings.Contains(got.text, "ext_a") {
			t.Errorf("listed %s", got.text)
		}
		if n := external.asked.Load() - before; n != 1 {
			t.Errorf("it waited %d times", n)
		}
	}
}

// An invalid result of a server is an error, with and without the fast path.
func TestFastPathOfNoResult(t *testing.T) {
	for _, raw := range []string{`"text"`, `[1]`, `null`, ``} {
		external := &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`)},
			call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
				return &tool.Result{Raw: json.RawMessage(raw)}, nil
			}}
		r := newTestClient(t, newGateway(external), `{}`)
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_a","arguments":{}}}`
		if cold, warm := r.stateful(body), r.stateful(body); !warm.fast || warm.body["error"] == nil ||
			!reflect.DeepEqual(cold.body, warm.body) {
			t.Errorf("%q: %s\n%s", raw, cold.text, warm.text)
		}
	}
}

// deadlineRecorder fails the test when something is written without a write deadline.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	until time.Time
	t     *testing.T
}

func (l *deadlineRecorder) SetWriteDeadline(at time.Time) error {
	l.until = at
	return nil
}

func (l *deadlineRecorder) Write(b []byte) (int, error) {
	if time.Until(l.until) <= 0 || time.Until(l.until) > 2*time.Minute {
		l.t.Errorf("%d bytes may take until %v", len(b), l.until)
	}
	return l.ResponseRecorder.Write(b)
}

// Each write has a deadline, so that a client that does not read cannot block the server.
func TestFastPathCannotHang(t *testing.T) {
	var calls atomic.Int64
	g := newMixedGateway(&calls)
	for _, params := range []string{
		"",
		`"name":"careless","arguments":{}`,
		`"name":"careless","arguments":{"a":"fault"}`,
	} {
		for n := range 3 {
			method := "tools/call"
			if params == "" {
				method = "tools/list"
			}
			body := strings.Replace((&testClient{capabilities: `{}`}).statelessCall(params, ""), "{,", "{", 1)
			q := httptest.NewRequest(http.MethodPost, "/mcp",
				strings.NewReader(strings.Replace(body, "tools/call", method, 1)))
			for k, v := range statelessHeaders("careless") {
				q.Header.Set(k, v)
			}
			q.Header.Set("Mcp-Method", method)
			q.Header.Set("Content-Type", "application/json")
			q.Header.Set("Accept", "application/json, text/event-stream")
			w := &deadlineRecorder{httptest.NewRecorder(), time.Time{}, t}
			g.ServeHTTP(w, q.WithContext(auth.NewContext(q.Context(), auth.Local)))
			short := strings.HasPrefix(w.Header().Get("Content-Type"), "application/json")
			if w.Body.Len() == 0 || n > 0 && !short || !w.until.IsZero() {
				t.Errorf("%s: fast path %v, %q, and then until %v", method, short, w.Body, w.until)
			}
		}
	}
}

// Without the fast path, the SDK gives the same answers.
func TestWithoutTheFastPath(t *testing.T) {
	answers := map[bool][]string{}
	for _, alone := range []bool{false, true} {
		var calls atomic.Int64
		g := newMixedGateway(&calls)
		g.SDKOnly = alone
		r := newTestClient(t, g, `{}`)
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ext_a","arguments":{"a":"1"}}}`,
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"careless","arguments":{"a":"1"}}}`,
			`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"careless","arguments":{"a":"fault"}}}`,
			`{"jsonrpc":"2.0","id":5,"method":"no/such"}`,
		} {
			for again := range 2 {
				got := r.stateful(body)
				if alone && got.fast && again == 1 && strings.Contains(body, "tools/") {
					t.Errorf("%s did not pass the SDK: %s", body, got.text)
				}
				b, err := json.Marshal(got.body)
				if err != nil {
					t.Fatal(err)
				}
				answers[alone] = append(answers[alone], string(b))
			}
		}
	}
	if with, without := answers[false], answers[true]; !slices.Equal(with, without) {
		t.Errorf("with it\n%s\nand without\n%s", strings.Join(with, "\n"), strings.Join(without, "\n"))
	}
}
