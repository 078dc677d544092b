package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/agent/command"
	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/tool"
	"sandlot/internal/vault"
)

// decider refuses all but what clients need to ask, and remembers of what it was asked.
type decider struct {
	mu    sync.Mutex
	open  bool // it allows everything
	asked map[policy.Operation][]policy.Resource
}

// decide is a policy.Decider, which refuses what the table of operations refuses, too.
func (e *decider) decide(q policy.Question) policy.Decision {
	if d := policy.Decide(q); d.Effect != policy.Allow || q.Principal.ID == "" {
		return d
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	noun, _, _ := strings.Cut(string(q.Operation), ".")
	if e.open || noun == "client" || noun == "tool" {
		return policy.Decision{Effect: policy.Allow}
	}
	e.asked[q.Operation] = append(e.asked[q.Operation], q.Resource)
	if q.Operation == policy.ResourceRead { // which implies file.read
		return policy.Decision{Effect: policy.Allow}
	}
	return policy.Decision{}
}

// take returns what the decider was asked since the last take.
func (e *decider) take(o policy.Operation) []policy.Resource {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.asked[o]
	e.asked = map[policy.Operation][]policy.Resource{}
	return all
}

// noConnections is a store of connections that keeps none.
type noConnections struct{}

func (noConnections) PutConnection(context.Context, servers.Record) error           { return nil }
func (noConnections) Connections(context.Context, string) ([]servers.Record, error) { return nil, nil }
func (noConnections) Connected(context.Context) ([][2]string, error)                { return nil, nil }
func (noConnections) RemoveConnection(context.Context, string, string) error        { return nil }

// docsServer starts an MCP server with one tool, one prompt and one resource.
func docsServer(t *testing.T) (address string) {
	results := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"completions":{},` +
			`"resources":{"subscribe":true}},"serverInfo":{"name":"docs","version":"1"}}`,
		"tools/list":               `{"tools":[{"name":"look","inputSchema":{"type":"object"}}]}`,
		"prompts/list":             `{"prompts":[{"name":"review"}]}`,
		"resources/list":           `{"resources":[{"uri":"docs:///a","name":"a"}]}`,
		"resources/templates/list": `{"resourceTemplates":[]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m) // a GET has no body
		if results[m.Method] == "" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, results[m.Method])
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// roads are an edge with Sandlot's own tools, and the ways to its operations.
type roads struct {
	*edge
	*decider
	t     *testing.T
	token string
	mcp   string // the id of a session of the stateful protocol
}

