package rpc

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
	"sandlot/internal/revision/schematest"
	"sandlot/internal/servers/catalog"
)

// validResults are valid results, by the definition in MCP's schemas.
var validResults = map[string]string{
	"CallToolResult": `{"content":[
		{"type":"text","text":"t","annotations":{"audience":["user"],"priority":0.5,"lastModified":"2026-01-01T00:00:00Z"},"_meta":{"k":1}},
		{"type":"image","data":"QUFB","mimeType":"image/png"},{"type":"audio","data":"QUFB","mimeType":"audio/wav"},
		{"type":"resource_link","uri":"file:///x","name":"n","title":"t","description":"d","mimeType":"a/b","size":3,
			"icons":[{"src":"data:,","sizes":["1x1"],"theme":"dark"}]},
		{"type":"resource","resource":{"uri":"mem://a","blob":"AAEC","mimeType":"a/b"}},
		{"type":"resource","resource":{"uri":"mem://b","text":"t","_meta":{"q":1}},"annotations":{"priority":1}}],
		"structuredContent":{"a":1},"isError":false,"_meta":{"m":1}}`,
	"GetPromptResult": `{"description":"d","messages":[{"role":"user","content":{"type":"text","text":"t"}},
		{"role":"assistant","content":{"type":"resource","resource":{"uri":"mem://b","text":"t"}}},
		{"role":"user","content":{"type":"image","data":"QUFB","mimeType":"image/png"}}],"_meta":{"m":1}}`,
	"ReadResourceResult": `{"contents":[{"uri":"mem://a","blob":"AAEC","mimeType":"a/b"},{"uri":"mem://b","text":"t","_meta":{}}],
		"ttlMs":5,"cacheScope":"public"}`,
	"CompleteResult": `{"completion":{"values":["a","b"],"total":2,"hasMore":false}}`,
}

// methodsOf are the methods of the results.
var methodsOf = map[string]string{"CallToolResult": "tools/call", "GetPromptResult": "prompts/get",
	"ReadResourceResult": "resources/read", "CompleteResult": "completion/complete"}

// checkResult fails the test if what clients get of a third-party server's result is not valid in some revision.
func checkResult(t *testing.T, definition string, raw json.RawMessage) {
	t.Helper()
	var safe json.RawMessage
	var err error
	if definition == "CallToolResult" {
		safe, _, err = catalog.Result(t.Context(), raw, false)
	} else {
		safe, err = catalog.OtherResult(methodsOf[definition], "mem://read", raw)
	}
	if err != nil {
		return // the client gets a fault
	}
	for _, version := range schematest.Revisions {
		shown := ConformResult(safe, version)
		checkShown(t, version, definition, raw, shown)
		if definition == "CallToolResult" {
			checkShown(t, version, definition, raw, WithJSONAsData(WithoutEmptyText(shown))) // for Gemini CLI
		}
	}
}

// checkShown fails the test if a result, which comes of a server's, is not valid in a revision.
func checkShown(t *testing.T, version, definition string, raw, shown json.RawMessage) {
	t.Helper()
	stateless := revision.IsStateless(version)
	r, err := ReadRawResult(shown, stateless)
	if err != nil {
		t.Fatalf("%s: %s: %v", version, raw, err)
	}
	if definition == "ReadResourceResult" && stateless {
		r.SetDefaults(Object{"ttlMs": json.RawMessage("0")})
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatalf("%s: %s: %v", version, raw, err)
	}
	if string(r.Fields["resultType"]) == `"input_required"` {
		return
	}
	if err := schematest.Validate(version, definition, b); err != nil {
		t.Errorf("of %s\ncomes %s\n%v", raw, b, err)
	}
}

// TestResultsStayValid: whatever one member of a result is, clients of each revision can read it.
func TestResultsStayValid(t *testing.T) {
	for definition, valid := range validResults {
		for _, raw := range schematest.Mutations(valid) {
			if checkResult(t, definition, raw); t.Failed() {
				return
			}
		}
	}
	for _, raw := range []string{`{}`, `{"content":null,"isError":null,"structuredContent":null}`, `{"content":"plain"}`,
		`{"content":[{"type":"tool_use","id":"1","name":"n","input":{}}]}`, `{"content":[],"structuredContent":[1,2]}`,
		`{"content":[{"type":"text","text":"x"}],"structuredContent":5}`, `{"structuredContent":[]}`,
		`{"content":["a",5,null,[1]]}`, `{"content":[{"text":"no type"}]}`, `{"content":{"type":"text","text":"one"}}`,
		`{"content":[{"type":"resource","resource":{"uri":"a b","text":"t"}}]}`,
		`{"content":[{"type":"resource","resource":{"uri":"a:b","text":"t","blob":null,"mimeType":null}}]}`} {
		checkResult(t, "CallToolResult", json.RawMessage(raw))
	}
	for definition := range methodsOf {
		checkResult(t, definition, json.RawMessage(`{}`))
	}
}

