package hub

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/tool"
)

// noConnections is a store without connections, which keeps none.
type noConnections struct{}

func (noConnections) PutConnection(context.Context, servers.Record) error           { return nil }
func (noConnections) Connections(context.Context, string) ([]servers.Record, error) { return nil, nil }
func (noConnections) Connected(context.Context) ([][2]string, error)                { return nil, nil }
func (noConnections) RemoveConnection(context.Context, string, string) error        { return nil }

// A restart with other values is what a rule about connecting is about, too.
func TestRestartWithValuesConnects(t *testing.T) {
	h := askingHub(t)
	connections := servers.New(servers.Config{Store: noConnections{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(connections.Close)
	h = New(Config{Rules: h.Rules, Questions: h.Questions,
		QuestionTimeout: func() time.Duration { return time.Millisecond }, Events: event.New(),
		Sources: []tool.Source{builtin.New(builtin.Config{Connections: connections})}})
	address := serverstest.Empty(t, nil)
	call := func(p auth.Principal, name, arguments string) error {
		_, err := h.Call(t.Context(), tool.Call{Principal: p, Name: name, Args: []byte(arguments)})
		return err
	}
	if err := call(ann, "connect_external_mcp", fmt.Sprintf(`{"name":"docs","url":%q}`, address)); err != nil {
		t.Fatal(err)
	}
	const plain, withHeader = `{"name":"docs"}`, `{"name":"docs","headers":{"X-Mode":"1"}}`
	const withAnother = `{"name":"docs","headers":{"X-Other":"1"}}`
	for _, c := range []struct {
		rules, arguments string
		want             bool
	}{
		{"", withHeader, true},
		{"deny * mcp.connect docs *", plain, true}, // it runs as it did before
		{"deny * mcp.connect docs *", withHeader, false},
		{"deny * mcp.connect * " + address, withHeader, false},
		{"deny * mcp.connect other *", withHeader, true},
		{"deny * mcp.install", withHeader, true},
		{"ask * mcp.connect", withHeader, true}, // it has that header already
		{"ask * mcp.connect", withAnother, false},
	} {
		h.Rules.Set(rulesOf(t, c.rules))
		err := call(ann, "restart_external_mcp", c.arguments)
		if (err == nil) != c.want || err != nil && !fault.Is(err, fault.Forbidden) {
			t.Errorf("%q: a restart with %s: %v", c.rules, c.arguments, err)
		}
	}
	narrow := ann
	narrow.Scope = auth.NewScope("mcp.restart")
	h.Rules.Set(nil)
	if err := call(narrow, "restart_external_mcp", plain); err != nil {
		t.Error(err)
	}
	if err := call(narrow, "restart_external_mcp", withHeader); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a token that may not connect restarts with other values: %v", err)
	}
}

// rulesOf compiles one rule; empty: none.
func rulesOf(t *testing.T, text string) *policy.Rules {
	t.Helper()
	if text == "" {
		return nil
	}
	r, err := policy.ParseRule(text, "rules:1")
	if err != nil {
		t.Fatal(err)
	}
	return policy.Compile([]policy.Rule{r})
}

// To read a server's log is an event, with its beginning and its end.
func TestFollowedLogIsAnEvent(t *testing.T) {
	connections := servers.New(servers.Config{Store: noConnections{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(connections.Close)
	h := New(Config{Servers: connections, Events: event.New(),
		Sources: []tool.Source{builtin.New(builtin.Config{Connections: connections})}})
	arguments := fmt.Sprintf(`{"name":"docs","url":%q}`, serverstest.Empty(t, nil))
	connect := tool.Call{Principal: ann, Name: "connect_external_mcp", Args: []byte(arguments)}
	if _, err := h.Call(t.Context(), connect); err != nil {
		t.Fatal(err)
	}
	events := h.Events.Subscribe(event.Filter{Principal: ann.ID}, h.Events.Newest())
	defer events.Close()
	l, err := h.FollowServerLog(t.Context(), ann, "docs", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := h.FollowServerLog(t.Context(), ann, "none", ""); err == nil {
		t.Error("there is a log of no server")
	}
	got, _, _ := events.Read()
	var outcomes []string
	for _, e := range got {
		if e.Kind == event.Call && e.Operation == string(policy.MCPLogs) {
			outcomes = append(outcomes, e.Outcome)
		}
	}
	if want := "[started ok NOT_FOUND]"; fmt.Sprint(outcomes) != want {
		t.Errorf("the events are %v, want %s", outcomes, want)
	}
}

// TestVariablesOfServers: a rule that allows a command or a package allows it with no variable that makes another server
// of it, and a rule that denies one denies it with any.
func TestVariablesOfServers(t *testing.T) {
	h := askingHub(t)
	connections := servers.New(servers.Config{Store: noConnections{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(connections.Close)
	h = New(Config{Rules: h.Rules, Questions: h.Questions, Events: event.New(),
		Sources: []tool.Source{builtin.New(builtin.Config{Connections: connections})}})
	var rules []policy.Rule
	for _, text := range []string{"allow * mcp.connect * npx @mcp/*", "deny * mcp.connect", "deny ann mcp.install * npm:evil",
		"allow bob mcp.install * npm:@mcp/*", "deny bob mcp.install"} {
		r, err := policy.ParseRule(text, "rules:1")
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	h.Rules.Set(policy.Compile(rules))
	for _, name := range []string{"NODE_OPTIONS", "npm_config_registry", "LD_PRELOAD", "PATH", "HTTPS_PROXY"} {
		for _, c := range []struct {
			p               auth.Principal
			name, arguments string
		}{
			{ann, "connect_external_mcp", `{"name":"docs","command":"npx","args":["@mcp/docs"],"env":{%q:"x"}}`},
			{ann, "auto_install_and_connect_mcp", `{"name":"docs","install":{"type":"npm","spec":"evil@1"},"env":{%q:"x"}}`},
			{auth.User("bob", false), "auto_install_and_connect_mcp",
				`{"name":"docs","install":{"type":"npm","spec":"@mcp/docs"},"env":{%q:"x"}}`},
		} {
			arguments := fmt.Sprintf(c.arguments, name)
			_, err := h.Call(t.Context(), tool.Call{Principal: c.p, Name: c.name, Args: []byte(arguments)})
			if !fault.Is(err, fault.Forbidden) {
				t.Errorf("%s %s: %v", c.name, arguments, err)
			}
		}
	}
}