func newRoads(t *testing.T) *roads {
	r := &roads{decider: &decider{open: true}, t: t}
	connections := servers.New(servers.Config{Store: noConnections{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(connections.Close)
	r.edge = newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		tools := builtin.New(builtin.Config{Sessions: c.Sessions, Ports: c.Ports, Connections: connections,
			Snapshots: snapshot.New(snapshot.Config{})})
		t.Cleanup(tools.Close)
		c.Sources, c.Servers, c.Decide = []tool.Source{tools, connections}, connections, r.decide
		c.Vault = &vault.Vault{Store: &sealed{all: map[[2]string]vault.Record{}}, CreateKey: true,
			KeyFile: filepath.Join(t.TempDir(), "secrets.key")}
	})
	r.token = r.issue(auth.NewToken{User: "ann", Roles: []auth.Role{auth.Operator}})
	return r
}

// stateless sends a request of the stateless protocol.
func (r *roads) stateless(method, name, params string) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t",`+
		`"version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, method, params)
	do(r.Handler(), "POST", "/mcp", body, "Authorization", r.token, "Content-Type", "application/json", "Accept",
		"application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name",
		name)
}

// stateful sends a request of the stateful protocol, and returns the id of its session.
func (r *roads) stateful(method, params string) string {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, params)
	headers := []string{"Authorization", r.token, "Content-Type", "application/json", "Accept",
		"application/json, text/event-stream"}
	if r.mcp != "" {
		headers = append(headers, "Mcp-Session-Id", r.mcp)
	}
	return do(r.Handler(), "POST", "/mcp", body, headers...).Header.Get("Mcp-Session-Id")
}

// call calls a tool by each way there is.
func (r *roads) call(name, arguments string) map[string]func() {
	params := fmt.Sprintf(`"name":%q,"arguments":%s`, name, arguments)
	stateless := func() { r.stateless("tools/call", name, params) }
	return map[string]func(){
		"the API": func() {
			do(r.Handler(), "POST", "/v1/tools/"+name, arguments, "Authorization", r.token, "Content-Type",
				"application/json")
		},
		"a bare call": func() {
			do(r.Handler(), "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`}}`,
				"Authorization", r.token, "Content-Type", "application/json")
		},
		"the stateless protocol":                stateless,
		"the stateless protocol, for the cache": stateless,
		"the stateful protocol":                 func() { r.stateful("tools/call", params) },
	}
}

// http sends a request to a route.
func (r *roads) http(method, path, body string) func() {
	return func() {
		do(r.Handler(), method, path, body, "Authorization", r.token, "Content-Type", "application/json")
	}
}

// exec starts an interactive process, which needs a connection of its own.
func (r *roads) exec(id string) func() {
	return func() {
		s := httptest.NewServer(r.Handler())
		defer s.Close()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			r.t.Fatal(err)
		}
		defer c.Close()
		var start bytes.Buffer
		if err := (command.Command{Args: []string{"true"}}).Write(&start); err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /v1/sessions/%s/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n"+
			"Connection: Upgrade\r\nUpgrade: sandlot-exec\r\n\r\n%s", id, r.token, start.Bytes())
		_, _ = bytes.NewBuffer(nil).ReadFrom(c) // until the server closes it
	}
}

// Policy sees the same resource whichever way a client asks for an operation, and all tools say which it is.
func TestResourcesAreTheSameOnAllRoads(t *testing.T) {
	r := newRoads(t)
	who := auth.User("ann", false)
	r.mcp = r.stateful("initialize", `"protocolVersion":"2025-11-25","capabilities":{},`+
		`"clientInfo":{"name":"t","version":"1"}`)
	r.stateful("notifications/initialized", "")
	id := func(given string) string {
		l, err := r.Hub.Sessions.Open(t.Context(), who, session.OpenRequest{ID: given})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		return l.ID()
	}
	other, home := id("new"), id("home")
	connected := do(r.Handler(), "POST", "/v1/tools/connect_external_mcp", `{"name":"docs","url":"`+docsServer(t)+`"}`,
		"Authorization", r.token, "Content-Type", "application/json")
	docsID, _ := connected.json()["connectionId"].(string)
	features := r.Hub.External(t.Context(), who)
	if docsID == "" || len(features.Tools) != 1 || len(features.Prompts) != 1 || len(features.Resources) != 1 {
		t.Fatalf("docs: %s, %+v", connected.body, features)
	}
	r.decider.open = false
	inSession := func(id string) policy.Resource { return policy.Resource{Kind: "session", ID: id, Owner: who.ID} }
	docs := policy.Resource{Kind: "connection", ID: "docs", Owner: who.ID}
	with := func(calls map[string]func(), more map[string]func()) map[string]func() {
		for name, f := range more {
			calls[name] = f
		}
		return calls
	}
	s := func(more string) string { return fmt.Sprintf(`{"session_id":%q%s}`, other, more) }
	at := func(id, rest string) string { return "/v1/sessions/" + id + rest }
	prompt, uri := features.Prompts[0].Key, features.Resources[0].Key
	type road = map[string]func()
	tried := map[string]bool{}
	for i, c := range []struct {
		tool, arguments string
		more            road
		operation       policy.Operation
		want            policy.Resource
	}{
		{"execute_code", s(`,"code":"1"`), nil, policy.CodeExecute, inSession(other)},
		{"execute_code", `{"code":"1"}`, nil, policy.CodeExecute, inSession(home)},
		{"execute_command", s(`,"command":"true"`), road{"exec": r.exec(other)}, policy.ShellExecute, inSession(other)},
		{"execute_command", `{"command":"true"}`, road{"exec": r.exec("home")}, policy.ShellExecute, inSession(home)},
		{"execute_command", `{"command":"true","session_id":"home"}`, nil, policy.ShellExecute, inSession(home)},
		{"execute_command", `{"command":"true","session_id":"new"}`, nil, policy.ShellExecute, inSession("new")},
		{"sandbox_shell_exec", `{"command":"true"}`, nil, policy.ShellExecute, inSession(home)},
		{"sandbox_read_file", s(`,"path":"/f"`), road{"a download": r.http("GET", at(other, "/files/f"), ""),
			"a resource": func() {
				uri := "sandlot://sessions/" + other + "/files/f"
				r.stateless("resources/read", uri, fmt.Sprintf(`"uri":%q`, uri))
			}}, policy.FileRead, inSession(other)},
		{"sandbox_read_file", `{"path":"/f"}`, road{"a download": r.http("GET", at("home", "/files/f"), "")},
			policy.FileRead, inSession(home)},
		{"sandbox_write_file", s(`,"path":"/f","content":""`),
			road{"an upload": r.http("PUT", at(other, "/files/f"), "")}, policy.FileWrite, inSession(other)},
		{"sandbox_edit_file", s(`,"path":"/f","edits":[{"old_text":"a","new_text":"b"}]`), nil, policy.FileWrite,
			inSession(other)},
		{"sandbox_list_files", s(``), nil, policy.FileList, inSession(other)},
		{"", "", road{"a removal": r.http("DELETE", at(other, "/files/f"), "")}, policy.FileRemove, inSession(other)},
		{"list_processes", s(``), nil, policy.ProcessList, inSession(other)},
		{"read_process", `{"process_id":"` + other + `.1"}`, nil, policy.ProcessRead, inSession(other)},
		{"write_process", `{"process_id":"` + other + `.1","data":"x"}`, nil, policy.ProcessWrite, inSession(other)},
		{"stop_process", `{"process_id":"` + other + `.1"}`, nil, policy.ProcessStop, inSession(other)},
		{"expose_port", s(`,"port":80,"wait":0`), nil, policy.PortExpose, inSession(other)},
		{"close_port", `{"port":80}`, nil, policy.PortClose, inSession(home)},
		{"", "", road{"a port": r.http("POST", at(other, "/ports/80"), "")}, policy.PortDial, inSession(other)},
		{"get_sessions", s(``), road{"a session": r.http("GET", at(other, ""), "")}, policy.SessionList,
			inSession(other)},
		{"get_sessions", `{}`, road{"a list": r.http("GET", "/v1/sessions", "")}, policy.SessionList,
			policy.Resource{}},
		{"stop_session", s(``), road{"an end": r.http("DELETE", at(other, ""), "")}, policy.SessionStop,
			inSession(other)},
		{"stop_session", `{"session_id":"home"}`, road{"an end": r.http("DELETE", at("home", ""), "")},
			policy.SessionStop, inSession(home)},
		{"stop_session", s(`,"pause":true`), nil, policy.SessionStop, inSession(other)},
		{"resume_session", s(``), road{"a resume": r.http("POST", at(other, "/resume"), "")}, policy.SessionResume,
			inSession(other)},
		{"", "", road{"a pause": r.http("POST", at(other, "/pause"), "")}, policy.SessionPause, inSession(other)},
		{"", "", road{"a change": r.http("PATCH", at(other, ""), `{"name":"x"}`)}, policy.SessionChange, inSession(other)},
		{"fork_session", s(``), road{"a fork": r.http("POST", at(other, "/fork"), "")}, policy.SessionFork,
			inSession(other)},
		{"snapshot_session", s(``), road{"a snapshot": r.http("POST", at(other, "/snapshots"), "")},
			policy.SnapshotCreate, inSession(other)},
		{"list_snapshots", `{}`, road{"a list": r.http("GET", "/v1/snapshots", "")}, policy.SnapshotList,
			policy.Resource{}},
		{"restore_snapshot", s(`,"name":"x"`), road{"a restore": r.http("POST", "/v1/snapshots/x/restore", s(``))},
			policy.SnapshotRestore, inSession(other)},
		{"remove_snapshot", `{"name":"x"}`, road{"a removal": r.http("DELETE", "/v1/snapshots/x", "")},
			policy.SnapshotRemove, policy.Resource{}},
		{"", "", road{"a network": r.http("GET", at(other, "/network"), ""),
			"the home's": r.http("GET", at(other, "/network"), "")}, policy.NetworkRead, inSession(other)},
		{"", "", road{"a change": r.http("PATCH", at(other, "/network"), "{}")}, policy.NetworkChange,
			inSession(other)},
		{"get_volume_path", `{}`, nil, policy.VolumeList, policy.Resource{}},
		{"connect_external_mcp", `{"name":"docs","command":"x"}`, nil, policy.MCPConnect, docs},
		{"auto_install_and_connect_mcp", `{"name":"docs","install":{"type":"npm","spec":"x"}}`, nil,
			policy.MCPInstall, docs},
		{"list_external_mcp", `{}`, road{"a list": r.http("GET", "/v1/connections", "")}, policy.MCPList,
			policy.Resource{}},
		{"disconnect_external_mcp", `{"name":"docs"}`, nil, policy.MCPDisconnect, docs},
		{"disconnect_external_mcp", `{"connectionId":"` + docsID + `"}`, nil, policy.MCPDisconnect, docs},
		{"restart_external_mcp", `{"name":"docs"}`, nil, policy.MCPRestart, docs},
		{"restart_external_mcp", `{"connectionId":"` + docsID + `"}`, nil, policy.MCPRestart, docs},
		{"external_mcp_logs", `{"connectionId":"` + docsID + `"}`, nil, policy.MCPLogs, docs},
		{features.Tools[0].Name, `{}`, nil, policy.MCPCall, docs},
		{"", "", road{"by name": r.http("GET", "/v1/connections/docs", ""),
			"by id": r.http("GET", "/v1/connections/"+docsID, "")}, policy.MCPInspect, docs},
		{"", "", road{"by name": r.http("POST", "/v1/connections/docs/approve", ""),
			"by id": r.http("POST", "/v1/connections/"+docsID+"/approve", "")}, policy.MCPApprove, docs},
		{"", "", road{"a prompt": r.http("POST", "/v1/connections/"+docsID+"/prompt", `{"name":"review"}`),
			"over MCP": func() { r.stateless("prompts/get", prompt, fmt.Sprintf(`"name":%q`, prompt)) }},
			policy.PromptGet, docs},
		{"", "", road{"a resource": r.http("POST", "/v1/connections/docs/read", `{"uri":"docs:///a"}`),
			"over MCP": func() { r.stateless("resources/read", uri, fmt.Sprintf(`"uri":%q`, uri)) }},
			policy.ResourceRead, docs},
		{"", "", road{"a subscription": func() { r.stateful("resources/subscribe", fmt.Sprintf(`"uri":%q`, uri)) }},
			policy.ResourceSubscribe, docs},
		{"", "", road{"a completion": func() {
			r.stateful("completion/complete", fmt.Sprintf(`"ref":{"type":"ref/prompt","name":%q},"argument":{`+
				`"name":"a","value":"b"}`, prompt))
		}}, policy.CompletionComplete, docs},
		{"", "", road{"a secret": r.http("PUT", "/v1/secrets/KEY", "x")}, policy.SecretSet,
			policy.Resource{Kind: "secret", ID: "KEY", Owner: who.ID}},
		{"", "", road{"a secret": r.http("DELETE", "/v1/secrets/KEY", "")}, policy.SecretRemove,
			policy.Resource{Kind: "secret", ID: "KEY", Owner: who.ID}},
		{"", "", road{"a template": r.http("POST", "/v1/templates/host/build", "")}, policy.TemplateBuild,
			policy.Resource{Kind: "template", ID: "host"}},
		{"", "", road{"a question": r.http("POST", "/v1/questions/q_1", `{"answer":"no"}`)}, policy.QuestionAnswer,
			policy.Resource{Kind: "question", ID: "q_1"}},
		{"", "", road{"a quota": r.http("GET", "/v1/quota", "")}, policy.QuotaRead,
			policy.Resource{Kind: "quota", ID: who.ID, Owner: who.ID}},
	} {
		all := c.more
		if c.tool != "" {
			tried[c.tool] = true
			all = with(r.call(c.tool, c.arguments), c.more)
		}
		r.take("")
		for name, send := range all {
			send()
			if got := r.take(c.operation); len(got) == 0 || slices.ContainsFunc(got, func(g policy.Resource) bool {
				return g != c.want
			}) {
				t.Errorf("case %d: %s %s by %s: policy sees %+v, want %+v", i, c.operation, c.arguments, name, got,
					c.want)
			}
		}
	}
	for _, d := range r.Hub.Tools(t.Context(), who) {
		if d.Alias == "" && !tried[d.Name] {
			t.Errorf("this test does not try the tool %s", d.Name)
		}
	}
}