func FuzzResults(f *testing.F) {
	for definition, valid := range validResults {
		f.Add(definition, []byte(valid))
	}
	f.Fuzz(func(t *testing.T, definition string, raw []byte) {
		if methodsOf[definition] != "" && json.Valid(raw) {
			checkResult(t, definition, raw)
		}
	})
}

// TestResultsKeepTheirText: what is repaired says the same.
func TestResultsKeepTheirText(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content":"it failed","isError":"true"}`:                                   `{"content":[{"text":"it failed","type":"text"}],"isError":true}`,
		`{"content":["a",5]}`:                                                        `{"content":[{"text":"a","type":"text"},{"text":"5","type":"text"}]}`,
		`{"content":null,"isError":null,"structuredContent":null}`:                   `{"content":[]}`,
		`{"content":[{"type":"text","text":"t","annotations":null}],"isError":true}`: `{"content":[{"text":"t","type":"text"}],"isError":true}`,
		`{"content":[],"structuredContent":[1,2]}`:                                   `{"content":[{"text":"[1,2]","type":"text"}]}`,
		`{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":[1.0]}}`:   `{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":[1.0]}}`,
	} {
		safe, _, err := catalog.Result(t.Context(), json.RawMessage(raw), false)
		if got := string(ConformResult(safe, revision.Stateful)); err != nil || got != want {
			t.Errorf("%s: %s, want %s; %v", raw, got, want, err)
		}
	}
	link := json.RawMessage(`{"content":[{"type":"resource_link","uri":"a:b","name":"n"},{"type":"audio","data":"QUFB","mimeType":"audio/wav"}]}`)
	if got := string(ConformResult(link, "2025-03-26")); !strings.Contains(got, "[resource a:b] n") || !strings.Contains(got, `"audio"`) {
		t.Errorf("a link for the revision without links: %s", got)
	}
	if got := ConformResult(link, "2025-11-25"); string(got) != string(link) {
		t.Errorf("a link: %s", got)
	}
}

// TestNoEmptyText: some providers of models refuse empty blocks.
func TestNoEmptyText(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content":[{"type":"text","text":""}]}`:                              `{"content":[{"text":"(no output)","type":"text"}]}`,
		`{"content":[{"type":"text","text":""},{"type":"text","text":"a"}]}`:   `{"content":[{"type":"text","text":"a"}]}`,
		`{"content":[],"structuredContent":{"text":""}}`:                       `{"content":[],"structuredContent":{"text":""}}`,
		`{"content":[{"type":"resource","resource":{"uri":"a:b","text":""}}]}`: `{"content":[{"type":"resource","resource":{"uri":"a:b","text":""}}]}`,
	} {
		if got := string(WithoutEmptyText(json.RawMessage(raw))); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}

// TestJSONTextAsData: a first text that is JSON and no object gets an object around it, as data; the text stays.
func TestJSONTextAsData(t *testing.T) {
	text := func(s string) string {
		b, _ := json.Marshal(map[string]string{"type": "text", "text": s})
		return string(b)
	}
	const image = `{"type":"image","data":"QUFB","mimeType":"image/png"}`
	for _, value := range []string{`42`, `-1.50`, `"x"`, `[1]`, `[]`, `null`, `true`, " [1, {\"a\": 2}]\n", `"\u003c"`} {
		for _, content := range []string{text(value), text(value) + "," + text("more"), image + "," + text(value)} {
			raw := json.RawMessage(`{"content":[` + content + `],"isError":true}`)
			var got struct {
				StructuredContent struct{ Result json.RawMessage }
				Content           json.RawMessage
				IsError           bool
			}
			err := json.Unmarshal(WithJSONAsData(raw), &got)
			var want bytes.Buffer
			if json.Compact(&want, []byte(value)) != nil || err != nil || string(got.StructuredContent.Result) != want.String() ||
				string(got.Content) != "["+content+"]" || !got.IsError {
				t.Errorf("%q: %s, %v", value, WithJSONAsData(raw), err)
			}
		}
	}
	for _, raw := range []string{
		`{"content":[` + text(`{"a":1}`) + `]}`,
		`{"content":[` + text(`42 apples`) + `]}`,
		`{"content":[` + text(`nul`) + `,` + text(`42`) + `]}`,
		`{"content":[` + text(` `) + `]}`,
		`{"content":[` + text(`42`) + `],"structuredContent":{}}`,
		`{"content":[` + text(`42`) + `],"structuredContent":42}`,
		`{"content":[` + image + `]}`,
		`{"content":[]}`,
		`{}`,
	} {
		if got := string(WithJSONAsData(json.RawMessage(raw))); got != raw {
			t.Errorf("%s: %s", raw, got)
		}
	}
}

// TestListsAreOfTheirRevision: before 2026-07-28, results were objects.
func TestListsAreOfTheirRevision(t *testing.T) {
	array := json.RawMessage(`{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}`)
	if got := ConformTool(array, revision.Stateful); rawjson.Shared(got, "outputSchema")["outputSchema"] != nil {
		t.Errorf("%s", got)
	}
	if got := ConformTool(array, revision.Stateless); string(got) != string(array) {
		t.Errorf("%s", got)
	}
}
