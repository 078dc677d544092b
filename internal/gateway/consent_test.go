package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

const callCareful = `"name":"careful","arguments":{"a":1}`

func answeredCall(state, answers string) string {
	return fmt.Sprintf(`%s,"requestState":%q,"inputResponses":{"input":%s}`, callCareful, state, answers)
}

// newAskingGateway returns a gateway with one of Sandlot's own tools, which asks the user and returns the
// answer.
func newAskingGateway() *Gateway {
	return newGateway(fakeElicitor{func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		if c.Name == "careless" {
			return &tool.Result{Content: []tool.Content{tool.Text(fmt.Sprint(c.Client != nil))}}, nil
		}
		if c.Client == nil {
			return nil, fault.New(fault.Forbidden, "there is nobody to ask")
		}
		c.Progress("asking")
		a, err := c.Client.Ask(ctx, "elicitation/create",
			json.RawMessage(`{"message":"May I?","requestedSchema":{"type":"object",`+
				`"properties":{"decision":{"type":"string"}}}}`))
		if err != nil {
			return nil, err
		}
		return &tool.Result{Content: []tool.Content{tool.Text(string(a))}, Fields: map[string]any{"n": 1},
			Summary: "n: 1"}, nil
	}})
}

// One of Sandlot's own tools asks a client of the stateless protocol, which retries the call.
func TestElicitationStateless(t *testing.T) {
	g := newAskingGateway()
	kind, state, answer := resultOf(t, ask(g, "tools/call", "careful", callCareful))
	if kind != "input_required" || state == "" || !strings.Contains(answer, "May I?") {
		t.Fatal(answer)
	}
	kind, again, answer := resultOf(t,
		ask(g, "tools/call", "careful", fmt.Sprintf(`%s,"requestState":%q`, callCareful, state)))
	if kind != "input_required" || !strings.Contains(answer, "May I?") { // the retry had no answer
		t.Fatal(answer)
	}
	kind, _, answer = resultOf(t, ask(g, "tools/call", "careful",
		answeredCall(again, `{"action":"accept","content":{"decision":"allow"}}`)))
	if kind != "complete" || !strings.Contains(answer, `\"decision\":\"allow\"`) ||
		!strings.Contains(answer, `"structuredContent":{"n":1}`) || !strings.Contains(answer, "n: 1") {
		t.Error(answer)
	}
	if got := ask(g, "tools/call", "careless", `"name":"careless","arguments":{}`); !strings.Contains(got, "false") {
		t.Errorf("a tool that does not ask: %s", got)
	}
	if got := askBare(g, callOf("1", "careful", "{}")); !strings.Contains(got, "FORBIDDEN") {
		t.Errorf("a bare call: %s", got)
	}
}

// One of Sandlot's own tools asks a client of the stateful protocol while the client waits.
func TestElicitationStateful(t *testing.T) {
	g := newAskingGateway()
	e, _ := g.acquire(endpointKey{principal: auth.Local})
	for _, able := range []bool{true, false} {
		here, there := mcp.NewInMemoryTransports()
		s, err := e.server.Connect(t.Context(), there, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		asked, heard := "", make(chan string, 10)
		opts := &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
			r *mcp.ProgressNotificationClientRequest) {
			heard <- r.Params.Message
		}}
		if able {
			opts.ElicitationHandler = func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked = r.Params.Message
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": "allow"}}, nil
			}
		}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts).
			Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "careful", Arguments: map[string]any{},
			Meta: mcp.Meta{"progressToken": "p"}})
		if able && (err != nil || asked != "May I?" || <-heard != "asking" ||
			!strings.Contains(r.Content[0].(*mcp.TextContent).Text, "allow")) {
			t.Errorf("%v %+v, asked %q", err, r, asked)
		}
		if !able && (err == nil || asked != "") {
			t.Errorf("a client that cannot be asked: %+v", r)
		}
	}
}

// A requestState is valid only for its call and its principal.
func TestStatesAreBound(t *testing.T) {
	anna, bob := auth.User("anna", false), auth.User("bob", false)
	passed := 0
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_ask", `{"type":"object"}`),
		externalTool("ext_state", `{"type":"object"}`), externalTool("ext_other", `{"type":"object"}`)},
		prompts: []tool.Item{{Key: "ext_ask", Raw: json.RawMessage(`{"name":"ext_ask"}`)}}}
	external.call = func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		switch {
		case c.Name == "ext_state" && c.Inputs.Empty():
			return &tool.Result{Raw: asksInput("input", "theirs")}, nil
		case c.Name == "ext_ask" && c.Inputs.Empty():
			if _, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m"}`)); err != nil {
				return nil, err
			}
		}
		passed++
		return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
	}
	external.proxy = func(context.Context, tool.Request) (json.RawMessage, error) {
		passed++
		return json.RawMessage(`{"messages":[]}`), nil
	}
	g := newGateway(external)
	defer g.Close()
	for _, name := range []string{"ext_ask", "ext_state"} {
		t.Run(name, func(t *testing.T) {
			passed = 0
			with := func(p auth.Principal, method, tool, args, state string) string {
				return askAs(g, p, method, tool,
					fmt.Sprintf(`"name":%q,"arguments":%s,"requestState":%q,`+
						`"inputResponses":{"input":{"action":"accept"}}`, tool, args, state))
			}
			kind, state, answer := resultOf(t, askAs(g, anna, "tools/call", name,
				fmt.Sprintf(`"name":%q,"arguments":{"a":"1"}`, name)))
			if kind != "input_required" {
				t.Fatal(answer)
			}
			middle := len(state) / 2
			for what, got := range map[string]string{
				"another user":        with(bob, "tools/call", name, `{"a":"1"}`, state),
				"the local user":      with(auth.Local, "tools/call", name, `{"a":"1"}`, state),
				"a service of theirs": with(auth.User("anna", true), "tools/call", name, `{"a":"1"}`, state),
				"another tool":        with(anna, "tools/call", "ext_other", `{"a":"1"}`, state),
				"other arguments":     with(anna, "tools/call", name, `{"a":"2"}`, state),
				"no arguments":        with(anna, "tools/call", name, `{}`, state),
				"a prompt":            with(anna, "prompts/get", "ext_ask", `{"a":"1"}`, state),
				"a changed one": with(anna, "tools/call", name, `{"a":"1"}`, state[:middle]+
					string('A'+(state[middle]-'A'+1)%26)+state[middle+1:]),
				"half of it": with(anna, "tools/call", name, `{"a":"1"}`, state[:middle]),
			} {
				if !strings.Contains(got, "-32602") || passed > 0 {
					t.Fatalf("%s: %s", what, got)
				}
			}
			if kind, _, answer := resultOf(t, with(anna, "tools/call", name, `{"a":"1"}`, state)); kind != "complete" ||
				passed != 1 {
				t.Fatalf("the call that it is for: %s", answer)
			}
			if got := with(anna, "tools/call", "ext_ask", `{"a":"1"}`, state); name == "ext_ask" &&
				!strings.Contains(got, "-32602") {
				t.Errorf("a second time: %s", got)
			}
		})
	}
}
