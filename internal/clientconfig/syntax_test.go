package clientconfig

import (
	"fmt"
	"strings"
	"testing"
)

// put returns the text with the server, and checks that a second time nothing changes, and that taking the server out
// leaves every line of before.
func put(t *testing.T, c Client, before string, s Server) string {
	t.Helper()
	after, err := c.Put([]byte(before), s)
	if err != nil {
		t.Fatalf("%s: %v\n%s", c.ID, err, before)
	}
	again, err := c.Put(after, s)
	if err != nil || string(again) != string(after) {
		t.Errorf("%s: a second time: %v\n%s\nwas\n%s", c.ID, err, again, after)
	}
	if !c.Has(after, s.Name) {
		t.Errorf("%s: it is not there:\n%s", c.ID, after)
	}
	return string(after)
}

// TestSyntaxes: in each syntax, what was in the file is there still, comments too, and the server is there once. Then it
// is taken out, and the file is as before, but for empty lines.
func TestSyntaxes(t *testing.T) {
	for id, texts := range map[string][]string{
		"codex": {
			"", "# mine\n", "model = \"o\"\n", "model = \"o\"", "model = \"o\" # why\r\n[a]\r\nb = 1\r\n",
			"[mcp_servers.other]\ncommand = \"x\" # [mcp_servers.sandlot]\nargs = [\n  \"[mcp_servers.sandlot]\", # a\n]\n",
			"a = '''\n[mcp_servers.sandlot]\nurl = 1\n'''\n\n[mcp_servers.\"other one\".env]\nA = \"b\"\n",
			"b = \"\"\"x\\\"\"\"\"\"\n[[profiles]]\nn = 1\n[[profiles]]\nn = 2\nd = 2026-01-01 10:00:00\n",
			"[a]\nb = {c = [1, {d = \"}\"}], e = ']'} # {\n[mcp_servers]\n",
		},
		"goose": {
			"", "# mine\n", "GOOSE_MODEL: x\n", "GOOSE_MODEL: x", "a: 1\r\nextensions:\r\n  dev:\r\n    enabled: true # why\r\n",
			"extensions:\n    # the first\n    dev:\n        args: [a, b]\n\n    # the second\n    other: {enabled: true}\n\nz: |\n  extensions:\n    sandlot: 1\n",
			"extensions:\nz: 1\n", "extensions: {} # none\nz: 1\n", "extensions: null\n", "extensions: {}",
			"z: 1\nextensions:\n  dev:\n    enabled: true",
		},
		"continue": {
			"", "# mine\n", "name: Mine\nversion: 1.0.0\nschema: v1\n", "name: Mine\nmcpServers: []\nmodels:\n  - name: a # b\n",
			"mcpServers:\n- name: other\n  command: x\n  # c\n  args:\n  - a\nrules:\n- r\n",
			"mcpServers:\n    -   name: other\n        url: http://x/ # y\n\n    # last\n    - uses: a/b\n",
			"models:\n  - name: sandlot\nmcpServers:\n  - name: other\n    command: x", "mcpServers:\n",
		},
		"opencode": {
			"", "{}", "{\n  // mine\n  \"theme\": \"x\",\n}\n", "{\"mcp\": {\"other\": {\"type\": \"local\", \"command\": [\"x\"]}}}",
			"{\n\t\"mcp\": {\n\t\t\"other\": {\"enabled\": false}, /* a */\n\t},\n\t\"z\": 1 // b\n}\n",
		},
		"zed": {"// Zed\n{\n  \"vim_mode\": true, // yes\n  \"context_servers\": {\n    \"a\": {\"command\": \"x\"}\n    // none\n  }\n}\n"},
	} {
		c := mustFind(t, id)
		for _, before := range texts {
			for _, s := range []Server{server, with("slt_x"), {Name: "sandlot", Program: `C:\p "q"`, Args: []string{"stdio", "#a: b"}}} {
				after := put(t, c, before, s)
				for _, line := range strings.Split(before, "\n") {
					line, _, _ = strings.Cut(strings.TrimSpace(line), "[]")
					line, _, _ = strings.Cut(line, "{}")
					line = strings.TrimRight(strings.TrimSuffix(line, " null"), "}, ")
					if !strings.Contains(after, line) {
						t.Errorf("%s: %q is lost:\n%s", id, line, after)
					}
				}
				if strings.Contains(before, "\r\n") && strings.Count(after, "\n") != strings.Count(after, "\r\n") {
					t.Errorf("%s: ends of lines are mixed: %q", id, after)
				}
				// Another server of this name: the rest stays, and no key of the one before.
				other := Server{Name: "sandlot", URL: "https://x.example/mcp"}
				changed := put(t, c, after, other)
				i, err := c.Installed([]byte(changed), "sandlot")
				if err != nil || i.URL != other.URL || i.Program != "" || len(i.Headers)+len(i.Args)+len(i.Env) > 0 {
					t.Errorf("%s: %+v, %v\n%s", id, i, err, changed)
				}
				for what, text := range map[string]string{"added": after, "changed": changed} {
					removed, err := c.Remove([]byte(text), "sandlot")
					if err != nil || c.Has(removed, "sandlot") {
						t.Fatalf("%s: %s, and not taken out: %v\n%s", id, what, err, text)
					}
					for _, line := range strings.Split(before, "\n") {
						line, _, _ = strings.Cut(strings.TrimSpace(line), ":")
						if line = strings.TrimRight(line, ",{}[]\" "); strings.Contains(line, "#") &&
							!strings.Contains(string(removed), line) {
							t.Errorf("%s: %q is lost:\n%s", id, line, removed)
						}
					}
					if none, err := c.Remove(removed, "sandlot"); err != nil || string(none) != string(removed) {
						t.Errorf("%s: taken out twice: %v\n%s", id, err, none)
					}
				}
			}
		}
	}
}

