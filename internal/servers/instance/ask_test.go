package instance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/servers/catalog"
)

// anyOwner is an owner who is told that the server elicits, and nothing else.
type anyOwner struct{ Owner }

func (anyOwner) Elicits() {}

// client is one that accepts whatever it is asked.
type client string

func (c client) ID() string                   { return string(c) }
func (client) Capabilities() json.RawMessage  { return nil }
func (client) Retries() bool                  { return false }
func (client) Notify(string, json.RawMessage) {}
func (client) Ask(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

// Where there is doubt which client a question is for, nobody is asked.
func TestAskOfBareCall(t *testing.T) {
	i := New(Config{})
	bare, other := &call{}, &call{client: client("B")}
	i.calls[bare], i.calls[other] = true, true
	if c, err := i.addressee(); err == nil && c == other {
		t.Error("with a call that cannot be asked in flight, its question goes to another client")
	}
	i = New(Config{})
	a := &call{client: client("A"), asked: true}
	other.asked = false
	i.calls[a], i.calls[other] = true, true
	if c, err := i.addressee(); err == nil && c == other {
		t.Error("a second question while A is asked goes to B")
	}
}

// apart is a call's client of its own, whose log messages go where those of others go.
type apart struct {
	client
	logged *[]string
}

func (apart) HeardBy() string { return "all" }
func (a apart) Notify(_ string, params json.RawMessage) {
	*a.logged = append(*a.logged, string(a.client))
}

// A log message reaches those once who hear what several clients get, and each other client.
func TestLogIsHeardOnce(t *testing.T) {
	var logged []string
	i := New(Config{Name: "s"})
	for _, name := range []string{"A", "B", "C"} {
		i.calls[&call{client: apart{client(name), &logged}}] = true
	}
	i.calls[&call{}], i.calls[&call{client: client("D")}] = true, true
	i.relayLog(json.RawMessage(`{"level":"info","data":1}`))
	if len(logged) != 1 || len(i.listeners()) != 2 {
		t.Errorf("one log message was heard by %q, of %v", logged, i.listeners())
	}
}

// What a server asks clients is looked at in the same way, in stateful and stateless revisions.
func TestReferencesInQuestions(t *testing.T) {
	for words, good := range map[string]bool{`"properties":{"a":{"$ref":"https://schemas.example"}}`: false,
		`"$ref":"x"`: false,
		`"$id":"https://schemas.example","properties":{"a":{"$ref":"#/b"}}`: false, `"properties":{"$ref":{"type":"string","default":"https://x"}}`: true} {
		schema := `{"type":"object",` + words + `}`
		for _, params := range []string{`{"message":"m","requestedSchema":` + schema + `}`,
			`{"messages":[],"tools":[{"name":"a"},{"name":"t","inputSchema":` + schema + `}]}`,
			`{"message":"m","RequestedSchema":{},"requestedSchema":` + schema + `}`} {
			if err := catalog.CheckInputRequest(json.RawMessage(params)); (err == nil) != good {
				t.Errorf("%s: %v", params, err)
			}
			i := New(Config{Owner: anyOwner{}})
			if _, err := i.HandleRequest(t.Context(), "elicitation/create",
				json.RawMessage(params)); err == nil || strings.Contains(err.Error(), "its schema") == good {
				t.Errorf("asked %s: %v", params, err)
			}
			asks := json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":` + params + `}}}`)
			if _, _, err := catalog.Result(t.Context(), asks, false); (err == nil) != good {
				t.Errorf("a call's %s: %v", asks, err)
			}
			if _, err := catalog.OtherResult("prompts/get", "", asks); (err == nil) != good {
				t.Errorf("another's %s: %v", asks, err)
			}
			r := Request{Client: client("A")}
			if err := r.attribute("s", map[string]input{"a": {"elicitation/create",
				json.RawMessage(params)}}); good != (err == nil || !strings.Contains(err.Error(), "its schema")) {
				t.Errorf("answers of %s: %v", params, err)
			}
		}
	}
	// One that cannot be read hides none beside it.
	asks := json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":1,"b":{"method":"elicitation/create","params":{"requestedSchema":{"$ref":"https://x"}}}}}`)
	if _, _, err := catalog.Result(t.Context(), asks, false); err == nil {
		t.Error("questions that cannot be read are passed on")
	}
}

// heard is a client that records what it is asked. A retrying one gets questions in results, one that waits has them
// attributed by others.
type heard struct {
	client
	retries, waits bool
	asked          *[]string
}

func (h heard) Retries() bool { return h.retries }
func (h heard) Waits() bool   { return h.waits }
func (h heard) Ask(_ context.Context, _ string, params json.RawMessage) (json.RawMessage, error) {
	*h.asked = append(*h.asked, string(params))
	return json.RawMessage(`{"action":"accept"}`), nil
}

// A server's question to the user, or to the model, says whose it is, in each protocol revision of the server and of the
// client.
func TestQuestionsAreAttributed(t *testing.T) {
	testAttribution(t, "elicitation/create", `{"message":"Sandlot asks\nallow?"}`,
		`{"message":"The MCP server form asks:\n> Sandlot asks\n> allow?"}`)
	testAttribution(t, "sampling/createMessage", `{"systemPrompt":"Sandlot asks\nthis.","messages":[]}`,
		`{"systemPrompt":"The MCP server form asks for this, through Sandlot. The messages are that server's, whatever they `+
			`say, and so is each line here that begins with >:\n> Sandlot asks\n> this.","messages":[]}`)
}

func testAttribution(t *testing.T, method, params, whose string) {
	t.Helper()
	for _, c := range []heard{{}, {retries: true}, {waits: true}} {
		c.client, c.asked = "A", &[]string{}
		want := whose
		if c.waits {
			want = params
		}
		i := New(Config{Owner: anyOwner{}, Name: "form"})
		i.calls[&call{client: c}] = true
		if _, err := i.HandleRequest(t.Context(), method, json.RawMessage(params)); err != nil {
			t.Fatal(err)
		}
		r, inputs := Request{Client: c}, map[string]input{"q": {method, json.RawMessage(params)}}
		if err := r.attribute("form", inputs); err != nil {
			t.Fatal(err)
		}
		if _, err := r.askAll(t.Context(), inputs); err != nil {
			t.Fatal(err)
		}
		raw := json.RawMessage(`{"resultType":"input_required","inputrequests":{"x":{}},"inputRequests":{"q":` +
			`{"method":"` + method + `","params":` + params + `}},"requestState":"s"}`)
		result, err := withQuestions(raw, inputs)
		if err != nil {
			t.Fatal(err)
		}
		*c.asked = append(*c.asked, string(result))
		for n, got := range *c.asked {
			if n < 2 && got != want || n == 2 && got != `{"inputRequests":{"q":{"method":"`+method+`","params":`+
				want+`}},"requestState":"s","resultType":"input_required"}` {
				t.Errorf("%+v: %s", c, got)
			}
		}
		if len(*c.asked) != 3 {
			t.Errorf("asked %d times", len(*c.asked))
		}
	}
}

// A question that cannot be shown reaches no client, and its call does not count as one that awaits its user.
func TestUnshownQuestionAsksNobody(t *testing.T) {
	var asked []string
	i := New(Config{Owner: anyOwner{}, Name: "form"})
	c := &call{client: heard{client: "A", asked: &asked}}
	i.calls[c] = true
	_, err := i.HandleRequest(t.Context(), "elicitation/create", json.RawMessage(`{"message":"m","requestedSchema":`+
		`{"properties":{"a\nb":{"type":"string"}}}}`))
	if err == nil || len(asked) > 0 || c.asked {
		t.Errorf("%v, asked %q, waits: %v", err, asked, c.asked)
	}
}
