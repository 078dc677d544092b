package install

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/clientconfig"
)

// TestCheck: the client's own command is asked, and what the entry says is tried, with its token.
func TestCheck(t *testing.T) {
	said := `{"content":[{"type":"text","text":"42"}]}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer slt_x" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":%s}`, said)
	}))
	defer s.Close()
	for name, tt := range map[string]struct {
		client, program, says string // the client, its program, and what that prints
		code                  int
		token, said           string
		wants                 []string
		fails                 string
	}{
		"knows it":            {"codex", "codex", "sandlot\n  enabled: true\n  url: U", 0, "slt_x", "", []string{"`codex mcp get sandlot` says", "through it works"}, ""},
		"does not know it":    {"codex", "codex", "Error: No MCP server", 1, "slt_x", "", []string{"through it works"}, "does not know the server"},
		"is not well":         {"gemini", "gemini", "✓ other - Connected\n✗ sandlot: U (http) - Disconnected", 0, "slt_x", "", nil, "cannot use the server"},
		"another is not well": {"gemini", "gemini", "✗ other - Disconnected\n✓ \x1b[1msandlot\x1b[0m: U (http) - Connected", 0, "slt_x", "", []string{"✓ sandlot: U", "through it works"}, ""},
		"is not in the list":  {"qwen", "qwen", "✓ other - Connected", 0, "slt_x", "", nil, "does not know the server"},
		"is broken":           {"gemini", "gemini", "", -1, "slt_x", "", []string{"through it works"}, "does not start"},
		"is not here":         {"opencode", "", "", 0, "slt_x", "", []string{"is not in PATH", "through it works"}, ""},
		"has no command":      {"cursor", "", "", 0, "slt_x", "", []string{"has no command", "through it works"}, ""},
		"another token":       {"cursor", "", "", 0, "slt_y", "", nil, "refuses its token"},
		"fails":               {"cursor", "", "", 0, "slt_x", `{"isError":true,"content":[{"type":"text","text":"no Docker"}]}`, nil, "no Docker"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := own(t)
			t.Setenv("PATH", dir)
			if tt.said != "" {
				defer func(before string) { said = before }(said)
				said = tt.said
			}
			k, err := clientconfig.Find(tt.client)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "settings")
			text, err := k.Put(nil, clientconfig.Server{Name: "sandlot", URL: s.URL + "/mcp", Token: tt.token})
			if err = errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
				t.Fatal(err)
			}
			if tt.program != "" {
				script := fmt.Sprintf("#!/bin/sh\nprintf '%s\\n'\nexit %d\n", strings.ReplaceAll(tt.says, "\n", `\n`), tt.code)
				if tt.code < 0 {
					script = "no program"
				}
				if err := os.WriteFile(filepath.Join(dir, tt.program), []byte(script), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			p := &program{Program{Out: &out, Err: &out, IsJSON: func() bool { return false }}, "linux"}
			f := installFlags{file: file}
			f.server.Name = "sandlot"
			err = p.check(t.Context(), k, f)
			if (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%v, want %q\n%s", err, tt.fails, out.String())
			}
			for _, w := range tt.wants {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%q is not in\n%s", w, out.String())
				}
			}
			if strings.Contains(out.String()+fmt.Sprint(err), "slt_") {
				t.Errorf("the token is printed:\n%s", out.String())
			}
		})
	}
}
