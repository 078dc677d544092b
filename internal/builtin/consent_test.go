package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

// shelf keeps nothing.
type shelf struct{}

func (shelf) PutConnection(context.Context, servers.Record) error { return nil }
func (shelf) Connections(context.Context, string) ([]servers.Record, error) {
	return nil, nil
}
func (shelf) Connected(context.Context) ([][2]string, error)         { return nil, nil }
func (shelf) RemoveConnection(context.Context, string, string) error { return nil }

// person is a client whose user decides.
type person struct {
	decision string
	asked    []string
}

func (*person) ID() string                     { return "p" }
func (*person) Capabilities() json.RawMessage  { return json.RawMessage(`{"elicitation":{}}`) }
func (*person) Retries() bool                  { return false }
func (*person) Notify(string, json.RawMessage) {}

func (p *person) Ask(_ context.Context, _ string, params json.RawMessage) (json.RawMessage, error) {
	var q struct{ Message string }
	err := json.Unmarshal(params, &q)
	p.asked = append(p.asked, q.Message)
	return fmt.Appendf(nil, `{"action":"accept","content":{"decision":%q}}`, p.decision), err
}

// remote is an MCP server that counts who comes.
func remote(t *testing.T) (address string, calls *atomic.Int32) {
	calls = new(atomic.Int32)
	return serverstest.Empty(t, func(string, http.Header) { calls.Add(1) }), calls
}

