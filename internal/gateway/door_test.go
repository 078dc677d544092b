package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

const refusalText = "this test refuses every operation"

// refuseAll is a policy that refuses everything.
func refuseAll(policy.Question) policy.Decision {
	return policy.Decision{Reason: fault.New(fault.Forbidden, refusalText)}
}

// noOperation has the methods that are not operations: they change nothing and return nothing.
var noOperation = map[string]bool{"ping": true, "notifications/cancelled": true, "notifications/initialized": true,
	"notifications/progress": true, "notifications/roots/list_changed": true}

// exampleRequests has a request of each other method, with the name that a header repeats.
var exampleRequests = map[string]struct{ params, name string }{
	"initialize":               {params: initParams("2025-11-25", "{}")},
	"server/discover":          {},
	"logging/setLevel":         {params: `"level":"error"`},
	"tools/list":               {},
	"prompts/list":             {},
	"resources/list":           {},
	"resources/templates/list": {},
	"tools/call":               {params: `"name":"own"`, name: "own"},
	"prompts/get":              {params: `"name":"ext_p"`, name: "ext_p"},
	"resources/read":           {params: `"uri":"file:///x"`, name: "file:///x"},
	"resources/subscribe":      {params: `"uri":"file:///x"`},
	"resources/unsubscribe":    {params: `"uri":"file:///x"`},
	"subscriptions/listen":     {params: `"notifications":{"toolsListChanged":true}`},
	"completion/complete": {
		params: `"ref":{"type":"ref/prompt","name":"ext_p"},"argument":{"name":"a","value":"b"}`},
}

// newUntouchableGateway returns a gateway whose sources fail the test when they are used.
func newUntouchableGateway(t *testing.T) *Gateway {
	touched := func(what string) { t.Errorf("%s was done", what) }
	external := &fakeExternal{
		tools:     []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		prompts:   []tool.Item{{Key: "ext_p", Raw: json.RawMessage(`{"name":"ext_p"}`)}},
		resources: []tool.Item{{Key: "file:///x", Raw: json.RawMessage(`{"uri":"file:///x","name":"x"}`)}},
		call: func(context.Context, tool.Call) (*tool.Result, error) {
			touched("a third-party call")
			return &tool.Result{Raw: json.RawMessage(`{}`)}, nil
		},
		proxy: func(_ context.Context, r tool.Request) (json.RawMessage, error) {
			touched(r.Method)
			return json.RawMessage(`{}`), nil
		},
	}
	return newGateway(fakeBuiltin{call: func() (*tool.Result, error) {
		touched("a call")
		return &tool.Result{}, nil
	}}, external)
}

// checkForbidden checks that an answer is the policy's refusal.
func checkForbidden(t *testing.T, where, answer string) {
	t.Helper()
	var a struct {
		Error  struct{ Message string }
		Result struct { // of a call
			IsError bool
			Content []struct{ Text string }
		}
	}
	err := json.Unmarshal([]byte(answer), &a)
	text := a.Error.Message
	if a.Result.IsError && len(a.Result.Content) > 0 {
		text = a.Result.Content[0].Text
	}
	if err != nil || !strings.Contains(text, refusalText) {
		t.Errorf("%s: %.300s", where, answer)
	}
}

// messageOf returns the JSON of an answer.
func messageOf(s response) string {
	b, _ := json.Marshal(s.body)
	return string(b)
}

// Every method is a known operation, or one of those that do nothing.
func TestMethodsNameOperations(t *testing.T) {
	for m := range methods {
		_, asked := exampleRequests[m]
		if asked == noOperation[m] {
			t.Errorf("%s: is it an operation? it is in none of this test's tables, or in both", m)
		}
	}
	for m, o := range operations {
		if !o.Known() || !methods[m] {
			t.Errorf("%s asks for %q", m, o)
		}
	}
}

// Policy can refuse every method, in each protocol and over each transport, and the client
// gets the reason.
func TestRoadsGoThroughTheDoor(t *testing.T) {
	stateless := func(t *testing.T, m, params, name string) string {
		g := newUntouchableGateway(t)
		g.Hub.Decide = refuseAll
		return ask(g, m, name, params)
	}
	stateful := func(t *testing.T, m, params, _ string) string {
		r := newTestClient(t, newUntouchableGateway(t), "{}")
		r.g.Hub.Decide = refuseAll
		return messageOf(r.stateful(fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":%q,"params":{%s}}`, m, params)))
	}
	stdio := func(t *testing.T, m, params, _ string) string {
		g := newUntouchableGateway(t)
		in, out := stdioPipe(g, auth.Local)
		defer in.Close()
		say := func(line string) {
			if _, err := io.WriteString(in, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		if m != "initialize" {
			say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{` + exampleRequests["initialize"].params + `}}`)
			out.Scan()
		}
		g.Hub.Decide = refuseAll
		if m != "initialize" {
			say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		}
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":%q,"params":{%s}}`, m, params))
		for out.Scan() {
			if strings.Contains(out.Text(), `"id":5`) {
				return out.Text()
			}
		}
		return "it ended"
	}
	statelessOnly := map[string]bool{"server/discover": true, "subscriptions/listen": true}
	statefulOnly := map[string]bool{"initialize": true, "logging/setLevel": true,
		"resources/subscribe": true, "resources/unsubscribe": true}
	for m, r := range exampleRequests {
		if !statefulOnly[m] {
			checkForbidden(t, m+" stateless", stateless(t, m, r.params, r.name))
		}
		if statelessOnly[m] {
			continue
		}
		checkForbidden(t, m+" on stdio", stdio(t, m, r.params, r.name))
		if m != "initialize" { // which begins the session
			checkForbidden(t, m+" stateful", stateful(t, m, r.params, r.name))
		}
	}
}

// Policy can also refuse calls and lists that the fast path would answer.
func TestFastPathGoesThroughTheDoor(t *testing.T) {
	calls := 0
	g := newGateway(fakeBuiltin{call: func() (*tool.Result, error) {
		calls++
		return &tool.Result{}, nil
	}}, &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		call: func(context.Context, tool.Call) (*tool.Result, error) {
			calls++
			return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
		}})
	r := newTestClient(t, g, "{}")
	for _, q := range []struct{ method, params, name string }{
		{"tools/call", `"name":"own"`, "own"},
		{"tools/call", `"name":"ext_t"`, "ext_t"},
		{"tools/list", "", ""},
	} {
		stateful := func() string {
			return messageOf(r.stateful(request("7", q.method, q.params)))
		}
		stateless := func() string { return ask(g, q.method, q.name, q.params) }
		for name, send := range map[string]func() string{"stateful": stateful, "stateless": stateless} {
			g.Hub.Decide = policy.Decide
			for range 3 {
				if a := send(); !strings.Contains(a, `"result"`) {
					t.Fatalf("%s: %s", q.method, a)
				}
			}
			before := calls
			g.Hub.Decide = refuseAll
			checkForbidden(t, q.method+" "+q.name+" "+name, send())
			if calls != before {
				t.Errorf("%s %s was called", q.method, q.name)
			}
		}
	}
}

// Policy can refuse bare calls.
func TestBareCallsGoThroughTheDoor(t *testing.T) {
	g := newUntouchableGateway(t)
	g.Hub.Decide = refuseAll
	for _, q := range []string{
		`"tools/list"`,
		`"tools/call","params":{"name":"own"}`,
		`"tools/call","params":{"name":"ext_t"}`,
		`"tools/call","params":{"name":"nothing"}`,
	} {
		checkForbidden(t, q, askBare(g, `{"jsonrpc":"2.0","id":1,"method":`+q+`}`))
	}
}
