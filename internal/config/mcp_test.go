package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/spec"
)

// mcpEnv has variables with which servers are configured; their values must
// never be told.
var mcpEnv = vars{"TOKEN": "s3cret", "ODD": "s3cret \"$(id)\"\n`x` ${TOKEN}", "BREAK": "s3cret\r\nX: y", "EMPTY": "",
	"HOME": "/home/op", "PATH": os.Getenv("PATH")}

// me is the user who runs the tests: root has to be named.
var me = strconv.Itoa(os.Getuid())

// readServers loads a settings file and client files beside it.
func readServers(t *testing.T, text string, files map[string]string) (list []spec.Configured, notes []string) {
	t.Helper()
	dir := t.TempDir()
	env := vars{}
	for k, v := range mcpEnv {
		env[k] = v
	}
	var paths []string
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	slices.Sort(paths)
	env["SANDLOT_MCP_FILES"] = strings.Join(paths, ",")
	env["SANDLOT_MCP_FILES_ENV"] = "A,API_BASE_URL,TOKEN,ODD,BREAK,EMPTY,UNSET,HOME"
	c, err := load(t, text, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.MCP.Files, paths) {
		t.Errorf("files to follow: %q, want %q", c.MCP.Files, paths)
	}
	list, notes = c.Servers(t.Context(), auth.ParseID)
	told := fmt.Sprint(notes, c.Rows())
	for _, s := range list {
		if s.Source == "" {
			t.Errorf("%s does not say where it stands", s.Name)
		}
		told += s.Invalid
	}
	if strings.Contains(told, "s3cret") {
		t.Errorf("a value is told: %s", told)
	}
	return list, notes
}

// single returns the only server, without where it stands.
func single(t *testing.T, list []spec.Configured, notes []string) spec.Configured {
	t.Helper()
	if len(list) != 1 || len(notes) > 0 {
		t.Fatalf("%+v, notes %q, want one server and no note", list, notes)
	}
	s := list[0]
	s.Source = ""
	return s
}

