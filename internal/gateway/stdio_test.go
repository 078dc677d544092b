package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

// reply has the parts of a JSON-RPC response that tests check.
type reply struct {
	ID     any
	Result json.RawMessage
	Error  struct {
		Code    int
		Message string
	}
}

func replyOf(t *testing.T, text string) (r reply) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Errorf("%q is no JSON: %v", text, err)
	}
	return r
}

// notMessages has lines, and the code and the id of the answers to them.
var notMessages = []struct {
	line string
	code int
	id   any
}{
	{`this is not JSON`, -32700, nil},
	{`{"jsonrpc":"2.0","id":1,`, -32700, nil},
	{"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}", -32700, nil},
	{"\xff\xfe", -32700, nil},
	{`{"jsonrpc":"2.0","id":1,"method":"ping"} trailing`, -32700, nil},
	{`{"jsonrpc":"1.0","id":4,"method":"ping"}`, -32600, 4.0},
	{`{"id":"x"}`, -32600, "x"},
	{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600, nil},
	{`{"jsonrpc":"2.0","id":5,"method":7}`, -32600, 5.0},
	{`[]`, -32600, nil},
	{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600, nil},
	{`"text"`, -32600, nil},
	{`null`, -32600, nil},
	{`{"jsonrpc":"2.0","id":6,"method":"no/such"}`, -32601, 6.0},
	{strings.Repeat("[", 3000), -32700, nil},
}

func TestStdioGoesOn(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	g.MaxBody = 1 << 20
	in, out := stdioPipe(g, auth.Local)
	defer in.Close()
	out.Buffer(nil, 4<<20)
	say := func(line string) string {
		t.Helper()
		fmt.Fprintln(in, line)
		if !out.Scan() {
			t.Fatalf("after %.100q it ended: %v", line, out.Err())
		}
		return out.Text()
	}
	lives := func(after string) {
		t.Helper()
		if r := replyOf(t, say("{\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\r\n ")); r.ID != "p" ||
			string(r.Result) != "{}" {
			t.Errorf("after %.100q: %+v", after, r)
		}
	}
	if r := replyOf(t, say("rubbish before all")); r.Error.Code != -32700 {
		t.Errorf("%+v", r)
	}
	say(initialize("0"))
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for _, tt := range append(notMessages, struct {
		line string
		code int
		id   any
	}{`{"jsonrpc":"2.0","id":1,"x":"` + strings.Repeat("x", 3<<20) + `"}`, -32600, nil}) {
		if r := replyOf(t, say(tt.line)); r.Error.Code != tt.code || r.ID != tt.id {
			t.Errorf("%.100q: %+v", tt.line, r)
		}
		lives(tt.line)
	}
	if r := replyOf(t,
		say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"careless"}}`)); r.ID != 9.0 ||
		r.Result == nil {
		t.Errorf("a call: %+v", r)
	}
}

// A last line without a newline is answered too.
func TestStdioEnds(t *testing.T) {
	for _, last := range []string{`{"jsonrpc":"2.0","id":3,"method":"no/such"}`, `{"jsonrpc":`} {
		l := newLineReader(http.NoBody, &strings.Builder{}, 100)
		var said strings.Builder
		l.input, l.out = bufio.NewReader(strings.NewReader(last)), &said
		p, err := l.next()
		if n := len(p.messages); n == 0 && said.String() == "" || n == 0 && err == nil {
			t.Errorf("%q: %d messages, %q, %v", last, n, said.String(), err)
		}
	}
}

// TestFieldsKeepTheirOrder: a client is asked for the fields of a form in the order in which the server has them.
func TestFieldsKeepTheirOrder(t *testing.T) {
	const form = `{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"},"m":{"type":"string"}}}`
	g := newGateway(fakeElicitor{func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		_, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m","requestedSchema":`+form+`}`))
		return &tool.Result{Summary: "done"}, err
	}}, &fakeExternal{})
	in, out := stdioPipe(g, auth.Local)
	go func() {
		fmt.Fprintln(in, strings.Replace(initialize("0"), `"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1))
		fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"careful"}}`)
	}()
	asked := false
	for out.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ RequestedSchema json.RawMessage }
		}
		if err := json.Unmarshal(out.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		if m.Method == "elicitation/create" {
			asked = true
			if string(m.Params.RequestedSchema) != form {
				t.Errorf("asked for %s", m.Params.RequestedSchema)
			}
			go fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`+"\n", m.ID)
		}
		if string(m.ID) == "1" && m.Method == "" {
			break
		}
	}
	if !asked {
		t.Error("nobody was asked")
	}
	in.Close()
	for out.Scan() {
	}
	g.Close()
}

// All requests of an input that ends at once are answered, also one that takes a moment.
func TestStdioAnswersBeforeItEnds(t *testing.T) {
	for range 20 {
		g := newGateway(fakeElicitor{func(context.Context, tool.Call) (*tool.Result, error) {
			time.Sleep(20 * time.Millisecond)
			return &tool.Result{Summary: "done"}, nil
		}}, &fakeExternal{})
		in, out := stdioPipe(g, auth.Local)
		go func() {
			fmt.Fprintln(in, initialize("0"))
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"careless"}}`)
			fmt.Fprint(in, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
			in.Close()
		}()
		answered := map[any]bool{}
		for out.Scan() {
			if r := replyOf(t, out.Text()); r.Result != nil {
				answered[r.ID] = true
			}
		}
		if len(answered) != 3 {
			t.Fatalf("answered were %v", answered)
		}
		g.Close()
	}
}

