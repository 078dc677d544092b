package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"sandlot/internal/connection"
)

// Each client's file, as people have them.
func TestClientFiles(t *testing.T) {
	const claudeDesktop = `{
	"globalShortcut": "",
	"mcpServers": {
		"filesystem": {
			"command": "npx",
			"args": ["-y", "@modelcontextprotocol/server-filesystem", "C:\\Users\\me\\Desktop"],
			"env": {"NOTE": "a \"quoted\" \u00e9 \ud83d\ude00 $HOME \/"}
		}
	}
}`
	const claudeCode = `{"mcpServers": {
  "api-server": {"type": "http", "url": "${API_BASE_URL:-https://api.example.com}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Empty": "${EMPTY:-}"}, "timeout": 600000},
  "db": {"command": "uvx", "args": ["mcp-server", "--dsn", "${ODD}"], "env": {"A": "${TOKEN:-none}", "KEEP": "$TOKEN"}, "oauth": {"clientId": "id", "callbackPort": 8080}}
}}`
	const cursor = "\xef\xbb\xbf" + `{"mcpServers": {
  "remote": {"url": "http://localhost:3000/mcp", "headers": {"API_KEY": "${env:TOKEN}"}}, // as in its documents
  "local": {"type": "stdio", "command": "python", "args": ["mcp-server.py"], "env": {"API_KEY": "${env:UNSET}"}},
}}`
	const code = `{
	// made by the editor
	"inputs": [{"type": "promptString", "id": "key", "password": true}],
	"servers": {
		"github": {"url": "https://api.example.com/mcp/", "type": "http", "gallery": true, "version": "1.0"},
		"play": {"type": "stdio", "command": "npx", "args": ["-y", "@x/play@latest"], "env": {"K": "${env:TOKEN}"}, "cwd": "/srv"}, /* trailing */
	},
}`
	const crushJSON = `{
  "$schema": "https://charm.land/crush.json",
  "lsp": {"go": {"command": "gopls", "bogus": 1}},
  "mcp": {
    "filesystem": {"type": "stdio", "command": "node", "args": ["/path/to/mcp-server.js"], "timeout": 120, "disabled": false, "disabled_tools": ["x"], "env": {"NODE_ENV": "production"}},
    "github": {"type": "http", "url": "https://api.example.com/mcp/", "timeout": 120, "headers": {"Authorization": "Bearer $(printf %s \"$TOKEN\")", "X-None": "$UNSET"}, "sessionless": true},
    "streaming": {"type": "sse", "url": "https://example.com/mcp/sse", "headers": {"API-Key": "${TOKEN:?set it}"}}
  }
}`
	const windsurf = `{"mcpServers": {"far": {"serverUrl": "https://example.com/mcp", "disabled": true, "disabledTools": ["a"]}}}`
	const gemini = `{"theme": "GitHub", "mcpServers": {"far": {"httpUrl": "https://example.com/mcp", "timeout": 30000, "trust": true, "includeTools": ["a"], "excludeTools": ["b"]}}}`
	const settings = `{"editor.tabSize": 2, "mcp": {"inputs": [], "servers": {"x": {"command": "x"}}}}`
	far := connection.Configured{Name: "far", Kind: "http", URL: "https://example.com/mcp", Where: "sandbox"}
	with := func(c connection.Configured, f func(*connection.Configured)) connection.Configured { f(&c); return c }
	for _, tt := range []struct {
		name, file string
		want       []connection.Configured
		note       string
	}{
		{"Claude Desktop", claudeDesktop, []connection.Configured{{Name: "filesystem", Kind: "stdio", Command: "npx",
			Args: []string{"-y", "@modelcontextprotocol/server-filesystem", `C:\Users\me\Desktop`}, Env: vars{"NOTE": `a "quoted" é 😀 $HOME /`}}}, ""},
		{"Claude Code", claudeCode, []connection.Configured{
			{Name: "api-server", Kind: "http", URL: "https://api.example.com/mcp", Headers: vars{"Authorization": "Bearer s3cret"}, Timeout: 10 * time.Minute},
			{Name: "db", Kind: "stdio", Command: "uvx", Args: []string{"mcp-server", "--dsn", mcpEnv["ODD"]}, Env: vars{"A": "s3cret", "KEEP": "$TOKEN"}, OAuth: connection.OAuth{ClientID: "id"}}}, ""},
		{"Cursor", cursor, []connection.Configured{
			{Name: "local", Kind: "stdio", Command: "python", Args: []string{"mcp-server.py"}, Env: vars{"API_KEY": ""}},
			{Name: "remote", Kind: "http", URL: "http://localhost:3000/mcp", Headers: vars{"API_KEY": "s3cret"}}}, ""},
		{"VS Code", code, []connection.Configured{
			{Name: "github", Kind: "http", URL: "https://api.example.com/mcp/"},
			{Name: "play", Kind: "stdio", Command: "npx", Args: []string{"-y", "@x/play@latest"}, Env: vars{"K": "s3cret"}}}, "cwd"},
		{"VS Code's settings", settings, []connection.Configured{{Name: "x", Kind: "stdio", Command: "x"}}, ""},
		{"Crush", crushJSON, []connection.Configured{
			{Name: "filesystem", Kind: "stdio", Command: "node", Args: []string{"/path/to/mcp-server.js"}, Timeout: 2 * time.Minute, DisabledTools: []string{"x"}, Env: vars{"NODE_ENV": "production"}},
			{Name: "github", Kind: "http", URL: "https://api.example.com/mcp/", Timeout: 2 * time.Minute, Headers: vars{"Authorization": "Bearer s3cret"}},
			{Name: "streaming", Kind: "sse", URL: "https://example.com/mcp/sse", Headers: vars{"API-Key": "s3cret"}}}, ""},
		{"Windsurf", windsurf, []connection.Configured{with(far, func(c *connection.Configured) { c.URL, c.Disabled, c.DisabledTools = "", true, []string{"a"} })}, ""},
		{"Gemini", gemini, []connection.Configured{with(far, func(c *connection.Configured) {
			c.Timeout, c.EnabledTools, c.DisabledTools = 30*time.Second, []string{"a"}, []string{"b"}
		})}, ""},
		{"none", `{"mcpServers": {}}`, nil, ""},
		{"none either", `{"mcp": null}`, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, notes := servers(t, "", map[string]string{"file.json": tt.file})
			if len(list) != len(tt.want) {
				t.Fatalf("%+v, %q", list, notes)
			}
			for i, got := range list {
				got.From, tt.want[i].Where = "", "sandbox"
				if !reflect.DeepEqual(got, tt.want[i]) {
					t.Errorf("got  %+v\nwant %+v", got, tt.want[i])
				}
			}
			if tt.note == "" && len(notes) > 0 || tt.note != "" && (len(notes) != 1 || !strings.Contains(notes[0], tt.note)) {
				t.Errorf("notes %q, want one of %q", notes, tt.note)
			}
		})
	}
}

