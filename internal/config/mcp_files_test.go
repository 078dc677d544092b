package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/spec"
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
    "github": {"type": "http", "url": "https://api.example.com/mcp/", "timeout": 120, "headers": {"Authorization": "Bearer $TOKEN", "X-None": "$UNSET"}, "sessionless": true},
    "streaming": {"type": "sse", "url": "https://example.com/mcp/sse", "headers": {"API-Key": "${TOKEN:?set it}"}}
  }
}`
	const windsurf = `{"mcpServers": {"far": {"serverUrl": "https://example.com/mcp", "disabled": true, "disabledTools": ["a"]}}}`
	const gemini = `{"theme": "GitHub", "mcpServers": {"far": {"httpUrl": "https://example.com/mcp", "timeout": 30000, "trust": true, "includeTools": ["a"], "excludeTools": ["b"]}}}`
	const settings = `{"editor.tabSize": 2, "mcp": {"inputs": [], "servers": {"x": {"command": "x"}}}}`
	far := spec.Configured{Name: "far", Kind: "http", URL: "https://example.com/mcp", Where: "sandbox"}
	with := func(c spec.Configured, f func(*spec.Configured)) spec.Configured { f(&c); return c }
	for _, tt := range []struct {
		name, file string
		want       []spec.Configured
		note       string
	}{
		{"Claude Desktop", claudeDesktop, []spec.Configured{{Name: "filesystem", Kind: "stdio", Command: "npx",
			Args: []string{"-y", "@modelcontextprotocol/server-filesystem", `C:\Users\me\Desktop`},
			Env:  vars{"NOTE": `a "quoted" é 😀 $HOME /`}}}, ""},
		{"Claude Code", claudeCode, []spec.Configured{
			{Name: "api-server", Kind: "http", URL: "https://api.example.com/mcp",
				Headers: vars{"Authorization": "Bearer s3cret"}, Timeout: 10 * time.Minute},
			{Name: "db", Kind: "stdio", Command: "uvx", Args: []string{"mcp-server", "--dsn", mcpEnv["ODD"]},
				Env: vars{"A": "s3cret", "KEEP": "$TOKEN"}, OAuth: spec.OAuth{ClientID: "id"}}}, ""},
		{"Cursor", cursor, []spec.Configured{
			{Name: "local", Kind: "stdio", Command: "python", Args: []string{"mcp-server.py"},
				Env: vars{"API_KEY": ""}},
			{Name: "remote", Kind: "http", URL: "http://localhost:3000/mcp", Headers: vars{"API_KEY": "s3cret"}}}, ""},
		{"VS Code", code, []spec.Configured{
			{Name: "github", Kind: "http", URL: "https://api.example.com/mcp/"},
			{Name: "play", Kind: "stdio", Command: "npx", Args: []string{"-y", "@x/play@latest"},
				Env: vars{"K": "s3cret"}}}, "cwd"},
		{"VS Code's settings", settings, []spec.Configured{{Name: "x", Kind: "stdio", Command: "x"}}, ""},
		{"Crush", crushJSON, []spec.Configured{
			{Name: "filesystem", Kind: "stdio", Command: "node", Args: []string{"/path/to/mcp-server.js"},
				Timeout: 2 * time.Minute, DisabledTools: []string{"x"}, Env: vars{"NODE_ENV": "production"}},
			{Name: "github", Kind: "http", URL: "https://api.example.com/mcp/", Timeout: 2 * time.Minute,
				Headers: vars{"Authorization": "Bearer s3cret"}},
			{Name: "streaming", Kind: "sse", URL: "https://example.com/mcp/sse", Headers: vars{"API-Key": "s3cret"}}},
			""},
		{"Windsurf", windsurf, []spec.Configured{with(far, func(c *spec.Configured) {
			c.URL, c.Disabled,
				c.DisabledTools = "", true, []string{"a"}
		})}, ""},
		{"Gemini", gemini, []spec.Configured{with(far, func(c *spec.Configured) {
			c.Timeout, c.EnabledTools, c.DisabledTools = 30*time.Second, []string{"a"}, []string{"b"}
		})}, ""},
		{"none", `{"mcpServers": {}}`, nil, ""},
		{"none either", `{"mcp": null}`, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, notes := readServers(t, "", map[string]string{"file.json": tt.file})
			if len(list) != len(tt.want) {
				t.Fatalf("%+v, %q", list, notes)
			}
			for i, got := range list {
				got.Source, tt.want[i].Where = "", "sandbox"
				if !reflect.DeepEqual(got, tt.want[i]) {
					t.Errorf("got  %+v\nwant %+v", got, tt.want[i])
				}
			}
			if tt.note == "" && len(notes) > 0 || tt.note != "" && (len(notes) != 1 ||
				!strings.Contains(notes[0], tt.note)) {
				t.Errorf("notes %q, want one of %q", notes, tt.note)
			}
		})
	}
}

func TestBrokenClientServers(t *testing.T) {
	for _, tt := range []struct{ file, says string }{
		{`{"servers": {"x": {"command": "x", "env": {"K": "${input:key}"}}}}`,
			"${input:key} is something that the editor asks"},
		{`{"mcpServers": {"x": {"command": "x", "env": {"K": "${input:key}"}}}}`, "env K: ${input:key}"},
		{`{"servers": {"x": {"command": "${workspaceFolder}/x"}}}`,
			"command: only the editor knows ${workspaceFolder}"},
		{`{"servers": {"x": {"command": "${userHome}/x"}}}`, "only the editor knows"},
		{`{"servers": {"x": {"command": "${config:a.b}"}}}`, "only the editor knows"},
		{`{"servers": {"x": {"command": "x", "args": ["${TOKEN}"]}}}`,
			"args 1: ${TOKEN}: a variable is written ${env:TOKEN}"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["a", "${UNSET}"]}}}`, "args 2: the variable UNSET is not set"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${A:-${TOKEN}}"]}}}`, "no matching }"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${TOKEN"]}}}`, "no matching }"},
		{`{"mcpServers": {"x": {"command": "x", "args": ["${a b}"]}}}`, "has a form that is not supported"},
		{`{"mcpServers": {"x": {"command": "x", "envFile": ".env"}}}`, "envFile is not supported"},
		{`{"mcpServers": {"x": {"url": "http://x/", "headersHelper": "x.sh"}}}`, "headersHelper is not supported"},
		{`{"mcpServers": {"x": {"type": "ws", "url": "ws://x/"}}}`, "stdio, http, sse"},
		{`{"mcpServers": {"x": "y"}}`, "section with command or url"},
		{`{"mcpServers": {"x": {"command": "x", "args": {"a": 1}}}}`, "args: it must be a list"},
		{`{"mcp": {"x": {"type": "stdio"}}}`, "command: type stdio needs one"},
	} {
		list, _ := readServers(t, "", map[string]string{"file.json": tt.file})
		if len(list) != 1 || list[0].Name != "x" || !strings.Contains(list[0].Invalid, tt.says) {
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
		list, notes := readServers(t, "mcp: {ok: {command: x}}", map[string]string{"file.json": tt.file})
		if len(list) != 1 || len(notes) != 1 || !strings.Contains(notes[0], tt.says) ||
			!strings.Contains(notes[0], "file.json") || strings.Contains(notes[0], "\n") {
			t.Errorf("%q: %+v, %q, want one note that says %q", tt.file, list, notes, tt.says)
		}
	}
}

// A file that came from somewhere does not say that its programs run on the
// machine itself: its keys of that name are not read.
func TestClientFilesSayNotWhere(t *testing.T) {
	for _, file := range []string{`{"mcpServers": {"x": {"command": "x", "where": "host", "prefix": "", "trust": "warn"}}}`, `{"mcp": {"x": {"command": "x", "where": "host", "prefix": "", "trust": "warn"}}}`} {
		list, _ := readServers(t, "", map[string]string{"file.json": file})
		if len(list) != 1 || list[0].Where != spec.InSandbox || list[0].Prefix != nil || list[0].Trust != "" {
			t.Errorf("%s: %+v", file, list)
		}
	}
}

// A misspelled key of crush.json is told of.
func TestUnknownCrushKey(t *testing.T) {
	list, notes := readServers(t, "",
		map[string]string{"crush.json": `{"mcp": {"x": {"command": "x", "disabeld": true}}}`})
	if len(list) != 1 || len(notes) != 1 || !strings.Contains(notes[0], `did you mean "disabled"?`) {
		t.Errorf("%+v, %q", list, notes)
	}
}

// A client's file runs nothing on the machine, whatever form its keys have, and
// learns no variable that is not listed for it.
func TestClientFilesRunNothing(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	command := "$(touch " + ran + "; echo true)"
	for _, text := range []string{command, "${TOKEN:-" + command + "}", "${UNSET:-a" + command + "}", "${UNSET:+" +
		command + "}", "${UNSET:?" + command + "}", "`touch " + ran + "`", "$((1))", "<(touch " + ran + ")"} {
		for name, keys := range map[string]map[string]any{"command": {"command": text},
			"args": {"command": "x", "args": []string{text}},
			"env":  {"command": "x", "env": map[string]string{"A": text}},
			"url":  {"url": "https://example.com/" + text}, "headers": {"url": "https://example.com/",
				"headers": map[string]string{"A": text}}, "oauth": {"url": "https://example.com/",
				"oauth_client_id": text}} {
			file, err := json.Marshal(map[string]any{"mcp": map[string]any{"x": keys}})
			if err != nil {
				t.Fatal(err)
			}
			list, _ := readServers(t, "", map[string]string{"mcp.json": string(file)})
			if _, err := os.Stat(ran); err == nil {
				t.Fatalf("%s of %q ran a program", name, text)
			}
			if strings.Contains(text, "$(") &&
				(len(list) != 1 || !strings.Contains(list[0].Invalid, "only sandlot.yaml may") &&
					!strings.Contains(list[0].Invalid, "not known")) {
				t.Errorf("%s of %q: %+v", name, text, list)
			}
		}
	}
}

// Where the operator says so, crush.json runs commands as sandlot.yaml does, if nobody else can write it. The forms of
// other clients have no commands.
func TestClientFilesRunWhatIsAllowed(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	command := "$(echo x >> " + ran + "; echo ${SECRET}out)"
	servers := func(file, text string, mode os.FileMode) ([]spec.Configured, []string) {
		t.Helper()
		path := filepath.Join(dir, "mcp.json")
		err := errors.Join(os.WriteFile(path, []byte(file), 0o600), os.Chmod(path, mode), os.RemoveAll(ran))
		if err != nil {
			t.Fatal(err)
		}
		c, err := load(t, text, vars{"PATH": os.Getenv("PATH"), "SECRET": "s3cret", "SANDLOT_MCP_FILES": path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Servers(t.Context(), auth.ParseID)
	}
	const allowed = "mcp_files_commands: true\n"
	crush := `{"mcp": {"x": {"url": "https://example.com/", "headers": {"A": "Bearer ` + command + `"}}}}`
	list, notes := servers(crush, allowed, 0o600)
	if len(list) != 1 || list[0].Headers["A"] != "Bearer s3cretout" || len(notes) > 0 {
		t.Errorf("%+v %q", list, notes)
	}
	for name, tt := range map[string]struct {
		file, settings string
		mode           os.FileMode
		want           string // in the reason or the notes
	}{
		"not allowed":       {crush, "", 0o600, "mcp_files_commands: true"},
		"denied":            {crush, "mcp_files_commands: false\n", 0o600, "mcp_files_commands: true"},
		"writable to all":   {crush, allowed, 0o666, "chmod go-w"},
		"writable to group": {crush, allowed, 0o620, ""}, // the group may have no member but its user
		"disabled":          {strings.Replace(crush, `"url"`, `"disabled": true, "url"`, 1), allowed, 0o600, ""},
		"a variable":        {strings.Replace(crush, "Bearer ", "$SECRET", 1), allowed, 0o600, "mcp_files_env"},
	} {
		list, notes := servers(tt.file, tt.settings, tt.mode)
		said := fmt.Sprint(notes)
		for _, s := range list {
			said += s.Invalid
		}
		if _, err := os.Stat(ran); err == nil && tt.want != "" || !strings.Contains(said, tt.want) {
			t.Errorf("%s: %+v %q, ran: %v", name, list, notes, err == nil)
		}
	}
	list, _ = servers(`{"mcpServers": {"x": {"command": "x", "args": ["`+command+`"]}}}`, allowed, 0o600)
	if _, err := os.Stat(ran); err == nil || len(list) != 1 || list[0].Invalid != "" && list[0].Args != nil {
		t.Errorf("another client's form: %+v, ran: %v", list, err == nil)
	}
}

// The folder of a server in a sandbox is the sandbox's, in each place where it may stand; of a program on the machine
// and of a remote server it is this process's.
func TestFolderOfServers(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	user := ""
	if os.Getuid() == 0 {
		user = ", user: root"
	}
	text := `