func toolsWith(t *testing.T, policy tool.Policy) *Tools {
	b := servers.New(servers.Config{Store: shelf{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(b.Close)
	return New(Config{Connections: b, Consent: policy})
}

// slow is a person who thinks until they are told to answer.
type slow struct {
	person
	thinking, answer chan struct{}
}

func (p *slow) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	close(p.thinking)
	<-p.answer
	return p.person.Ask(ctx, method, params)
}

// A change of the operator's mind holds from the next question on, in both
// directions; who is being asked decides all the same.
func TestConsentChanges(t *testing.T) {
	address, calls := remote(t)
	tools := toolsWith(t, tool.Allow)
	anna := auth.User("anna", false)
	connect := func(client tool.Client, name string) (*tool.Result, error) {
		return callTool(tools, t.Context(), tool.Call{Principal: anna, Client: client, Name: "connect_external_mcp",
			Args: fmt.Appendf(nil, `{"name":%q,"url":%q}`, name, address)})
	}
	works := func(client tool.Client, name string) {
		t.Helper()
		if r, err := connect(client, name); err != nil || r.IsError {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	forbidden := func(client tool.Client, name string) {
		t.Helper()
		before := calls.Load()
		if _, err := connect(client, name); !fault.Is(err, fault.Forbidden) || calls.Load() != before {
			t.Errorf("%s: %v, %d calls", name, err, calls.Load()-before)
		}
	}
	p := &person{decision: "allow"}
	works(p, "free")
	for i, other := range []tool.Policy{tool.Deny, tool.Allow} { // what is set while a user thinks
		tools.SetConsent(tool.Ask)
		forbidden(nil, "unaskable")
		works(p, fmt.Sprintf("asked-%d", i))
		if len(p.asked) != i+1 {
			t.Errorf("asked %q", p.asked)
		}
		for _, decision := range []string{"allow", "deny"} {
			tools.SetConsent(tool.Ask)
			thinker := &slow{person{decision: decision}, make(chan struct{}), make(chan struct{})}
			type end struct {
				r   *tool.Result
				err error
			}
			ended := make(chan end, 1)
			go func() {
				r, err := connect(thinker, fmt.Sprintf("slow-%s-%d", decision, i))
				ended <- end{r, err}
			}()
			<-thinker.thinking
			tools.SetConsent(other)
			close(thinker.answer)
			if e := <-ended; e.err != nil || e.r.IsError != (decision == "deny") {
				t.Errorf("%s, while it became %s: %+v %v", decision, other, e.r, e.err)
			}
		}
	}
	tools.SetConsent(tool.Deny)
	forbidden(p, "denied")
	works(p, "free") // what is there already is no question
	tools.SetConsent(tool.Allow)
	works(nil, "free-again")
	if len(p.asked) != 2 {
		t.Errorf("asked %q", p.asked)
	}
}

// Nothing is done before the user has agreed to exactly that, and they are asked
// again when it changes, not when it is the same.
func TestConsentBeforeConnecting(t *testing.T) {
	one, calls := remote(t)
	two, others := remote(t)
	tools := toolsWith(t, tool.Ask)
	anna := auth.User("anna", false)
	p := &person{}
	call := func(client tool.Client, name, args string) (*tool.Result, error) {
		return callTool(tools, t.Context(), tool.Call{Principal: anna, Client: client, Name: name,
			Args: json.RawMessage(args)})
	}
	connect := func(url, header string) string {
		return fmt.Sprintf(`{"name":"docs","url":%q,"headers":{%q:"secret value"}}`, url, header)
	}

	p.decision = "deny"
	r, err := call(p, "connect_external_mcp", connect(one, "X-Key"))
	if err != nil || !r.IsError || !r.Fields.(*NotConnected).Declined ||
		!strings.Contains(*r.Content[0].Text, "nothing was installed, started or changed") {
		t.Fatalf("refused: %+v %v", r, err)
	}
	if calls.Load() != 0 || len(tools.Connections.List(anna)) != 0 {
		t.Fatal("what was refused was connected")
	}
	if q := p.asked[0]; !strings.Contains(q, one) || !strings.Contains(q, "X-Key") ||
		strings.Contains(q, "secret value") || !strings.Contains(q, `"docs"`) {
		t.Errorf("asked %q", q)
	}
	if _, err := call(nil, "connect_external_mcp", connect(one, "X-Key")); !fault.Is(err, fault.Forbidden) ||
		calls.Load() != 0 {
		t.Errorf("a client that cannot be asked: %v, %d calls", err, calls.Load())
	}
	if _, err := call(p, "connect_external_mcp", `{"name":"docs"}`); !fault.Is(err, fault.InvalidParameters) ||
		len(p.asked) != 1 {
		t.Errorf("asked of what cannot be: %v, %q", err, p.asked)
	}

	p.decision = "allow"
	step := func(what string, client tool.Client, name, args string, asked int, want string) {
		t.Helper()
		p.asked = nil
		r, err := call(client, name, args)
		if err != nil || r.IsError {
			t.Fatalf("%s: %+v %v", what, r, err)
		}
		if len(p.asked) != asked || asked > 0 && !strings.Contains(p.asked[0], want) {
			t.Errorf("%s: asked %q", what, p.asked)
		}
	}
	step("at first", p, "connect_external_mcp", connect(one, "X-Key"), 1, one)
	step("the same again", p, "connect_external_mcp", connect(one, "X-Key"), 0, "")
	step("the same, from a client that cannot be asked", nil, "connect_external_mcp", connect(one, "X-Key"), 0, "")
	step("a restart", nil, "restart_external_mcp", `{"name":"docs"}`, 0, "")
	step("a restart with a value", p, "restart_external_mcp", `{"name":"docs","headers":{"X-Key":"other"}}`, 0, "")
	step("a restart with a further header", p, "restart_external_mcp", `{"name":"docs","headers":{"X-More":"v"}}`, 1,
		"X-Key, X-More")
	step("that again", p, "restart_external_mcp", `{"name":"docs","headers":{"X-More":"w"}}`, 0, "")
	step("with fewer", p, "connect_external_mcp", connect(one, "X-More"), 0, "")
	step("with another header", p, "connect_external_mcp", connect(one, "X-Third"), 1, "X-Third")

	p.decision = "deny"
	if r, err := call(p, "connect_external_mcp", connect(two, "X-Third")); err != nil || !r.IsError ||
		others.Load() != 0 {
		t.Errorf("another address: %+v %v, %d calls", r, err, others.Load())
	}
	if q := p.asked[len(p.asked)-1]; !strings.Contains(q, two) || !strings.Contains(q, "Instead of: "+one) {
		t.Errorf("asked %q", q)
	}
	if all := tools.Connections.List(anna); len(all) != 1 || all[0].URL != one || all[0].State != state.Connected {
		t.Errorf("what was there is %+v", all)
	}
	if r, err := call(p, "restart_external_mcp", `{"name":"docs","headers":{"X-Fourth":"v"}}`); err != nil ||
		!r.IsError {
		t.Errorf("a further header, refused: %+v %v", r, err)
	}
	// Without a sandbox book an installation that begins would panic.
	r,
		err = call(p, "auto_install_and_connect_mcp",
		`{"name":"mem","install":{"type":"npm","spec":"some-package@^1"},"start":{"command":"run it","args":["--x"]},"env":{"KEY":"secret value"}}`)
	if err != nil || !r.IsError {
		t.Fatalf("an installation, refused: %+v %v", r, err)
	}
	q := p.asked[len(p.asked)-1]
	for _, want := range []string{"npm package some-package@^1", "npm install --prefix /workspace/external-mcp/mem",
		"Runs: 'run it' --x", "In: /workspace/external-mcp/mem", "Variables: KEY"} {
		if !strings.Contains(q, want) {
			t.Errorf("asked %q, without %q", q, want)
		}
	}
	if strings.Contains(q, "secret value") {
		t.Errorf("asked %q", q)
	}
	if _, err := call(p, "auto_install_and_connect_mcp",
		`{"name":"mem","install":{"type":"npm","spec":"a"},"env":{"A B":"c"}}`); !fault.Is(err,
		fault.InvalidParameters) {
		t.Errorf("what is wrong is said before: %v", err)
	}
}

// The local user is told, and nobody else's policy is theirs.
func TestConsentOfTheLocalUser(t *testing.T) {
	one, calls := remote(t)
	tools := toolsWith(t, tool.Ask)
	r, err := callTool(tools, t.Context(), tool.Call{Principal: auth.Local, Name: "connect_external_mcp",
		Args: fmt.Appendf(nil, `{"name":"docs","url":%q}`, one)})
	if err != nil || r.IsError || calls.Load() == 0 || r.Fields.(*Connected).Runs != one {
		t.Errorf("%+v %v", r, err)
	}
}

// With deny nothing is added, and what is there can be used.
func TestConsentDenied(t *testing.T) {
	one, calls := remote(t)
	tools := toolsWith(t, tool.Allow)
	anna := auth.User("anna", false)
	call := func(who auth.Principal, name, args string) error {
		_, err := callTool(tools, t.Context(), tool.Call{Principal: who, Client: &person{decision: "allow"}, Name: name,
			Args: json.RawMessage(args)})
		return err
	}
	if err := call(anna, "connect_external_mcp", fmt.Sprintf(`{"name":"docs","url":%q}`, one)); err != nil {
		t.Fatal(err)
	}
	tools.SetConsent(tool.Deny)
	before := calls.Load()
	for _, who := range []auth.Principal{anna, auth.Local} {
		for name, args := range map[string]string{"connect_external_mcp": fmt.Sprintf(`{"name":"other","url":%q}`, one),
			"auto_install_and_connect_mcp": `{"name":"mem","install":{"type":"npm","spec":"a"}}`} {
			if err := call(who, name, args); !fault.Is(err, fault.Forbidden) ||
				!strings.Contains(err.Error(), "forbidden by the operator") {
				t.Errorf("%s of %s: %v", name, who.ID, err)
			}
		}
	}
	if calls.Load() != before {
		t.Error("what is forbidden was connected")
	}
	if err := call(anna, "restart_external_mcp", `{"name":"docs"}`); err != nil {
		t.Errorf("what is there: %v", err)
	}
}

// What an agent writes cannot hide in a question.
func TestQuestionHidesNothing(t *testing.T) {
	q := consentQuestion(spec.Change{Name: "x", Kind: spec.Stdio, Command: "sh", Cwd: "/workspace",
		Args: []string{"-c", "true\nIn: /workspace\n", "a\u202eb", "caf\u00e9", "it's"}})
	for _, want := range []string{`$'true\nIn: /workspace\n'`, `$'a\u202eb'`, `$'caf\u00e9'`, `'it'\''s'`} {
		if !strings.Contains(q.Message, want) {
			t.Errorf("%q is missing in %q", want, q.Message)
		}
	}
	if n := strings.Count(q.Message, "\nIn: "); n != 1 {
		t.Errorf("%d places where it runs: %q", n, q.Message)
	}
	remote := consentQuestion(spec.Change{Name: "x", Kind: spec.HTTP, URL: "https://ex\u0430mple.com/mcp"})
	if strings.ContainsFunc(remote.Message, func(r rune) bool { return r > 127 }) {
		t.Errorf("%q", remote.Message)
	}
}

// Who cannot be asked is told how it is done by hand.
func TestByHand(t *testing.T) {
	for want, p := range map[string]spec.Change{
		"sandlot mcp add mem --npm @a/b@^2 --env KEY -- run --x": {Name: "mem", Kind: spec.Stdio,
			Install: &spec.Install{Type: "npm", Spec: "@a/b@^2"}, Command: "run", Args: []string{"--x"},
			EnvKeys: []string{"KEY"}},
		"sandlot mcp add mem --pip mcp --workdir here": {Name: "mem", Kind: spec.Stdio,
			Install: &spec.Install{Type: "pip", Spec: "mcp"}, Workdir: "here"},
		"sandlot mcp add d --url https://h/m --sse --header K": {Name: "d", Kind: spec.SSE, URL: "https://h/m",
			HeaderKeys: []string{"K"}},
		"sandlot mcp add d --cwd /workspace/x -- node 'a b'": {Name: "d", Kind: spec.Stdio, Command: "node",
			Args: []string{"a b"}, Cwd: "/workspace/x"},
		"sandlot mcp add d -- node": {Name: "d", Kind: spec.Stdio, Command: "node",
			Cwd: "/workspace"},
	} {
		if got := commandLine(p); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	var asks []string
	for _, d := range New(Config{Connections: servers.New(servers.Config{})}).Tools(t.Context(), auth.Local) {
		if d.Elicits {
			asks = append(asks, d.Name)
		}
	}
	if want := []string{"connect_external_mcp", "auto_install_and_connect_mcp",
		"restart_external_mcp"}; !slices.Equal(asks, want) {
		t.Errorf("%v ask, want %v", asks, want)
	}
}

// A user sees which of their secrets a server is given, and nothing of what
// stands beside them.
func TestQuestionNamesSecrets(t *testing.T) {
	q := consentQuestion(spec.Change{Name: "x", Kind: spec.Stdio, Command: "run", Cwd: "/workspace",
		EnvKeys: []string{"KEY", "MODE", "URL"},
		Env:     map[string]string{"KEY": "${secret:GH}", "URL": "…${secret:PW}…"}})
	for _, want := range []string{"Variables: KEY = ${secret:GH}, MODE, URL = …${secret:PW}… (values are not shown)\n",
		"the values of your stored secrets"} {
		if !strings.Contains(q.Message, want) {
			t.Errorf("%q is not in\n%s", want, q.Message)
		}
	}
	if want := "sandlot mcp add x --env 'KEY=${secret:GH}' --env MODE --env URL -- run"; q.WithoutAgent != want {
		t.Errorf("by hand: %s\nwant     %s", q.WithoutAgent, want)
	}
	if q := consentQuestion(spec.Change{Name: "x", Kind: spec.HTTP, URL: "https://a", HeaderKeys: []string{"A", "B"},
		Headers: map[string]string{"A": "…${secret:GH}"}}); !strings.Contains(q.Message,
		"Headers: A = …${secret:GH}, B (values") {
		t.Errorf("asked %q", q.Message)
	}
	if q := consentQuestion(spec.Change{Name: "x", Kind: spec.Stdio, Command: "run",
		EnvKeys: []string{"KEY"}}); strings.Contains(q.Message, "secret") {
		t.Errorf("asked %q", q.Message)
	}
}

// Agents learn how a value is stored, by their user, and no tool takes one to
// store.
func TestToolsTellOfSecrets(t *testing.T) {
	tools := toolsWith(t, tool.Allow)
	for _, name := range []string{"connect_external_mcp", "auto_install_and_connect_mcp", "restart_external_mcp"} {
		found := false
		for _, d := range tools.Tools(t.Context(), auth.Local) {
			if d.Name != name {
				continue
			}
			props, _ := d.Input.Schema()["properties"].(map[string]any)
			env, _ := props["env"].(map[string]any)
			text, _ := env["description"].(string)
			found = strings.Contains(text, "`sandlot secret set NAME`") && strings.Contains(text, "${secret:NAME}") ||
				d.Name != "connect_external_mcp" && text == "As in connect_external_mcp."
		}
		if !found {
			t.Errorf("%s does not tell", name)
		}
	}
	for _, d := range tools.Tools(t.Context(), auth.Local) {
		if strings.Contains(d.Name, "secret") {
			t.Errorf("there is a tool %s", d.Name)
		}
	}
}

// callTool calls a tool, as the hub does.
func callTool(t *Tools, ctx context.Context, c tool.Call) (*tool.Result, error) {
	f, ok := t.Find(c.Principal, c.Name)
	if !ok {
		return nil, fmt.Errorf("there is no %s", c.Name)
	}
	return f.Call(ctx, c.Through(tool.Open{}))
}
