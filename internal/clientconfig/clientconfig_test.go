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
		{"crush", `{"mcp":{"sandlot":{"type":"http","url":"U"}}}`,
			`{"mcp":{"sandlot":{"type":"http","url":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer $TOK"},
		{"kiro", `{"mcpServers":{"sandlot":{"url":"U"}}}`,
			`{"mcpServers":{"sandlot":{"url":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${TOK}"},
		{"windsurf", `{"mcpServers":{"sandlot":{"serverUrl":"U"}}}`,
			`{"mcpServers":{"sandlot":{"serverUrl":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${env:TOK}"},
		{"gemini", `{"mcpServers":{"sandlot":{"httpUrl":"U"}}}`,
			`{"mcpServers":{"sandlot":{"httpUrl":"U","headers":{"Authorization":"Bearer T"}}}}`, "Bearer ${TOK}"},
		{"claude-desktop",
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000"}}}}`,
			`{"mcpServers":{"sandlot":{"command":"/opt/sandlot/bin/sandlot","args":["stdio"],"env":{"SANDLOT_SERVER":"http://localhost:8000","SANDLOT_TOKEN":"T"}}}}`, ""},
	} {
		c := mustFind(t, tt.id)
		fill := strings.NewReplacer(`"U"`, `"`+server.URL+`"`, "Bearer T", "Bearer slt_x", `"T"`, `"slt_x"`)
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
		if err != nil || !strings.Contains(c.Snippet(s), `"Authorization": "`+tt.variable+`"`) {
			t.Errorf("%s: %v, %s, want %s", tt.id, err, c.Snippet(s), tt.variable)
		}
	}
	for _, c := range All() { // without a URL, each starts the program
		kind := map[string]string{"claude-code": `"type":"stdio",`, "vscode": `"type":"stdio",`,
			"crush": `"type":"stdio",`}[c.ID]
		section := map[string]string{"vscode": "servers", "crush": "mcp"}[c.ID]
		got, _ := json.Marshal(c.Config(Server{Name: "a", Program: "/p", Args: []string{"stdio"}}))
		want := `{"` + cmp.Or(section, "mcpServers") + `":{"a":{` + kind + `"command":"/p","args":["stdio"]}}}`
		if string(got) != want {
			t.Errorf("%s: %s, want %s", c.ID, got, want)
		}
	}
	if len(All()) != 8 || !mustFind(t, "claude-desktop").StdioOnly() || mustFind(t, "cursor").StdioOnly() {
		t.Error("8 clients, of which Claude Desktop alone starts programs")
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
		return map[string]string{"APPDATA": `C:\Users\me\AppData\Roaming`, "LOCALAPPDATA": `C:\Users\me\AppData\Local`,
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
			`C:\Users\me\AppData\Local\crush\crush.json`},
		"kiro": {"/h/.kiro/settings/mcp.json", "/h/.kiro/settings/mcp.json",
			`C:\Users\me\.kiro\settings\mcp.json`},
		"windsurf": {"/h/.codeium/windsurf/mcp_config.json", "/h/.codeium/windsurf/mcp_config.json",
			`C:\Users\me\.codeium\windsurf\mcp_config.json`},
		"gemini": {"/h/.gemini/settings.json", "/h/.gemini/settings.json", `C:\Users\me\.gemini\settings.json`},
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
	set := func(name string) string {
		return map[string]string{"XDG_CONFIG_HOME": "/x", "CLAUDE_CONFIG_DIR": "/y"}[name]
	}
	for id, want := range map[string]string{"crush": "/x/crush/crush.json", "claude-code": "/y/.claude.json",
		"cursor": "/h/.cursor/mcp.json"} {
		if got, err := mustFind(t, id).File("linux", "/h", set); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", id, got, err, want)
		}
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
		"windsurf", "gemini"}) {
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