// A line that has arrived when the server stops is answered.
func TestStdioStopsAfterALine(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	defer g.Close()
	synctest.Test(t, func(t *testing.T) {
		stops := make(chan struct{})
		close(stops)
		for range 30 { // a select among both would choose either
			in, feed := io.Pipe()
			out := &messageWriter{Closer: in, out: io.Discard}
			d := &duplex{in: newLineReader(in, out, 1000), out: out, limits: g.Limits, answers: new(runningAnswers), stops: stops}
			if _, err := d.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(feed, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			synctest.Wait()
			if m, err := d.Read(t.Context()); m == nil {
				t.Errorf("the line is dropped: %v", err)
			}
			d.Close()
		}
	})
}

// A client whose session third-party servers know of does not hold up the server's stop.
func TestCloseEndsStdio(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	in, out := stdioPipe(g, auth.Local)
	defer in.Close()
	fmt.Fprintln(in, initialize("0"))
	out.Scan()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`)
	if out.Scan(); !strings.Contains(out.Text(), `"result"`) {
		t.Fatal(out.Text())
	}
	if len(g.watchedSessions) != 1 {
		t.Fatalf("%d sessions are followed", len(g.watchedSessions))
	}
	g.Close()
	if g.mu.Lock(); len(g.watchedSessions) != 0 {
		t.Error("Close did not wait for the session's end")
	}
	g.mu.Unlock()
	if out.Scan() {
		t.Errorf("after the end: %s", out.Text())
	}
}

// Clients of revisions with batches can send batches.
func TestStdioBatches(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	in, out := stdioPipe(g, auth.Local)
	defer in.Close()
	fmt.Fprintln(in, request("0", "initialize", initParams("2025-03-26", "{}")))
	out.Scan()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintln(in, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`)
	if out.Scan(); !strings.HasPrefix(out.Text(), "[") || strings.Count(out.Text(), `"result"`) != 2 {
		t.Errorf("a batch: %s", out.Text())
	}
	many := strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/x"},`, rpc.MaxBatch) +
		`{"jsonrpc":"2.0","method":"notifications/x"}`
	for _, bad := range []string{`[]`, `[1]`, "[" + many + "]",
		`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"ping"}]`} {
		fmt.Fprintln(in, bad)
		if out.Scan(); replyOf(t, out.Text()).Error.Code != -32600 {
			t.Errorf("%s: %s", bad, out.Text())
		}
	}
}

