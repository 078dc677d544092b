package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

// A panic becomes an internal error of its call, and is logged.
func TestPanics(t *testing.T) {
	var log bytes.Buffer
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		prompts: []tool.Item{{Key: "ext_p", Raw: json.RawMessage(`{"name":"ext_p"}`)}},
		call:    func(context.Context, tool.Call) (*tool.Result, error) { panic("a third-party tool") },
		proxy:   func(context.Context, tool.Request) (json.RawMessage, error) { panic("a request") }}
	own := fakeBuiltin{call: func() (*tool.Result, error) { panic("a tool of Sandlot") }}
	g := New(Config{Hub: hub.New(hub.Config{Sources: []tool.Source{own, external}}),
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	for what, got := range map[string]string{
		"own tool":  ask(g, "tools/call", "own", `"name":"own","arguments":{}`),
		"tool":      ask(g, "tools/call", "ext_t", `"name":"ext_t","arguments":{}`),
		"prompt":    ask(g, "prompts/get", "ext_p", `"name":"ext_p"`),
		"resource":  ask(g, "resources/read", "x://y", `"uri":"x://y"`),
		"bare call": askBare(g, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"own"}}`),
	} {
		if !strings.Contains(got, `"code":-32603`) || !strings.Contains(got, "something went wrong inside Sandlot") {
			t.Errorf("%s: %s", what, got)
		}
	}
	id := begin(t, g, local)
	if w := post(g, local, id, callOf("2", "ext_t", "{}")); !strings.Contains(w.Body.String(), "-32603") {
		t.Errorf("stateful: %s", w.Body)
	}
	external.list = func() { panic("a list") }
	g.SyncFeatures("")
	external.list = nil
	if n := strings.Count(log.String(), "msg=panic"); n != 7 || !strings.Contains(log.String(), "guard_test.go") {
		t.Errorf("%d panics logged:\n%s", n, &log)
	}
}

// Clients that send bare calls get the error of a third-party server unchanged.
func TestBareRefusal(t *testing.T) {
	g := newGateway(&fakeExternal{call: func(context.Context, tool.Call) (*tool.Result, error) {
		return nil, &tool.ExternalError{Code: -32099, Message: "path must be absolute",
			Data: json.RawMessage(`{"big":12345678901234567890}`)}
	}})
	got := askBare(g, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_t"}}`)
	for _, want := range []string{`"code":-32099`, `"message":"path must be absolute"`,
		`"data":{"big":12345678901234567890}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
}