func TestBrokenClientServers(t *testing.T) {
	for _, tt := range []struct{ file, says string }{
		{`{"servers": {"x": {"command": "x", "env": {"K": "${input:key}"}}}}`, "${input:key} is something that the editor asks"},
		{`{"mcpServers": {"x": {"command": "x", "env": {"K": "${input:key}"}}}}`, "env K: ${input:key}"},
		{`{"servers": {"x": {"command": "${workspaceFolder}/x"}}}`, "command: ${workspaceFolder} is known to the editor alone"},
		{`{"servers": {"x": {"command": "${userHome}/x"}}}`, "known to the editor alone"},
		{`{"servers": {"x": {"command": "${config:a.b}"}}}`, "known to the editor alone"},
		{`{"servers": {"x": {"command": "x", "args": ["${TOKEN}"]}}}`, "args 1: ${TOKEN}: a variable is written ${env:TOKEN}"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["a", "${UNSET}"]}}}`, "args 2: the variable UNSET is not set"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${A:-${TOKEN}}"]}}}`, "no } of its own"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${TOKEN"]}}}`, "no } of its own"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${a b}"]}}}`, "not one that is known"},
		{`{"mcpServers": {"x": {"command": "x", "envFile": ".env"}}}`, "envFile is not supported"},
		{`{"mcpServers": {"x": {"url": "http://x/", "headersHelper": "x.sh"}}}`, "headersHelper is not supported"},
		{`{"mcpServers": {"x": {"type": "ws", "url": "ws://x/"}}}`, "stdio, http, sse"},
		{`{"mcpServers": {"x": "y"}}`, "section with command or url"},
		{`{"mcpServers": {"x": {"command": "x", "args": {"a": 1}}}}`, "args: it must be a list"},
		{`{"mcp": {"x": {"type": "stdio"}}}`, "command: type stdio needs one"},
	} {
		list, _ := servers(t, "", map[string]string{"file.json": tt.file})
		if len(list) != 1 || list[0].Name != "x" || !strings.Contains(list[0].Broken, tt.says) {
			t.Errorf("%s: %+v, want that it says %q", tt.file, list, tt.says)
		}
	}
}

func TestBrokenClientFiles(t *testing.T) {
	for _, tt := range []struct{ file, says string }{
		{"", "not JSON"},
		{"[]", "not a JSON object"},
		{"{", "not JSON: look at line 1, column 2"},
		{`{"mcpServers": {}} trailing`, "not JSON: look at line 1"},
		{"{\"mcpServers\": {\"x\": {\"env\": {\n  \"KEY\": s3cret}}}}", "not JSON: look at line 2"},
		{"{}", "neither mcpServers"},
		{`{"mcpServers": []}`, "not an object of names"},
		{`{"mcp": 7}`, "not an object of names"},
	} {
		list, notes := servers(t, "mcp: {ok: {command: x}}", map[string]string{"file.json": tt.file})
		if len(list) != 1 || len(notes) != 1 || !strings.Contains(notes[0], tt.says) || !strings.Contains(notes[0], "file.json") || strings.Contains(notes[0], "\n") {
			t.Errorf("%q: %+v, %q, want one note that says %q", tt.file, list, notes, tt.says)
		}
	}
}

// A file that came from somewhere does not say that its programs run on the
// machine itself: its keys of that name are not read.
func TestClientFilesSayNotWhere(t *testing.T) {
	for _, file := range []string{`{"mcpServers": {"x": {"command": "x", "where": "host", "prefix": "", "trust": "warn"}}}`, `{"mcp": {"x": {"command": "x", "where": "host", "prefix": "", "trust": "warn"}}}`} {
		list, _ := servers(t, "", map[string]string{"file.json": file})
		if len(list) != 1 || list[0].Where != connection.InSandbox || list[0].Prefix != nil || list[0].Trust != "" {
			t.Errorf("%s: %+v", file, list)
		}
	}
}

// A misspelled key of crush.json is told of.
func TestUnknownCrushKey(t *testing.T) {
	list, notes := servers(t, "", map[string]string{"crush.json": `{"mcp": {"x": {"command": "x", "disabeld": true}}}`})
	if len(list) != 1 || len(notes) != 1 || !strings.Contains(notes[0], `did you mean "disabled"?`) {
		t.Errorf("%+v, %q", list, notes)
	}
}

func TestClientFileIsNoFile(t *testing.T) {
	c, err := load(t, "", vars{"SANDLOT_MCP_FILES": t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list, notes := c.Servers(t.Context()); len(list) != 0 || len(notes) != 1 || !strings.Contains(notes[0], "directory") {
		t.Errorf("%v, %q", list, notes)
	}
}