// TestSyntaxKeeps: keys of the entry that are their user's stay, and so do limits that the user has changed.
func TestSyntaxKeeps(t *testing.T) {
	for id, tt := range map[string]struct {
		before string
		kept   []string
		gone   []string
	}{
		"codex": {"[mcp_servers.sandlot]\ncommand = \"old\" # of before\ntool_timeout_sec = 5 # mine\n" +
			"enabled_tools = [\"a\"]\n\n[mcp_servers.sandlot.env]\nX = \"y\"\n\n# z\n[z]\na = 1\n",
			[]string{"tool_timeout_sec = 5 # mine", `enabled_tools = ["a"]`, "# of before", "# z\n[z]\na = 1"},
			[]string{"old", "env", "X ="}},
		"goose": {"extensions:\n  sandlot:\n    type: stdio\n    cmd: old\n    timeout: 5\n    available_tools:\n    - a\n" +
			"  z:\n    cmd: z\n", []string{"timeout: 5", "available_tools", "cmd: z"}, []string{"old", "stdio"}},
		"continue": {"mcpServers:\n  - name: sandlot\n    command: old\n    connectionTimeout: 5\n    faviconUrl: f\n" +
			"  - name: z\n    command: z\n", []string{"connectionTimeout: 5", "faviconUrl: f", "command: z"},
			[]string{"old"}},
		"cline": {`{"mcpServers": {"sandlot": {"transport": {"type": "stdio", "command": "old"}, "timeout": 5, "disabled": true}}}`,
			[]string{`"timeout":5`, `"disabled":true`}, []string{"old"}},
	} {
		after := put(t, mustFind(t, id), tt.before, server)
		for _, want := range tt.kept {
			if !strings.Contains(after, want) {
				t.Errorf("%s: %q is lost:\n%s", id, want, after)
			}
		}
		for _, old := range tt.gone {
			if strings.Contains(after, old) {
				t.Errorf("%s: %q is there still:\n%s", id, old, after)
			}
		}
		if strings.Count(after, "330") > 0 {
			t.Errorf("%s: the user's limit is replaced:\n%s", id, after)
		}
	}
}

// TestSyntaxRefuses: what cannot be changed without a loss is left, and the error has what to put in, and nothing of the
// file.
func TestSyntaxRefuses(t *testing.T) {
	for id, texts := range map[string][]string{
		"codex": {"mcp_servers.sandlot.url = \"s3cret\"\n", "[mcp_servers]\nsandlot = {url = \"s3cret\"}\n",
			"mcp_servers = {a = {url = \"s3cret\"}}\n", "a = \"s3cret\nb = 1\n",
			"[mcp_servers.sandlot]\ncommand = \"x\"\n[mcp_servers.sandlot.env]\nA = \"s3cret\" # why\n"},
		"goose": {"extensions: {a: {cmd: s3cret}}\n", "- s3cret\n", "a: s3cret\n---\nb: 1\n", "a: [s3cret\n",
			"extensions:\n  sandlot: {cmd: s3cret}\n", "extensions:\n  sandlot:\n    cmd: s3cret # why\n", "extensions: s3cret\n",
			"{a: s3cret}\n"},
		"continue": {"mcpServers: [{name: a, url: s3cret}]\n", "mcpServers:\n  - name: sandlot\n    # why\n    url: s3cret\n"},
	} {
		c := mustFind(t, id)
		for _, before := range texts {
			after, err := c.Put([]byte(before), server)
			if err == nil {
				t.Errorf("%s: changed\n%s\nto\n%s", id, before, after)
			} else if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
}

// TestInstalled: the entry of each client says how its server is reached, with the values of its variables.
func TestInstalled(t *testing.T) {
	for _, c := range All() {
		program := Server{Name: "sandlot", Program: "/p", Args: []string{"stdio", "--state-dir", "/s"}}
		i, err := c.Installed([]byte(put(t, c, "", program)), "sandlot")
		if err != nil || i.Program != "/p" || strings.Join(i.Args, " ") != "stdio --state-dir /s" || i.URL != "" {
			t.Errorf("%s: %+v, %v", c.ID, i, err)
		}
		if c.StdioOnly() {
			continue
		}
		s := server
		s.TokenEnv = "TOK"
		if c.Check(&s) != nil {
			s = with("slt_x")
		}
		if i, err = c.Installed([]byte(put(t, c, "", s)), "sandlot"); err != nil || i.URL != server.URL || i.Program != "" {
			t.Errorf("%s: %+v, %v", c.ID, i, err)
		}
		got := c.Expand(i.Headers["Authorization"], func(name string) string {
			return map[string]string{"TOK": "slt_x"}[name]
		})
		if i.TokenEnv != "TOK" && got != "Bearer slt_x" {
			t.Errorf("%s: %+v: %q", c.ID, i, got)
		}
		if _, err := c.Installed([]byte(put(t, c, "", s)), "none"); err == nil || !strings.Contains(err.Error(), c.ID) {
			t.Errorf("%s: %v", c.ID, err)
		}
	}
	if got := fmt.Sprint(mustFind(t, "opencode").Sibling("/a/opencode.json"), mustFind(t, "zed").Sibling("/a/b")); got !=
		"/a/opencode.jsonc" {
		t.Error(got)
	}
}
