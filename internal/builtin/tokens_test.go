package builtin

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/image"
	"sandlot/internal/registry"
	"sandlot/internal/revision/schematest"
	"sandlot/internal/tool"
	"sandlot/test/tokens"
)

// All definitions are in each conversation of a model, which pays for them: those here, and three for finding tools of
// third-party servers, have 2,720 tokens together.
func TestDefinitionsAreShort(t *testing.T) {
	const most = 2720 - 350
	tools := New(Config{Connections: toolsWith(t, tool.Allow).Connections, Registries: new(registry.Registries), Timeout: 5 * time.Minute,
		MaxTimeout: 5 * time.Minute, Flavors: []image.Flavor{{Name: "small"}, {Name: "medium"}, {Name: "large"}},
		Templates: func() []*image.Template {
			return []*image.Template{{Name: "host", Languages: []image.Language{{Name: "python"}, {Name: "node"},
				{Name: "typescript"}, {Name: "bash"}, {Name: "sh"}}}}
		}})
	sum, listed := 0, 0
	for _, d := range tools.current.Load().connected() { // the longer texts
		if d.Alias != "" {
			continue
		}
		for _, version := range schematest.Revisions {
			if err := schematest.Validate(version, "Tool", rpc.Definition(d)); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		}
		var shown map[string]json.RawMessage // to models, which get no titles and annotations of clients
		if err := json.Unmarshal(rpc.Definition(d), &shown); err != nil {
			t.Fatal(err)
		}
		delete(shown, "title")
		delete(shown, "annotations")
		b, _ := json.Marshal(shown)
		n := tokens.Count(string(b))
		sum, listed = sum+n, listed+1
		t.Logf("%-30s %d", d.Name, n)
		if len(strings.Split(strings.TrimSuffix(d.Description, "."), ". ")) > 4 {
			t.Errorf("%s: %q has more than four sentences", d.Name, d.Description)
		}
		if first, _, _ := strings.Cut(d.Description, ". "); len([]rune(first)) > 160 { // some clients show models no more
			t.Errorf("%s: the first sentence has %d characters: %q", d.Name, len([]rune(first)), first)
		}
	}
	if first, _, _ := strings.Cut(tools.current.Load().connected()[0].Description, "; see /run"); len(first) > 160 ||
		!strings.Contains(first, "mcp_tools") { // some clients show models no more
		t.Errorf("%d characters: %s", len(first), first)
	}
	if listed < 28 || sum > most {
		t.Errorf("%d definitions have %d tokens, and may have %d", listed, sum, most)
	}
}

// Who has third-party servers is told that code can call them. The list for nobody in particular starts none.
func TestCodeCallsServers(t *testing.T) {
	tools := New(Config{Connected: func(_ context.Context, p auth.Principal) bool {
		if p.ID == "" {
			t.Error("nobody is asked for")
		}
		return p.ID == "ann"
	}})
	for id, want := range map[string]bool{"ann": true, "bob": false, "": false} {
		for _, d := range tools.Tools(t.Context(), auth.Principal{ID: id}) {
			if got := strings.Contains(d.Description, "/run/mcp/README.md"); got != (want && d.Name == "execute_code") {
				t.Errorf("%q, %s: %q", id, d.Name, d.Description)
			}
		}
	}
}

// What models are not told of is accepted, and the HTTP API's document has it.
func TestHiddenArgumentsWork(t *testing.T) {
	tools := toolsWith(t, tool.Allow)
	for name, args := range map[string]string{
		"execute_code": `{"code":"1","template":"python","idempotency_key":"k","env":{"A":"1"}}`,
		"execute_command": `{"command":"ls","args":["-l"],"cwd":"/tmp","template":"python","flavor":"small",` +
			`"idempotency_key":"k"}`,
		"sandbox_read_file":            `{"path":"x","encoding":"base64","limit":5}`,
		"sandbox_write_file":           `{"path":"x","content":"","encoding":"base64","offset":5,"mode":"0644"}`,
		"sandbox_list_files":           `{"limit":5}`,
		"read_process":                 `{"process_id":"a.1","max_bytes":5}`,
		"get_sessions":                 `{"session_id":"a"}`,
		"sandbox_shell_exec":           `{"command":"ls","cwd":"/tmp","timeoutMs":5}`,
		"connect_external_mcp":         `{"name":"x","command":"y","cwd":"/tmp","transport":"stdio"}`,
		"auto_install_and_connect_mcp": `{"name":"x","install":{"type":"npm","spec":"y"},"workdir":"z"}`,
		"disconnect_external_mcp":      `{"connectionId":"x"}`,
		"restart_external_mcp":         `{"connectionId":"x","headers":{"A":"b"}}`,
		"external_mcp_logs":            `{"connectionId":"x","lines":5}`,
	} {
		var given map[string]any
		if err := json.Unmarshal([]byte(args), &given); err != nil {
			t.Fatal(err)
		}
		d := tools.current.Load().byName[name]()
		all := d.Input.Schema()["properties"].(map[string]any)
		shown := d.Input.Shown()["properties"].(map[string]any)
		hidden := 0
		for a := range given {
			if all[a] == nil {
				t.Errorf("%s: the document does not have %s", name, a)
			}
			if shown[a] == nil {
				hidden++
			}
		}
		if hidden == 0 {
			t.Errorf("%s: %s: models are told of all", name, args)
		}
		f, _ := tools.Find(auth.Local, name)
		c := tool.Call{Principal: auth.Local, Name: name, Args: json.RawMessage(args)}
		if _, err := f.Detail(c); err != nil {
			t.Errorf("%s: %s: %v", name, args, err)
		}
	}
}
