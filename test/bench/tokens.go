package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/test/tokens"
)

// tokenCosts measures what models pay for Sandlot: for the definitions of tools in each conversation, and for results.
func tokenCosts(b *bench) (_ section, err error) {
	dir, err := tempDir()
	if err != nil {
		return section{}, err
	}
	defer os.RemoveAll(dir)
	var servers manyServers
	defer servers.end()
	text, err := servers.serve(25, 20, usefulTool)
	if err != nil {
		return section{}, err
	}
	file := filepath.Join(dir, "many.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return section{}, err
	}
	views := table{Head: []string{"definitions in `tools/list`", "tools", "tokens"}}
	results := table{Head: []string{"result", "in text", "in data"}}
	err = b.with(func(s *server) error {
		if err := countView(s, &views, "Sandlot's own", "", 0); err != nil {
			return err
		}
		return countResults(s, &results)
	}, "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	err = b.with(func(s *server) error {
		if !refuses(s, "nonsense") { // it has no views
			return countView(s, &views, "and 500 of 25 MCP servers", "", 500)
		}
		for _, mode := range []string{"all", "search", "code"} {
			third := 0
			if mode == "all" {
				third = 500
			}
			if refuses(s, mode) {
				continue
			}
			name := "with 25 MCP servers of 20 tools, `" + mode + "`"
			if err := countView(s, &views, name, "?tools="+mode, third); err != nil {
				return err
			}
		}
		return nil
	}, "SANDLOT_CONFIG="+file, "SANDLOT_POOL_SIZE=0")
	return section{title: "Tokens",
		method: "What a model reads, in tokens of o200k_base. Definitions are counted as `tools/list` sends them: " +
			"name, description, schema of the arguments, hints. Clients show models a result's text (`content`), or " +
			"its data (`structuredContent`), and a few both.",
		tables: []table{views, results}}, err
}

// refuses reports whether the server has no such view.
func refuses(s *server, mode string) bool {
	r, err := http.Post(s.url+"/mcp?tools="+mode, "application/json",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		return true
	}
	r.Body.Close()
	return r.StatusCode != http.StatusOK
}

// countView adds a row for what the server lists at an address with that query, once it has so many tools of
// third-party servers.
func countView(s *server, t *table, name, query string, third int) error {
	k, err := connectTo(s.ctx, s.url+"/mcp"+query, older, "")
	if err != nil {
		return err
	}
	defer k.close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		all, err := pages(s.ctx, s.url+"/mcp"+query, k.(*sdkClient).session.ID())
		if err != nil {
			return err
		}
		listed, cost, found := 0, 0, 0
		for _, page := range all {
			var m struct {
				Result struct{ Tools []json.RawMessage }
			}
			if err := json.Unmarshal(page, &m); err != nil {
				return err
			}
			for _, d := range m.Result.Tools {
				listed++
				cost += tokens.Count(string(d))
				if strings.Contains(string(d), `"name":"ext_`) {
					found++
				}
			}
		}
		if found == third && listed > third {
			t.Rows = append(t.Rows, []string{name, fmt.Sprint(listed), fmt.Sprint(cost)})
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d tools of third-party servers are listed, of %d", found, third)
		}
	}
}

// countResults adds rows for common results.
func countResults(s *server, t *table) error {
	k, err := s.connect(older, "")
	if err != nil {
		return err
	}
	defer k.close()
	for _, c := range []struct {
		name, tool string
		arguments  args
	}{
		{"`print(\"hello\")`", "execute_code", args{"code": `print("hello")`}},
		{"an exception in Python", "execute_code", args{"code": "1/0"}},
		{"`echo hello`", "execute_command", args{"command": "echo hello"}},
		{"100,000 characters of output", "execute_command", args{"command": "seq 100000 | head -c 100000"}},
		{"a file of 1,000 characters is written", "sandbox_write_file",
			args{"path": "a.txt", "content": strings.Repeat("some words ", 91)[:1000]}},
		{"it is read", "sandbox_read_file", args{"path": "a.txt"}},
		{"the list of sessions, with one", "get_sessions", args{}},
	} {
		r, err := k.(*sdkClient).session.CallTool(s.ctx, &mcp.CallToolParams{Name: c.tool, Arguments: c.arguments})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		text := 0
		for _, block := range r.Content {
			if b, ok := block.(*mcp.TextContent); ok {
				text += tokens.Count(b.Text)
			} else {
				text += tokens.CountJSON(block)
			}
		}
		t.Rows = append(t.Rows, []string{c.name, fmt.Sprint(text), fmt.Sprint(tokens.CountJSON(r.StructuredContent))})
	}
	return nil
}

// usefulTool is a definition as servers on the Internet have them.
func usefulTool(n int) *mcp.Tool {
	verb := []string{"create", "get", "update", "delete", "search"}[n%5]
	noun := []string{"issue", "pull_request", "document", "customer"}[n/5%4]
	what := strings.ReplaceAll(noun, "_", " ")
	text := func(s string) args { return args{"type": "string", "description": s} }
	return &mcp.Tool{Name: verb + "_" + noun,
		Description: fmt.Sprintf("The %s operation for a %s in the given project. Returns the %[2]s with its fields, "+
			"or an error if it does not exist or you may not see it. Use search_%s first if you do not know its id.",
			verb, what, noun),
		InputSchema: args{"type": "object", "required": []string{"project", "id"}, "properties": args{
			"project": text("The project's key, such as OPS or group/name."),
			"id":      text("The id of the " + what + "."),
			"title":   text("A short title, of at most 120 characters, without markup."),
			"body":    text("The text, in Markdown. Mentions with @ notify people."),
			"state":   args{"type": "string", "enum": []string{"open", "closed", "all"}, "default": "open"},
			"labels": args{"type": "array", "items": args{"type": "string"},
				"description": "Labels to set; those that do not exist are created."},
			"limit": args{"type": "integer", "minimum": 1, "maximum": 100, "default": 20,
				"description": "The most to return."}}}}
}
