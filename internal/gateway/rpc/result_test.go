package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/revision"
	"sandlot/internal/revision/schematest"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Programs take the first block for the output: the notice comes after it, in both forms, and each time the result is
// encoded.
func TestNoticeComesLast(t *testing.T) {
	r := &tool.Result{Content: []tool.Content{tool.Text("out"), tool.Text("value")}, Notice: "was asleep", Summary: "session_id: s"}
	for range 2 {
		b, err := json.Marshal(Result(r, toolview.Both).Content)
		if want := `[{"type":"text","text":"out"},{"type":"text","text":"\nvalue"},{"type":"text","text":"\nwas asleep"},` +
			`{"type":"text","text":"\nsession_id: s"}]`; err != nil || string(b) != want {
			t.Errorf("MCP: %s, %v", b, err)
		}
		b, err = json.Marshal(FlatResult(r)["content"])
		if want := `[{"text":"out","type":"text"},{"text":"value","type":"text"},{"text":"was asleep","type":"text"}]`; err != nil ||
			string(b) != want {
			t.Errorf("flat: %s, %v", b, err)
		}
	}
}

// TestBlocks: images come without the fields that some clients would show in their place, no block is empty, none is a
// link, and joined blocks stay apart.
func TestBlocks(t *testing.T) {
	type fields struct {
		A int `json:"a"`
	}
	image := tool.Content{Image: &tool.Blob{MIME: "image/png", Data: []byte("x")}}
	html := tool.Content{Resource: &tool.Resource{URI: "sandlot://output/0", MIME: "text/html", Text: "<b>"}}
	link := tool.Content{Link: &tool.Link{URI: "sandlot://f", Name: "f", Description: "The whole stdout, 5 bytes"}}
	for name, tt := range map[string]struct {
		r    tool.Result
		form toolview.Results
		want string
	}{
		"an image": {tool.Result{Content: []tool.Content{image}, Fields: fields{1}, Summary: "s"}, toolview.Both,
			`{"content":[{"type":"image","mimeType":"image/png","data":"eA=="},{"type":"text","text":"s"}]}`},
		"an image as data": {tool.Result{Content: []tool.Content{tool.Text("t"), image}, Fields: fields{1}}, toolview.Data,
			`{"content":[{"type":"text","text":"t"},{"type":"image","mimeType":"image/png","data":"eA=="}]}`},
		"HTML": {tool.Result{Content: []tool.Content{html}, Fields: fields{1}}, toolview.Both,
			`{"content":[{"type":"resource","resource":{"uri":"sandlot://output/0","mimeType":"text/html","text":"\u003cb\u003e"}}]}`},
		"silence": {tool.Result{Content: []tool.Content{tool.Text("")}, Fields: fields{1}, Summary: "s"}, toolview.Both,
			`{"content":[{"type":"text","text":"s"}],"structuredContent":{"a":1}}`},
		"nothing": {tool.Result{Content: []tool.Content{tool.Text("")}}, toolview.Both,
			`{"content":[{"type":"text","text":"(no output)"}]}`},
		"a link": {tool.Result{Content: []tool.Content{tool.Text("t"), link}}, toolview.Text,
			`{"content":[{"type":"text","text":"t\n[The whole stdout, 5 bytes: the resource sandlot://f]"}]}`},
		"text for models": {tool.Result{Content: []tool.Content{tool.Text("t"), tool.Text("v")}, Fields: fields{1}, Summary: "s"},
			toolview.Text, `{"content":[{"type":"text","text":"t\nv\ns"}]}`},
		"text around an image": {tool.Result{Content: []tool.Content{tool.Text("t"), image, tool.Text("v")}, Summary: "s"},
			toolview.Text, `{"content":[{"type":"text","text":"t"},{"type":"image","mimeType":"image/png","data":"eA=="},` +
				`{"type":"text","text":"\nv\ns"}]}`},
		"a number and an image": {tool.Result{Content: []tool.Content{tool.Text("42"), image}, Summary: "s"}, toolview.Both,
			`{"content":[{"type":"text","text":"42\ns"},{"type":"image","mimeType":"image/png","data":"eA=="}]}`},
		"a list, a text and an image": {tool.Result{Content: []tool.Content{tool.Text("[1]\n"), image, tool.Text("v")},
			Fields: fields{1}, Summary: "s"}, toolview.Text,
			`{"content":[{"type":"text","text":"[1]\n\nv\ns"},{"type":"image","mimeType":"image/png","data":"eA=="}]}`},
		"an object and an image": {tool.Result{Content: []tool.Content{tool.Text("{}"), image}, Summary: "s"}, toolview.Both,
			`{"content":[{"type":"text","text":"{}"},{"type":"image","mimeType":"image/png","data":"eA=="},{"type":"text","text":"\ns"}]}`},
		"a number with fields": {tool.Result{Content: []tool.Content{tool.Text("42")}, Fields: fields{1}, Summary: "s"},
			toolview.Both, `{"content":[{"type":"text","text":"42"},{"type":"text","text":"\ns"}],"structuredContent":{"a":1}}`},
		"a link that the text has": {tool.Result{Content: []tool.Content{tool.Text("see sandlot://f"), link}}, toolview.Text,
			`{"content":[{"type":"text","text":"see sandlot://f"}]}`},
		"a failure as data": {tool.Result{Content: []tool.Content{tool.Text("t")}, Fields: fields{1}, IsError: true}, toolview.Data,
			`{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":1},"isError":true}`},
		"data alone": {tool.Result{Content: []tool.Content{tool.Text("t")}, Fields: fields{1}}, toolview.Data,
			`{"content":[],"structuredContent":{"a":1}}`},
	} {
		b, err := json.Marshal(Result(&tt.r, tt.form))
		if err != nil || string(b) != tt.want {
			t.Errorf("%s:\n%s, want\n%s; %v", name, b, tt.want, err)
		}
		for _, version := range schematest.Revisions {
			if err := schematest.Validate(version, "CallToolResult", b); err != nil && !revision.IsStateless(version) {
				t.Errorf("%s: %s: %v", name, b, err)
			}
		}
	}
	flat, err := json.Marshal(FlatResult(&tool.Result{Content: []tool.Content{tool.Text(""), link}})["content"])
	if want := `[{"text":"","type":"text"},{"text":"[The whole stdout, 5 bytes: the resource sandlot://f]","type":"text"}]`; err != nil ||
		string(flat) != want {
		t.Errorf("flat: %s, %v", flat, err)
	}
}

// TestCallersMistakesAreNoWarnings: the log of the operator does not fill up with wrong paths.
func TestCallersMistakesAreNoWarnings(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil)) // from the level info on
	for _, kind := range []fault.Kind{fault.NotFound, fault.InvalidParameters, fault.FileAccess, fault.SessionNotFound,
		fault.ResourceLimit, fault.Forbidden} {
		LoggedError(t.Context(), logger, "own", fault.Wrap(kind, errors.New("a cause"), "a message"))
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	if LoggedError(t.Context(), logger, "own", fault.Wrap(fault.CodeExecution, errors.New("a cause"), "x")); !strings.Contains(
		log.String(), "level=WARN") {
		t.Errorf("logged: %s", &log)
	}
}