mcp:
  inside: {command: "$(pwd)/x", args: ["$(pwd):/data", "$PWD"], env: {ROOT: "${NONE:-$(pwd)}"}}
  outside: {command: "$(pwd)/x", where: host` + user + `}
  remote: {url: "https://example.com$(pwd)"}
`
	list, notes := readServers(t, text, map[string]string{
		"crush.json": `{"mcp": {"crush": {"command": "fs", "args": ["$(pwd)", "${PWD}"]}}}`})
	if len(list) != 4 || len(notes) > 0 {
		t.Fatalf("%+v %q", list, notes)
	}
	for _, s := range list {
		got := s.Command + " " + strings.Join(s.Args, " ") + s.Env["ROOT"] + s.URL + s.Invalid
		want := map[string]string{"inside": "/workspace/x /workspace:/data /workspace/workspace",
			"outside": here + "/x ", "remote": " https://example.com" + here, "crush": "fs /workspace /workspace"}[s.Name]
		if got != want {
			t.Errorf("%s: %q, want %q", s.Name, got, want)
		}
	}
}

func TestClientFilesLearnWhatIsListed(t *testing.T) {
	for _, tt := range []struct{ file, text string }{
		{"mcp", "$SECRET"}, {"mcp", "${SECRET:-none}"}, {"mcp", "${UNSET:-$SECRET}"}, {"mcp", "${SECRET:+a}"},
		{"mcp", "${TOKEN:+$SECRET}"},
		{"mcpServers", "${SECRET}"}, {"mcpServers", "${SECRET:-none}"}, {"mcpServers", "${env:SECRET}"},
		{"servers", "${env:SECRET}"},
	} {
		for _, listed := range []bool{false, true} {
			file := filepath.Join(t.TempDir(), "mcp.json")
			text := fmt.Sprintf(`{%q: {"x": {"url": "https://example.com/?%s"}}}`, tt.file, tt.text)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			env := vars{"SECRET": "s3cret", "TOKEN": "t", "SANDLOT_MCP_FILES": file,
				"SANDLOT_MCP_FILES_ENV": "TOKEN,UNSET"}
			if listed {
				env["SANDLOT_MCP_FILES_ENV"] += ", SECRET"
			}
			c, err := load(t, "", env, nil)
			if err != nil {
				t.Fatal(err)
			}
			list, _ := c.Servers(t.Context(), auth.ParseID)
			says := "SECRET is not given to files of MCP clients; the operator can list it in mcp_files_env"
			if len(list) != 1 || strings.Contains(list[0].Invalid, says) == listed ||
				(list[0].Invalid == "") != listed ||
				!listed && strings.Contains(fmt.Sprint(list), "s3cret") {
				t.Errorf("%s %s, listed %v: %+v", tt.file, tt.text, listed, list)
			}
		}
	}
	if _, err := load(t, "mcp_files_env: [A-B]\n", nil, nil); err == nil || !strings.Contains(err.Error(), "A-B") {
		t.Errorf("a name that is none: %v", err)
	}
}

// A client's file that sandboxes or others can write is not read, at the start and
// at a change; what it said when it was the operator's alone holds.
func TestClientFilesOfOthers(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mcp.json")
	write := func(name string, mode os.FileMode) {
		t.Helper()
		err := os.WriteFile(file, []byte(`{"mcpServers": {"`+name+`": {"command": "x"}}}`), 0o600)
		if err := errors.Join(err, os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(c *Config, want, note string) {
		t.Helper()
		list, notes := c.Servers(t.Context(), auth.ParseID)
		got := ""
		for _, s := range list {
			got += s.Name
		}
		if got != want || (note == "") != (len(notes) == 0) ||
			note != "" && (len(notes) != 1 || !strings.Contains(notes[0], note)) {
			t.Errorf("%q, %q; want %q, %q", got, notes, want, note)
		}
	}
	settings := func(volumes string) *Config {
		t.Helper()
		c, err := load(t, "", vars{"SANDLOT_MCP_FILES": file, "SANDLOT_VOLUMES": volumes}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	write("evil", 0o666)
	first := settings("")
	read(first, "", "no server is taken from it")
	write("good", 0o600)
	read(first, "good", "")
	write("evil", 0o602)
	read(first, "good", "chmod go-w")
	next := settings("")
	next.Inherit(first, nil)
	read(next, "good", "its last valid content holds")
	write("evil", 0o600)
	shared := settings(dir + ":/data")
	read(shared, "", "add :ro to the volume")
	read(settings(dir+":/data:ro"), "evil", "")
	shared.Inherit(first, nil)
	read(shared, "good", "add :ro to the volume")
	running := settings("")
	running.Inherit(first, shared.Volumes) // of which the new settings say nothing any more
	read(running, "good", "sandboxes can write it")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	read(first, "good", "not JSON")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	read(first, "good", "no such file")
}

func TestClientFileIsNoFile(t *testing.T) {
	c, err := load(t, "", vars{"SANDLOT_MCP_FILES": t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list, notes := c.Servers(t.Context(), auth.ParseID); len(list) != 0 || len(notes) != 1 ||
		!strings.Contains(notes[0], "directory") {
		t.Errorf("%v, %q", list, notes)
	}
}
