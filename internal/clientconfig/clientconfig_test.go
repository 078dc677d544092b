package clientconfig

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

var server = Server{Name: "sandlot", URL: "http://localhost:8000/mcp", Program: "/opt/sandlot/bin/sandlot",
	Args: []string{"stdio"}}

func with(token string) Server {
	s := server
	s.Token = token
	return s
}

func mustFind(t *testing.T, id string) Client {
	t.Helper()
	c, err := Find(id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every client's own form, with and without a token, and with a variable.
func TestForms(t *testing.T) {
	for _, tt := range []struct{ id, bare, token, variable string }{
		{"claude-code", `{"mcpServers":{"sandlot":{"type":"http","url":"U"}}}`,
			`{"mcpServers":{"sandlot":{"type":"http","url":"U","headers":{"Authorization":"Bearer T"}}}}`,
			"Bearer ${TOK}"},
		{"cursor", `{"mcpServers":{"sandlot":{"url":"U"}}}`,
			`{"mcpServers":{"sandlot":{"url":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${env:TOK}"},
		{"vscode", `{"servers":{"sandlot":{"type":"http","url":"U"}}}`,
			`{"servers":{"sandlot":{"type":"http","url":"U","headers":{"Authorization":"Bearer T"}}}}`,
			"Bearer ${env:TOK}"},
		{"crush", `{"mcp":{"sandlot":{"type":"http","url":"U","timeout":60}}}`,
			`{"mcp":{"sandlot":{"type":"http","url":"U","headers":{"Authorization":"Bearer T"},"timeout":60}}}`,
			"Bearer $TOK"},
		{"kiro", `{"mcpServers":{"sandlot":{"url":"U"}}}`,
			`{"mcpServers":{"sandlot":{"url":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${TOK}"},
		{"windsurf", `{"mcpServers":{"sandlot":{"serverUrl":"U"}}}`,
			`{"mcpServers":{"sandlot":{"serverUrl":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${env:TOK}"},
		{"gemini", `{"mcpServers":{"sandlot":{"httpUrl":"U"}}}`,
			`{"mcpServers":{"sandlot":{"httpUrl":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${TOK}"},
		{"codex", `{"mcp_servers":{"sandlot":{"url":"U","startup_timeout_sec":60,"tool_timeout_sec":330}}}`,
			`{"mcp_servers":{"sandlot":{"url":"U","http_headers":{"Authorization":"Bearer T"},"startup_timeout_sec":60,"tool_timeout_sec":330}}}`,
			`bearer_token_env_var = "TOK"`},
		{"opencode", `{"mcp":{"sandlot":{"type":"remote","url":"U","enabled":true,"timeout":330000}}}`,
			`{"mcp":{"sandlot":{"type":"remote","url":"U","headers":{"Authorization":"Bearer T"},"enabled":true,"timeout":330000}}}`,
			"Bearer {env:TOK}"},
		{"copilot", `{"mcpServers":{"sandlot":{"type":"http","url":"U","tools":["*"]}}}`,
			`{"mcpServers":{"sandlot":{"type":"http","url":"U","headers":{"Authorization":"Bearer T"},"tools":["*"]}}}`,
			"Bearer ${TOK}"},
		{"cline", `{"mcpServers":{"sandlot":{"transport":{"type":"streamableHttp","url":"U"},"timeout":330}}}`,
			`{"mcpServers":{"sandlot":{"transport":{"type":"streamableHttp","url":"U","headers":{"Authorization":"Bearer T"}},"timeout":330}}}`,
			""},
		{"qwen", `{"mcpServers":{"sandlot":{"httpUrl":"U"}}}`,
			`{"mcpServers":{"sandlot":{"httpUrl":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${TOK}"},
		{"continue",
			`{"mcpServers":[{"name":"sandlot","type":"streamable-http","url":"U","connectionTimeout":330000}]}`,
			`{"mcpServers":[{"name":"sandlot","type":"streamable-http","url":"U","requestOptions":{"headers":{"Authorization":"Bearer T"}},"connectionTimeout":330000}]}`,
			"Authorization: Bearer ${{ secrets.TOK }}"},
		{"zed", `{"context_servers":{"sandlot":{"url":"U","timeout":330}}}`,
			`{"context_servers":{"sandlot":{"url":"U","headers":{"Authorization":"Bearer T"},"timeout":330}}}`, ""},
		{"goose", `{"extensions":{"sandlot":{"type":"streamable_http","name":"sandlot","uri":"U",D,"enabled":true,"timeout":330}}}`,
			`{"extensions":{"sandlot":{"type":"streamable_http","name":"sandlot","uri":"U","headers":{"Authorization":"Bearer T"},D,"enabled":true,"timeout":330}}}`,
			"Authorization: Bearer ${TOK}"},
		{"lm-studio", `{"mcpServers":{"sandlot":{"url":"U"}}}`,
			`{"mcpServers":{"sandlot":{"url":"U","headers":{"Authorization":"Bearer T"}}}}`, ""},
		{"roo", `{"mcpServers":{"sandlot":{"type":"streamable-http","url":"U","timeout":330}}}`,
			`{"mcpServers":{"sandlot":{"type":"streamable-http","url":"U","headers":{"Authorization":"Bearer T"},"timeout":330}}}`,
			"Bearer ${env:TOK}"},
		{"jetbrains",
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000"}}}}`,
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000","SANDLOT_TOKEN":"T"}}}}`, ""},
		{"claude-desktop",
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000"}}}}`,
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000","SANDLOT_TOKEN":"T"}}}}`, ""},
	} {
		c := mustFind(t, tt.id)
		fill := strings.NewReplacer(`"U"`, `"`+server.URL+`"`, "Bearer T", "Bearer slt_x", `"T"`, `"slt_x"`,
			`,D,`, `,"description":"A computer for code, commands and files",`)
		for want, s := range map[string]Server{fill.Replace(tt.bare): server, fill.Replace(tt.token): with("slt_x")} {
			got, _ := json.Marshal(c.Config(s))
			if string(got) != want {
				t.Errorf("%s: %s, want %s", tt.id, got, want)
			}
		}
		s := server
		s.TokenEnv = "TOK"
		err := c.Check(&s)
		if tt.variable == "" {
			if err == nil || !strings.Contains(err.Error(), "puts no variables") {
				t.Errorf("%s: %v", tt.id, err)
			}
			continue
		}
		wanted := `"Authorization": "` + tt.variable + `"`
		if c.syntax != jsonc {
			wanted = tt.variable
		}
		if err != nil || !strings.Contains(c.Snippet(s), wanted) {
			t.Errorf("%s: %v, %s, want %s", tt.id, err, c.Snippet(s), tt.variable)
		}
	}
	for _, c := range All() { // without a URL, each starts the program
		const plain = `"command":"/p","args":["stdio"]`
		body := map[string]string{"claude-code": `"type":"stdio",` + plain, "vscode": `"type":"stdio",` + plain,
			"crush": `"type":"stdio",` + plain + `,"timeout":60`, "codex": plain + `,"startup_timeout_sec":60,"tool_timeout_sec":330`,
			"opencode": `"type":"local","command":["/p","stdio"],"enabled":true,"timeout":330000`,
			"copilot":  `"type":"local",` + plain + `,"tools":["*"]`,
			"cline":    `"transport":{"type":"stdio",` + plain + `},"timeout":330`, "zed": plain + `,"timeout":330`,
			"roo": `"type":"stdio",` + plain + `,"timeout":330`,
			"goose": `"type":"stdio","name":"a","cmd":"/p","args":["stdio"],"description":"A computer for code, ` +
				`commands and files","enabled":true,"timeout":330`}[c.ID]
		section := map[string]string{"vscode": "servers", "crush": "mcp", "codex": "mcp_servers", "opencode": "mcp",
			"zed": "context_servers", "goose": "extensions"}[c.ID]
		got, _ := json.Marshal(c.Config(Server{Name: "a", Program: "/p", Args: []string{"stdio"}}))
		want := `{"` + cmp.Or(section, "mcpServers") + `":{"a":{` + cmp.Or(body, plain) + `}}}`
		if c.ID == "continue" {
			want = `{"mcpServers":[{"name":"a","type":"stdio",` + plain + `,"connectionTimeout":330000}]}`
		}
		if string(got) != want {
			t.Errorf("%s: %s, want %s", c.ID, got, want)
		}
	}
	if len(All()) != 19 || !mustFind(t, "claude-desktop").StdioOnly() || mustFind(t, "cursor").StdioOnly() {
		t.Error("19 clients, of which Claude Desktop starts programs alone")
	}
	if s := (Server{Name: "a", Program: "/p", Args: []string{"stdio", "--state-dir", "/x"}}); mustFind(t,
		"claude-desktop").Snippet(s) != "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"/p\",\n      "+
		"\"args\": [\n        \"stdio\",\n        \"--state-dir\",\n        \"/x\"\n      ]\n    }\n  }\n}" {
		t.Error(mustFind(t, "claude-desktop").Snippet(s))
	}
}

func TestCommands(t *testing.T) {
	variable := server
	variable.TokenEnv, variable.Token = "TOK", "${TOK}"
	for _, tt := range []struct {
		id   string
		s    Server
		want string
	}{
		{"claude-code", server, "claude mcp add --scope user --transport http sandlot http://localhost:8000/mcp"},
		{"claude-code", with("YOUR_TOKEN"),
			`claude mcp add --scope user --transport http sandlot http://localhost:8000/mcp --header "Authorization: Bearer YOUR_TOKEN"`},
		{"claude-code", variable,
			`claude mcp add --scope user --transport http sandlot http://localhost:8000/mcp --header 'Authorization: Bearer ${TOK}'`},
		{"claude-code", with("a'b$(id)"),
			`claude mcp add --scope user --transport http sandlot http://localhost:8000/mcp --header 'Authorization: Bearer a'\''b$(id)'`},
		{"gemini", with("YOUR_TOKEN"),
			`gemini mcp add --scope user --transport http --header "Authorization: Bearer YOUR_TOKEN" sandlot http://localhost:8000/mcp`},
		{"codex", server, "codex mcp add sandlot --url http://localhost:8000/mcp"},
		{"codex", variable, "codex mcp add sandlot --url http://localhost:8000/mcp --bearer-token-env-var TOK"},
		{"codex", with("YOUR_TOKEN"), ""},
		{"cursor", server, ""},
	} {
		if got := mustFind(t, tt.id).Command(tt.s); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.id, got, tt.want)
		}
	}
}

func TestFiles(t *testing.T) {
	none := func(string) string { return "" }
	windows := func(name string) string {
		return map[string]string{"APPDATA": `C:\Users\me\AppData\Roaming`,
			"USERPROFILE": `C:\Users\me`}[name]
	}
	for id, want := range map[string][3]string{
		"claude-desktop": {"/h/.config/Claude/claude_desktop_config.json",
			"/h/Library/Application Support/Claude/claude_desktop_config.json",
			`C:\Users\me\AppData\Roaming\Claude\claude_desktop_config.json`},
		"claude-code": {"/h/.claude.json", "/h/.claude.json", `C:\Users\me\.claude.json`},
		"cursor":      {"/h/.cursor/mcp.json", "/h/.cursor/mcp.json", `C:\Users\me\.cursor\mcp.json`},
		"vscode": {"/h/.config/Code/User/mcp.json", "/h/Library/Application Support/Code/User/mcp.json",
			`C:\Users\me\AppData\Roaming\Code\User\mcp.json`},
		"crush": {"/h/.config/crush/crush.json", "/h/.config/crush/crush.json",
			`C:\Users\me\.config\crush\crush.json`},
		"kiro": {"/h/.kiro/settings/mcp.json", "/h/.kiro/settings/mcp.json",
			`C:\Users\me\.kiro\settings\mcp.json`},
		"windsurf": {"/h/.codeium/windsurf/mcp_config.json", "/h/.codeium/windsurf/mcp_config.json",
			`C:\Users\me\.codeium\windsurf\mcp_config.json`},
		"gemini": {"/h/.gemini/settings.json", "/h/.gemini/settings.json", `C:\Users\me\.gemini\settings.json`},
		"codex":  {"/h/.codex/config.toml", "/h/.codex/config.toml", `C:\Users\me\.codex\config.toml`},
		"opencode": {"/h/.config/opencode/opencode.json", "/h/.config/opencode/opencode.json",
			`C:\Users\me\.config\opencode\opencode.json`},
		"copilot": {"/h/.copilot/mcp-config.json", "/h/.copilot/mcp-config.json",
			`C:\Users\me\.copilot\mcp-config.json`},
		"cline": {"/h/.cline/data/settings/cline_mcp_settings.json", "/h/.cline/data/settings/cline_mcp_settings.json",
			`C:\Users\me\.cline\data\settings\cline_mcp_settings.json`},
		"qwen":     {"/h/.qwen/settings.json", "/h/.qwen/settings.json", `C:\Users\me\.qwen\settings.json`},
		"continue": {"/h/.continue/config.yaml", "/h/.continue/config.yaml", `C:\Users\me\.continue\config.yaml`},
		"zed": {"/h/.config/zed/settings.json", "/h/.config/zed/settings.json",
			`C:\Users\me\AppData\Roaming\Zed\settings.json`},
		"goose": {"/h/.config/goose/config.yaml", "/h/.config/goose/config.yaml",
			`C:\Users\me\AppData\Roaming\Block\goose\config\config.yaml`},
		"lm-studio": {"/h/.lmstudio/mcp.json", "/h/.lmstudio/mcp.json", `C:\Users\me\.lmstudio\mcp.json`},
		"roo": {"/h/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
			"/h/Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
			`C:\Users\me\AppData\Roaming\Code\User\globalStorage\rooveterinaryinc.roo-cline\settings\mcp_settings.json`},
		"jetbrains": {"/h/.junie/mcp/mcp.json", "/h/.junie/mcp/mcp.json", `C:\Users\me\.junie\mcp\mcp.json`},
	} {
		c := mustFind(t, id)
		linux, err1 := c.File("linux", "/h", none)
		mac, err2 := c.File("darwin", "/h", none)
		win, err3 := c.File("windows", "", windows)
		if got := [3]string{linux, mac, win}; got != want || err1 != nil || err2 != nil || err3 != nil {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
		if f := c.Files(); len(f) != 3 || strings.Contains(f["linux"], "$") || !strings.HasPrefix(f["macos"], "~/") ||
			!strings.HasPrefix(f["windows"], "%") {
			t.Errorf("%s: %q", id, f)
		}
	}
	crushHome := ""
	set := func(name string) string {
		return map[string]string{"XDG_CONFIG_HOME": "/x", "CLAUDE_CONFIG_DIR": "/y", "CODEX_HOME": "/z",
			"COPILOT_HOME": "/c", "CRUSH_GLOBAL_CONFIG": crushHome}[name]
	}
	for id, want := range map[string]string{"crush": "/x/crush/crush.json", "claude-code": "/y/.claude.json",
		"cursor": "/h/.cursor/mcp.json", "codex": "/z/config.toml", "copilot": "/c/mcp-config.json",
		"goose": "/x/goose/config.yaml"} {
		if got, err := mustFind(t, id).File("linux", "/h", set); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", id, got, err, want)
		}
	}
	crushHome = "/d"
	if got, err := mustFind(t, "crush").File("linux", "/h", set); got != "/d/crush.json" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := mustFind(t, "cursor").File("linux", "", none); err == nil {
		t.Error("no home folder, and no error")
	}
}

func TestFind(t *testing.T) {
	for id, says := range map[string]string{"curser": `did you mean "cursor"?`,
		"emacs": "claude-desktop, claude-code, cursor, vscode, crush, kiro, windsurf, gemini", "": "no client"} {
		_, err := Find(id)
		if !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want that it says %q", id, err, says)
		}
	}
	if !reflect.DeepEqual(IDs(), []string{"claude-desktop", "claude-code", "cursor", "vscode", "crush", "kiro",
		"windsurf", "gemini", "codex", "opencode", "copilot", "cline", "qwen", "continue", "zed", "goose", "lm-studio",
		"roo", "jetbrains"}) {
		t.Error(IDs())
	}
}

func TestCheck(t *testing.T) {
	c := mustFind(t, "cursor")
	for _, tt := range []struct {
		change func(*Server)
		says   string
	}{
		{func(*Server) {}, ""},
		{func(s *Server) { s.URL = "" }, ""},
		{func(s *Server) { s.Name = "" }, "name"},
		{func(s *Server) { s.Name = "a.b" }, "name"},
		{func(s *Server) { s.Name = strings.Repeat("a", 33) }, "name"},
		{func(s *Server) { s.URL = "localhost:8000" }, "URL"},
		{func(s *Server) { s.URL = "ftp://x/" }, "URL"},
		{func(s *Server) { s.URL = "http://me:pw@x/" }, "URL"},
		{func(s *Server) { s.URL = "http://x/?token=y" }, "URL"},
		{func(s *Server) { s.Token = "a b" }, "token"},
		{func(s *Server) { s.Token = "a\nb" }, "token"},
		{func(s *Server) { s.TokenEnv = "A-B" }, "variable"},
		{func(s *Server) { s.TokenEnv, s.Token = "A", "b" }, "not both"},
	} {
		s := server
		tt.change(&s)
		err := c.Check(&s)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want that it says %q", s, err, tt.says)
		}
	}
}