// Over HTTP, the answer to anything is JSON-RPC.
func TestHTTPAnswersInJSON(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	id := begin(t, g, auth.Local)
	postStateless := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
		for k, v := range map[string]string{"Content-Type": "application/json",
			"Accept":               "application/json, text/event-stream",
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "no/such"} {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), auth.Local)))
		return w
	}
	such := request("6", "no/such", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`)
	check := func(what string, w *httptest.ResponseRecorder, status, code int, id any) {
		t.Helper()
		if r := replyOf(t, w.Body.String()); w.Code != status || r.Error.Code != code || r.ID != id ||
			!strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	check("an unknown method", post(g, auth.Local, id, `{"jsonrpc":"2.0","id":6,"method":"no/such"}`), 200, -32601, 6.0)
	check("one of the stateless protocol", postStateless(such), 404, -32601, 6.0)
	check("one without a session", post(g, auth.Local, "", `{"jsonrpc":"2.0","id":6,"method":"no/such"}`), 200, -32601,
		6.0)
	for _, body := range []string{"nonsense",
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}"} {
		check("broken", post(g, auth.Local, id, body), 400, -32700, nil)
		check("broken, of the stateless protocol", postStateless(body), 400, -32700, nil)
		check("broken and bare", post(g, auth.Local, "", body), 200, -32700, nil)
	}
	if w := post(g, auth.Local, id, `{"jsonrpc":"2.0","method":"notifications/unheard"}`); w.Code != 202 ||
		w.Body.Len() > 0 {
		t.Errorf("an unknown notification: %d %s", w.Code, w.Body)
	}
	if w := post(g, auth.Local, "gone", `{"jsonrpc":"2.0","id":6,"method":"no/such"}`); w.Code != 404 {
		t.Errorf("a session that is not there: %d", w.Code)
	}
	// The table of methods has all that the SDK supports.
	for m := range methods {
		w := post(g, auth.Local, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q}`, m))
		if strings.Contains(w.Body.String(), "unsupported") {
			t.Errorf("%s: %s", m, w.Body)
		}
	}
}

// Over stdio, the bytes of a line and each running call are counted for the principal.
func TestStdioCounts(t *testing.T) {
	began, ends := make(chan struct{}, 10), make(chan struct{})
	g := newGateway(reportCaller(), &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		call: func(context.Context, tool.Call) (*tool.Result, error) {
			began <- struct{}{}
			<-ends
			return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
		}})
	most := limit.Default
	most[limit.RequestBytes], most[limit.Calls] = 20<<10, 1
	g.Limits = limit.New(most)
	in, out := stdioPipe(g, auth.Local)
	defer in.Close()
	say := func(line string) reply {
		t.Helper()
		fmt.Fprintln(in, line)
		if !out.Scan() {
			t.Fatalf("the stream ended: %v", out.Err())
		}
		return replyOf(t, out.Text())
	}
	if r := say(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + strings.Repeat("a", 40<<10) +
		`"}}`); !strings.Contains(r.Error.Message, "bytes of requests") {
		t.Errorf("a line over the limit: %+v", r)
	}
	for range 5 { // what was counted is released
		if r := say(`{"jsonrpc":"2.0","id":2,"method":"ping","params":{"a":"` + strings.Repeat("a", 18<<10) +
			`"}}`); r.Result == nil {
			t.Errorf("a line below it: %+v", r)
		}
	}
	say(initialize("0"))
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"ext_t","arguments":{}}}`)
	<-began
	if r := say(callOf("4", "ext_t", "{}")); !strings.Contains(string(r.Result), "calls at once") ||
		!strings.Contains(string(r.Result), `"isError":true`) {
		t.Errorf("a second call: %+v", r)
	}
	close(ends)
	if out.Scan(); replyOf(t, out.Text()).ID != 3.0 {
		t.Errorf("the first call: %s", out.Text())
	}
}

// A client that changes its revision later cannot end the stream with a batch. A batch is
// answered when all of its calls are; notifications have no answers.
func TestStdioBatchesLater(t *testing.T) {
	g := newGateway(reportCaller(), &fakeExternal{})
	in, out := stdioPipe(g, auth.Local)
	defer in.Close()
	fmt.Fprintln(in, initialize("0"))
	out.Scan()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintln(in, request("1", "initialize", initParams("2025-03-26", "{}")))
	out.Scan()
	for _, line := range []string{
		`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`,
		`[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":3,"method":"ping"},` +
			`{"jsonrpc":"2.0","method":"notifications/x"}]`,
		`{"jsonrpc":"2.0","id":4,"method":"ping"}`,
	} {
		fmt.Fprintln(in, line)
		if !out.Scan() {
			t.Fatalf("%s: it ended: %v", line, out.Err())
		}
		if want := strings.Count(line, `"ping"`); strings.Count(out.Text(), `"result"`) != want {
			t.Errorf("%s: %s", line, out.Text())
		}
	}
}