func TestMCPSection(t *testing.T) {
	empty, gh := "", "gh"
	for _, tt := range []struct {
		name, yaml string
		want       spec.Configured
	}{
		{"the least", "{command: npx}", spec.Configured{Kind: "stdio", Command: "npx", Where: "sandbox"}},
		{"all of a program", `{type: stdio, command: npx, args: [-y, "@x/server@^2", 7, true], env: {A: $TOKEN, B: "", C: , D: 8080, E: "$UNSET"}, timeout: 30,
			disabled: false, disabled_tools: [a], enabled_tools: [b, c], where: host, user: ` + me + `, prefix: gh, principals: [alice, local], trust: warn, oauth: false}`,
			spec.Configured{Kind: "stdio", Command: "npx", Args: []string{"-y", "@x/server@^2", "7", "true"},
				Env:     map[string]string{"A": "s3cret", "B": "", "C": "", "D": "8080", "E": ""},
				Timeout: 30 * time.Second, DisabledTools: []string{"a"},
				EnabledTools: []string{"b", "c"}, Where: "host", User: me, Prefix: &gh,
				Principals: []string{"user:alice", "local"}, Trust: "warn"}},
		{"all of a remote one", `{url: "https://api.example.com/mcp/$UNSET", headers: {Authorization: Bearer $TOKEN, X-None: $UNSET, X-Two: "${UNSET:-two}"}, timeout: 2m,
			oauth: true, oauth_client_id: id, oauth_client_secret: $TOKEN, oauth_issuer: https://accounts.example.com, prefix: "", trust: hold}`,
			spec.Configured{Kind: "http", URL: "https://api.example.com/mcp/",
				Headers: map[string]string{"Authorization": "Bearer s3cret", "X-Two": "two"},
				Timeout: 2 * time.Minute, OAuth: spec.OAuth{ClientID: "id", ClientSecret: "s3cret",
					Issuer: "https://accounts.example.com"}, Where: "sandbox", Prefix: &empty, Trust: "hold"}},
		{"the older transport", "{type: sse, url: 'http://localhost:9/sse'}",
			spec.Configured{Kind: "sse", URL: "http://localhost:9/sse", Where: "sandbox"}},
		{"both, and the type says which", "{type: http, command: x, url: 'http://localhost:9/'}",
			spec.Configured{Kind: "http", URL: "http://localhost:9/", Where: "sandbox"}},
		{"home of the machine", "{command: ~/bin/x, where: host, user: " + me + "}",
			spec.Configured{Kind: "stdio", Command: "/home/op/bin/x", Where: "host", User: me}},
		{"home of the sandbox", "{command: ~/bin/x, args: ['~']}",
			spec.Configured{Kind: "stdio", Command: "/root/bin/x", Args: []string{"~"}, Where: "sandbox"}},
		{"a command's output", `{command: x, env: {A: "<$(printf '%s\n\n' \"$TOKEN\")>"}}`,
			spec.Configured{Kind: "stdio", Command: "x", Env: map[string]string{"A": "<s3cret>"}, Where: "sandbox"}},
		{"a hostile value", `{command: x, args: ["$ODD"], env: {A: "$ODD"}}`,
			spec.Configured{Kind: "stdio", Command: "x", Args: []string{mcpEnv["ODD"]},
				Env: map[string]string{"A": mcpEnv["ODD"]}, Where: "sandbox"}},
		{"disabled, so nothing is run", "{command: x, disabled: true, env: {A: '$(exit 1)'}}",
			spec.Configured{Kind: "stdio", Disabled: true, Where: "sandbox"}},
		{"by an alias", "&a {command: y}", spec.Configured{Kind: "stdio", Command: "y", Where: "sandbox"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, notes := readServers(t, "mcp:\n  it: "+tt.yaml, nil)
			tt.want.Name = "it"
			if got := single(t, list, notes); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// One that is wrong is told of with its field, and holds no other.
func TestBrokenServers(t *testing.T) {
	for _, tt := range []struct {
		yaml  string
		words []string
	}{
		{"7", []string{"section with command or url"}},
		{"", []string{"section with command or url"}},
		{"{}", []string{"command", "url"}},
		{"{command: x, principals: [team:ann]}", []string{"principals", "team:ann", "local, or the name of a user"}},
		{"{comand: x}", []string{`unknown setting "comand"`, `did you mean "command"?`}},
		{"{command: x, evn: {}}", []string{`"evn"`, `did you mean "env"?`}},
		{"{command: x, command: y}", []string{"twice"}},
		{"{command: [x]}", []string{"command: it must be a text"}},
		{"{command: x, args: -y}", []string{"args: it must be a list"}},
		{"{command: x, args: [[a]]}", []string{"args: it must be a list"}},
		{"{command: x, env: [A=b]}", []string{"env: it must be names with values"}},
		{"{command: x, env: {A: [b]}}", []string{"env A: it must be a text"}},
		{"{command: x, env: {A-B: $TOKEN}}", []string{`env "A-B"`}},
		{"{command: x, env: {A: \"a\\0b\"}}", []string{"env A", "NUL"}},
		{"{command: x, timeout: soon}", []string{"timeout", "soon"}},
		{"{command: x, timeout: -1}", []string{"timeout"}},
		{"{command: x, disabled: maybe}", []string{"disabled: it must be true or false"}},
		{"{command: x, type: ws}", []string{`type: "ws" must be one of stdio, http, sse`}},
		{"{type: http, command: x}", []string{"url: type http needs one"}},
		{"{type: stdio, url: 'http://x/'}", []string{"command: type stdio needs one"}},
		{"{command: x, url: 'http://x/'}", []string{"type", "both"}},
		{"{command: x, where: host, user: no-such-user}", []string{"user", "no-such-user"}},
		{"{command: x, user: root}", []string{"user", "where: host"}},
		{"{command: x, where: moon}", []string{"where", "sandbox, host"}},
		{"{command: x, trust: all}", []string{"trust", "warn, hold"}},
		{"{command: x, prefix: 'a.b'}", []string{"prefix"}},
		{"{command: x, principals: alice}", []string{"principals"}},
		{"{command: $EMPTY}", []string{"command", "empty"}},
		{"{url: $TOKEN}", []string{"url: it must begin with http://"}},
		{"{url: 'file:///x'}", []string{"url"}},
		{"{url: 'http://x/', headers: {Authorization: $BREAK}}", []string{"headers Authorization", "line break"}},
		{"{url: 'http://x/', headers: {'A B': x}}", []string{"headers", "A B"}},
		{"{command: x, env: {GITHUB_TOKEN: '${UNSET:?put it into the unit file}'}}",
			[]string{"env GITHUB_TOKEN: the variable UNSET is not set: put it into the unit file"}},
		{"{command: x, args: [a, '$(echo $TOKEN; exit 3)']}", []string{"args 2", "exit status 3"}},
		{"{url: 'http://x/$'}", []string{"url: a $ stands alone"}},
		{"{url: 'http://x/', oauth_client_secret: '$(false)'}", []string{"oauth_client_secret", "failed"}},
		{"{url: 'http://x/', oauth_client_id: id, oauth_client_secret: $TOKEN}", []string{"add oauth_issuer"}},
		{"{url: 'http://x/', oauth_client_secret: $TOKEN, oauth_issuer: 'https://a.example'}",
			[]string{"oauth_client_secret", "needs oauth_client_id"}},
		{"{url: 'http://x/', oauth_client_id: 'https://me.example/c', oauth_client_secret: $TOKEN, oauth_issuer: " +
			"'https://a.example'}", []string{"oauth_client_secret", "has none"}},
		{"{url: 'http://x/', oauth_client_id: id, oauth_issuer: a.example}", []string{"oauth_issuer", "https://"}},
	} {
		t.Run(tt.yaml, func(t *testing.T) {
			list, notes := readServers(t, "mcp:\n  bad: "+tt.yaml+"\n  good: {command: x}", nil)
			if len(list) != 2 || list[1].Invalid != "" || list[1].Command != "x" || len(notes) > 0 {
				t.Fatalf("%+v, notes %q", list, notes)
			}
			bad := list[0]
			for _, w := range tt.words {
				if !strings.Contains(bad.Invalid, w) {
					t.Errorf("broken because %q, want %q in it", bad.Invalid, w)
				}
			}
			if bad.Name != "bad" || bad.Command != "" || bad.URL != "" || bad.Env != nil || bad.Headers != nil {
				t.Errorf("a broken one has more than its name: %+v", bad)
			}
		})
	}
}

func TestServerNames(t *testing.T) {
	long := strings.Repeat("very-long-", 5)
	list, notes := readServers(t, "mcp:\n  ok_1-x: {command: x}\n  'GitHub Copilot!': {command: x}\n  "+
		"'GitHub-Copilot': {command: x}\n  '@scope/server.js': {command: x}\n  '日本': {command: x}\n  '_x': {command: "+
		"x}\n  "+long+": {command: x}\n", nil)
	var got []string
	for _, s := range list {
		got = append(got, s.Name)
	}
	want := []string{"ok_1-x", "GitHub-Copilot", "GitHub-Copilot-2", "scope-server-js", "server", "x"}
	if len(got) != 7 || !slices.Equal(got[:6], want) || len(got[6]) != 32 || !strings.HasPrefix(got[6], "very-long-") {
		t.Errorf("names %q, want %q and a shortened one", got, want)
	}
	if len(notes) != 6 || !strings.Contains(notes[0], `"GitHub Copilot!"`) ||
		!strings.Contains(notes[0], "GitHub-Copilot") {
		t.Errorf("notes %q, want one for each that is called otherwise", notes)
	}
	again, _ := readServers(t, "mcp:\n  "+long+": {command: x}\n", nil)
	if again[0].Name != got[6] {
		t.Errorf("%q becomes %q, and %q", long, got[6], again[0].Name)
	}
}

// The settings file goes before all other files, and these in their order.
func TestTheFirstOfANameWins(t *testing.T) {
	list, notes := readServers(t, "mcp: {a: {command: first}}", map[string]string{
		"1.json": `{"mcpServers": {"a": {"command": "second"}, "b": {"command": "second"}}}`,
		"2.json": `{"servers": {"a": {"command": "third"}, "b": {"command": "third"}, "c": {"command": "third"}}}`,
	})
	var got []string
	for _, s := range list {
		got = append(got, s.Name+" "+s.Command)
	}
	if want := []string{"a first", "b second", "c third"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(notes) != 3 || !strings.Contains(notes[0], "left out") || !strings.Contains(notes[0], "1.json") ||
		!strings.Contains(notes[0], "sandlot.yaml") {
		t.Errorf("notes %q", notes)
	}
}

// What `sandlot config` shows.
func TestServersAreShownWithoutSecrets(t *testing.T) {
	c, err := load(t, `mcp:
  gh: {command: npx, args: [-y, $TOKEN], env: {GITHUB_TOKEN: literally-s3cret}}
  far: {url: "https://me:s3cret@example.com/mcp?key=s3cret", headers: {Authorization: Bearer s3cret}, disabled: true}
  odd: {url: "https://me:s3cret@$HOST/?key=s3cret"}
  bad: [1]
`, mcpEnv, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"mcp.gh":  "npx -y $TOKEN GITHUB_TOKEN=[secret]",
		"mcp.far": "https://[secret]@example.com/mcp?[secret] Authorization=[secret] (disabled)",
		"mcp.bad": "",
	} {
		if r := row(t, c, key); r.Value != want || !strings.HasPrefix(r.From, "file ") {
			t.Errorf("%s is shown as %q from %q, want %q", key, r.Value, r.From, want)
		}
	}
	if all := fmt.Sprint(c.Rows()); strings.Contains(all, "s3cret") {
		t.Errorf("a secret is shown: %s", all)
	}
}

func TestMCPSettings(t *testing.T) {
	c, err := load(t, "mcp_files: [one.json, ~/two.json, one.json]\nmcp_idle_timeout: 90\nmcp_install_timeout: "+
		"20m\nmcp:\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	home, _ := os.UserHomeDir()
	wd, _ := os.Getwd()
	if want := []string{filepath.Join(wd, "one.json"), filepath.Join(home, "two.json")}; !slices.Equal(c.MCP.Files,
		want) {
		t.Errorf("files %q, want %q", c.MCP.Files, want)
	}
	if c.MCP.IdleTimeout != 90*time.Second || c.MCP.InstallTimeout != 20*time.Minute {
		t.Errorf("%+v", c.MCP)
	}
	if d := Default(); d.MCP.IdleTimeout != 10*time.Minute || d.MCP.InstallTimeout != 10*time.Minute ||
		d.MCP.Files != nil {
		t.Errorf("defaults %+v", d.MCP)
	}
	// A file that is not there is told of, and holds nothing.
	if list, notes := c.Servers(t.Context(), auth.ParseID); len(list) != 0 || len(notes) != 2 ||
		!strings.Contains(notes[0], "one.json") {
		t.Errorf("%v, %q", list, notes)
	}
}

// Each reading is a fresh one, of the client files too.
func TestServersAreReadAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mcp.json")
	c, err := load(t, "", vars{"SANDLOT_MCP_FILES": file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"mcpServers": {%q: {"command": "x"}}}`, name),
			0o600); err != nil {
			t.Fatal(err)
		}
		if list, notes := c.Servers(t.Context(), auth.ParseID); len(list) != 1 || list[0].Name != name ||
			len(notes) > 0 {
			t.Errorf("%+v, %q, want %s", list, notes, name)
		}
	}
}

// A second reading is not of what the first one put in.
func TestServersDoNotChangeTheirSettings(t *testing.T) {
	env := vars{"A": "$B", "B": "two", "PATH": os.Getenv("PATH")}
	c, err := load(t, "mcp: {x: {command: $A, args: [$A], env: {V: $A}}}", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := c.Servers(t.Context(), auth.ParseID)
	second, _ := c.Servers(t.Context(), auth.ParseID)
	if !reflect.DeepEqual(first, second) || first[0].Command != "$B" || first[0].Args[0] != "$B" ||
		first[0].Env["V"] != "$B" {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestConsentSetting(t *testing.T) {
	if got := Default().MCP.Consent; got != "allow" {
		t.Errorf("by default %q", got)
	}
	c, err := Load(Source{Env: map[string]string{"SANDLOT_MCP_CONSENT": "ask"}})
	if err != nil || c.MCP.Consent != "ask" {
		t.Errorf("%v %v", c, err)
	}
	for _, bad := range []string{"never", "Ask", "true"} {
		if _, err := Load(Source{Env: map[string]string{"SANDLOT_MCP_CONSENT": bad}}); err == nil ||
			!strings.Contains(err.Error(), "allow, ask, deny") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
