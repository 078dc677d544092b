package clientconfig

import (
	"strings"
	"testing"
)

func TestPut(t *testing.T) {
	for _, tt := range []struct{ name, id, before, after string }{
		{"no file", "cursor", "", "{\n  \"mcpServers\": {\n    \"sandlot\": {\n      \"url\": " +
			"\"http://localhost:8000/mcp\"\n    }\n  }\n}\n"},
		{"an empty object", "cursor", "{}\n",
			"{\n  \"mcpServers\": {\n    \"sandlot\": {\n      \"url\": \"http://localhost:8000/mcp\"\n    }\n  " +
				"}\n}\n"},
		{"beside others", "cursor", `{
    "mcpServers": {
        "b": {"command": "x", "args": ["-y"]},
        "a": {"url": "http://x/"}
    },
    "z": 1.0, "y": 12345678901234567890
}
`, `{
    "mcpServers": {
        "b": {"command": "x", "args": ["-y"]},
        "a": {"url": "http://x/"},
        "sandlot": {
            "url": "http://localhost:8000/mcp"
        }
    },
    "z": 1.0, "y": 12345678901234567890
}
`},
		{"beside other settings", "gemini", "{\n\t\"theme\": \"GitHub\"\n}",
			"{\n\t\"theme\": \"GitHub\",\n\t\"mcpServers\": {\n\t\t\"sandlot\": {\n\t\t\t\"httpUrl\": " +
				"\"http://localhost:8000/mcp\"\n\t\t}\n\t}\n}"},
		{"an empty list", "vscode", "{\n  \"inputs\": [],\n  \"servers\": {}\n}\n",
			"{\n  \"inputs\": [],\n  \"servers\": {\n    \"sandlot\": {\n      \"type\": \"http\",\n      \"url\": " +
				"\"http://localhost:8000/mcp\"\n    }\n  }\n}\n"},
		{"comments and commas", "vscode", `// mine
{
  /* a */ "servers": {
    // github
    "github": {"url": "https://x/"}, // its comma
    // the end
  }, // more
}
`, `// mine
{
  /* a */ "servers": {
    // github
    "github": {"url": "https://x/"}, // its comma
    // the end
    "sandlot": {
      "type": "http",
      "url": "http://localhost:8000/mcp"
    }
  }, // more
}
`},
		{"a comment after the last one", "crush", "{\n  \"mcp\": {\n    \"a\": {\"type\": \"stdio\"} // note\n  }\n}\n",
			"{\n  \"mcp\": {\n    \"a\": {\"type\": \"stdio\"}, // note\n    \"sandlot\": {\n      \"type\": " +
				"\"http\",\n      \"url\": \"http://localhost:8000/mcp\",\n      \"timeout\": 60\n    }\n  }\n}\n"},
		{"all on one line", "claude-code", `{"a":{"b":[1,2]},"mcpServers":{"x":{"command":"y"}},"c":null}`,
			`{"a":{"b":[1,2]},"mcpServers":{"x":{"command":"y"},"sandlot":{"type":"http","url":"http://localhost:8000/mcp"}},"c":null}`},
		{"lines of Windows", "cursor", "\xef\xbb\xbf{\r\n  \"mcpServers\": {\r\n    \"a\": {}\r\n  }\r\n}\r\n",
			"\xef\xbb\xbf{\r\n  \"mcpServers\": {\r\n    \"a\": {},\r\n    \"sandlot\": {\r\n      \"url\": " +
				"\"http://localhost:8000/mcp\"\r\n    }\r\n  }\r\n}\r\n"},
		{"ours, and it was another", "windsurf", `{
  "mcpServers": {
    "sandlot": {
      "disabledTools": ["a", "b"], "serverUrl": "http://old/mcp",
      "headers": {"X": "y"}, "weird": 1.50
    },
    "z": {}
  }
}`, `{
  "mcpServers": {
    "sandlot": {
      "disabledTools": [
        "a",
        "b"
      ],
      "serverUrl": "http://localhost:8000/mcp",
      "weird": 1.50
    },
    "z": {}
  }
}`},
		{"it was a program", "claude-code",
			`{"mcpServers": {"sandlot": {"command": "sandlot", "args": ["stdio"], "env": {}}}}`,
			`{"mcpServers": {"sandlot": {"type":"http","url":"http://localhost:8000/mcp"}}}`},
		{"already there", "cursor",
			`{"mcpServers": {"sandlot": { /* mine */ "autoApprove": [], "url": "http://localhost:8000/mcp" }}}`,
			`{"mcpServers": {"sandlot": { /* mine */ "autoApprove": [], "url": "http://localhost:8000/mcp" }}}`},
		{"names that look alike", "cursor", `{"mcpServers": {"Sandlot": {}, "sand\u006cot2": {}}}`,
			`{"mcpServers": {"Sandlot": {}, "sand\u006cot2": {},"sandlot":{"url":"http://localhost:8000/mcp"}}}`},
		{"an escaped name", "cursor", `{"mcpServers": {"sand\u006cot": {"url": "http://old/"}}}`,
			`{"mcpServers": {"sand\u006cot": {"url":"http://localhost:8000/mcp"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustFind(t, tt.id)
			got, err := c.Put([]byte(tt.before), server)
			if err != nil || string(got) != tt.after {
				t.Fatalf("%v\n%s\nwant\n%s", err, got, tt.after)
			}
			again, err := c.Put(got, server)
			if err != nil || string(again) != string(got) {
				t.Errorf("a second time: %v\n%s", err, again)
			}
		})
	}
}

// Nothing is made of a file that is not understood, and what was in it is not told.
func TestPutRefuses(t *testing.T) {
	for _, tt := range []struct{ name, before, says string }{
		{"no JSON", "{\"a\": s3cret}", "not JSON: look at line 1"},
		{"half", "{\"mcpServers\": {", "not JSON"},
		{"an array", "[]", "the file is not a JSON object"},
		{"text after it", "{} s3cret", "not JSON"},
		{"a list of servers", `{"mcpServers": []}`, "mcpServers is not a JSON object"},
		{"null", `{"mcpServers": null}`, "mcpServers is not a JSON object"},
		{"an entry that is none", `{"mcpServers": {"sandlot": "s3cret"}}`, "sandlot is not a JSON object"},
		{"twice", `{"mcpServers": {"a": {}}, "mcpServers": {}}`, "twice"},
		{"an entry twice", `{"mcpServers": {"sandlot": {}, "sandlot": {}}}`, "twice"},
		{"comments in ours", "{\"mcpServers\": {\"sandlot\": {\n // s3cret\n \"url\": \"http://old/\"}}}",
			"by hand:\n{\n  \"mcpServers\""},
		{"a comment at its end", "{\"mcpServers\": {\"sandlot\": {\"url\": \"http://old/\" /* s3cret */}}}",
			"comments, which would be lost"},
	} {
		got, err := mustFind(t, "cursor").Put([]byte(tt.before), server)
		if err == nil || got != nil || !strings.Contains(err.Error(), tt.says) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %s, %v, want that it says %q", tt.name, got, err, tt.says)
		}
	}
}

func FuzzPut(f *testing.F) {
	for _, s := range []string{"", "{}", `{"mcpServers":{"a":1}}`, "{\n// x\n\"mcpServers\": {},}",
		`{"mcpServers":{"sandlot":{"url":1,"x":[]}}}`, "{\"a\":[1,],\r\n}", "/**/{}//"} {
		f.Add(s)
	}
	c := clients[2]
	f.Fuzz(func(t *testing.T, text string) {
		got, err := c.Put([]byte(text), server)
		if err != nil {
			return
		}
		again, err := c.Put(got, server)
		if err != nil || string(again) != string(got) {
			t.Errorf("%q became %q, and that %q, %v", text, got, again, err)
		}
	})
}
