package mcpclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/mcpclient/transport"
)

func TestList(t *testing.T) {
	tests := []struct {
		name    string
		page    func(n int) string
		want    int
		problem string
	}{
		{"one page", func(int) string { return `{"tools":[{"a":1},{"b":2}],"x":[1]}` }, 2, ""},
		{"none", func(int) string { return `{}` }, 0, ""},
		{"null", func(int) string { return `{"tools":null,"nextCursor":null}` }, 0, ""},
		{"an empty cursor", func(int) string { return `{"tools":[1],"nextCursor":""}` }, 1, ""},
		{"three pages", func(n int) string {
			if n == 2 {
				return `{"tools":[3]}`
			}
			return fmt.Sprintf(`{"nextCursor":"%d","tools":[%d]}`, n, n)
		}, 3, ""},
		{"a loop", func(n int) string { return fmt.Sprintf(`{"tools":[1],"nextCursor":"%d"}`, n%3) }, 4,
			"again and again"},
		{"pages without end", func(n int) string { return fmt.Sprintf(`{"nextCursor":"%d"}`, n) }, 0,
			"over 1000 pages"},
		{"too many items", func(n int) string { return fmt.Sprintf(`{"tools":[1,2,3,4],"nextCursor":"%d"}`, n) }, 10,
			"more items than"},
		{"millions of items", func(int) string { return `{"tools":[` + strings.Repeat("0,", 1<<20) + `0]}` }, 10,
			"more items than"},
		{"too many bytes on many pages", func(n int) string {
			return fmt.Sprintf(`{"tools":["x"],"other":"%s","nextCursor":"%d"}`, strings.Repeat("x", 1<<20), n)
		}, 3, "more bytes than"},
		{"too many bytes on one page", func(int) string {
			return `{"tools":["` + strings.Repeat("x", 2<<20) + `","` + strings.Repeat("y", 2<<20) + `"]}`
		}, 1, "more bytes than"},
		{"no array", func(int) string { return `{"tools":{"a":1}}` }, 0, "not an array"},
		{"a cursor that is a number", func(int) string { return `{"tools":[1],"nextCursor":5}` }, 1, "not a string"},
		{"a huge cursor", func(int) string { return `{"tools":[1],"nextCursor":"` + strings.Repeat("x", 1<<20) + `"}` },
			1, "not a string"},
		{"fails on the second page", func(n int) string {
			if n == 1 {
				return `[]`
			}
			return `{"tools":[1],"nextCursor":"a"}`
		}, 1, "not an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			s := connected(t, programs(t, nil, after(func(p *program) {
				for n := 0; ; n++ {
					m, ok := p.next()
					if !ok {
						return
					}
					p.answer(m, tt.page(n))
				}
			})), Options{StatefulFirst: true, MaxList: 3 << 20})
			got, err := s.List(t.Context(), "tools/list", "tools", 10)
			if len(got) != tt.want {
				t.Errorf("%d items, want %d", len(got), tt.want)
			}
			if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("List: %v, want %q", err, tt.problem)
			}
			if strings.HasPrefix(tt.problem, "more") && !errors.Is(err, transport.ErrTooLarge) {
				t.Errorf("%v is not transport.ErrTooLarge", err)
			}
		})
	}
}

func TestValidTool(t *testing.T) {
	with := func(properties string) string {
		return `{"name":"t","inputSchema":{"type":"object","properties":{` + properties + `}}}`
	}
	deep := strings.Repeat(`{"properties":{"a":`, 1000) + "{}" + strings.Repeat("}}", 1000)
	tests := []struct{ tool, problem string }{
		{with(`"a":{"type":"string","x-mcp-header":"Region"}`), ""},
		{with(`"a":{"properties":{"b":{"type":"integer","x-mcp-header":"B"}}},"c":{"type":"boolean","x-mcp-header":"C"}`), ""},
		{with(`"a":true,"b":{"type":["string","null"]}`), ""},
		{`{"name":"t"}`, ""},
		{`{"name":"t","inputSchema":7}`, ""},
		{`{"name":"t","inputSchema":` + deep + `}`, ""},
		{`{"name":"t","inputSchema":"` + strings.Repeat("x", 1<<20) + `"}`, "over 1048576 bytes"},
		{`null`, "not an object"},
		{`{"inputSchema":{}}`, "not an object with a name"},
		{with(`"a":{"type":"string","x-mcp-header":""}`), "1 to 128"},
		{with(`"a":{"type":"string","x-mcp-header":5}`), "1 to 128"},
		{with(`"a":{"type":"string","x-mcp-header":"My Region"}`), "not a name"},
		{with(`"a":{"type":"string","x-mcp-header":"Région"}`), "not a name"},
		{with(`"a":{"type":"string","x-mcp-header":"Re\r\nEvil: x"}`), "not a name"},
		{with(`"a":{"type":"number","x-mcp-header":"N"}`), "at a type"},
		{with(`"a":{"type":"object","x-mcp-header":"N"}`), "at a type"},
		{with(`"a":{"x-mcp-header":"N"}`), "at a type"},
		{with(`"a":{"type":"string","x-mcp-header":"N"},"b":{"properties":{"c":{"type":"string","x-mcp-header":"n"}}}`),
			"two arguments"},
		{with(`"a":{"type":"string","\u0078-mcp-header":""}`), "1 to 128"},
	}
	for _, tt := range tests {
		err := CheckTool(json.RawMessage(tt.tool))
		if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("ValidTool(%.100s): %v, want %q", tt.tool, err, tt.problem)
		}
	}
}

func TestParamHeaders(t *testing.T) {
	schema := json.RawMessage(`{"properties":{"s":{"type":"string","x-mcp-header":"S"},"o":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"b":{"type":"boolean","x-mcp-header":"B"},"other":{"type":"string"}}}`)
	tests := []struct{ arguments, s, n, b string }{
		{`{"s":"us-west1","o":{"n":42},"b":false,"other":"x"}`, "us-west1", "42", "false"},
		{`{"s":"a b","o":{"n":-9007199254740991}}`, "a b", "-9007199254740991", ""},
		{`{"s":" a","o":{"n":9007199254740992}}`, "=?base64?IGE=?=", "", ""},
		{`{"s":"日本","o":{"n":1.5}}`, "=?base64?5pel5pys?=", "", ""},
		{`{"s":"a\r\nb","o":{"n":1e3}}`, "=?base64?YQ0KYg==?=", "1000", ""},
		{`{"s":"=?base64?eA==?=","o":7}`, "=?base64?PT9iYXNlNjQ/ZUE9PT89?=", "", ""},
		{`{"s":null,"o":{"n":1e300},"b":"true"}`, "", "", "true"},
		{`[]`, "", "", ""},
	}
	for _, tt := range tests {
		h := paramHeaders(schema, json.RawMessage(tt.arguments))
		if s, n, b := h.Get("Mcp-Param-S"), h.Get("Mcp-Param-N"), h.Get("Mcp-Param-B"); s != tt.s || n != tt.n ||
			b != tt.b {
			t.Errorf("%s: %q %q %q", tt.arguments, s, n, b)
		}
	}
	if h := paramHeaders(json.RawMessage(`{"properties":{"s":{"type":"string","x-mcp-header":""}}}`),
		json.RawMessage(`{"s":"x"}`)); len(h) != 0 {
		t.Errorf("%v", h)
	}
}
