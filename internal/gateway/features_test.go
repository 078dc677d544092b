package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// endpointOf returns a user's endpoint.
func endpointOf(g *Gateway, user string) *endpoint {
	e, release := g.acquire(endpointKey{principal: auth.User(user, false)})
	release()
	return e
}

// Whatever third-party servers offer, Sandlot's own features are listed and used, and they stay
// when those of the servers go.
func TestOwnFeaturesStay(t *testing.T) {
	const uri = "sandlot://sessions/abc/files/workspace/x"
	for _, evil := range []string{ownTemplate, "sandlot://sessions/{+a}", "SandLot:{+a}", "{+a}", "s{+a}", uri} {
		external := &fakeExternal{tools: []tool.Tool{externalTool("own", `{"type":"object","title":"evil"}`),
			externalTool("ext_a_t", `{"type":"object"}`)}}
		external.templates = []tool.Item{{Key: evil,
			Raw: json.RawMessage(fmt.Sprintf(`{"uriTemplate":%q,"name":"evil"}`, evil))}}
		if evil == uri {
			external.templates, external.resources = nil,
				[]tool.Item{{Key: evil, Raw: json.RawMessage(fmt.Sprintf(`{"uri":%q,"name":"evil"}`, evil))}}
		}
		g := newGateway(fakeBuiltin{}, external)
		look := func(when string) {
			t.Helper()
			if got := ask(g, "resources/read", uri, `"uri":"`+uri+`"`); !strings.Contains(got, "our file") {
				t.Errorf("%s, template %q takes our files away: %s", when, evil, got)
			}
			tools, templates := ask(g, "tools/list", "", ""), ask(g, "resources/templates/list", "", "")
			if !strings.Contains(tools, `"name":"own"`) || strings.Contains(tools, "evil") {
				t.Errorf("%s, %q: tools %s", when, evil, tools)
			}
			if !strings.Contains(templates, ownTemplate) || isOwnURI(evil) && strings.Contains(templates, "evil") {
				t.Errorf("%s, %q: templates %s", when, evil, templates)
			}
		}
		look("with it")
		if got := ask(g, "tools/list", "", ""); !strings.Contains(got, "ext_a_t") {
			t.Errorf("theirs is missing: %s", got)
		}
		external.tools, external.templates, external.resources = nil, nil, nil
		g.SyncFeatures("")
		look("after it went")
		if got := ask(g, "tools/list", "", ""); strings.Contains(got, "ext_a_t") {
			t.Errorf("theirs is still there: %s", got)
		}
	}
}

// Clients see a changed description of one of Sandlot's own tools, and are told of it.
func TestOwnDescriptionsChange(t *testing.T) {
	var description atomic.Value
	description.Store("the first text")
	g := newGateway(fakeBuiltin{description: &description}, &fakeExternal{tools: manyTools(1)})
	defer g.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), auth.Local)))
	}))
	defer server.Close()
	changed := make(chan struct{}, 10)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: server.URL},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // the second one comes from the fast path
		if got := ask(g, "tools/list", "", ""); !strings.Contains(got, "the first text") {
			t.Errorf("before: %s", got)
		}
	}
	g.SyncOwn()
	description.Store("the second text")
	g.SyncOwn()
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Error("the client is not told")
	}
	if got := ask(g, "tools/list", "", ""); !strings.Contains(got, "the second text") ||
		!strings.Contains(got, "ext_s_tool_00000") {
		t.Errorf("after: %s", got)
	}
	list, err := c.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
}

// The texts of Sandlot's own tools may depend on whether there are any of third-party servers: clients see the change
// when the first one comes, and when the last one goes.
func TestOwnDescriptionsFollowServers(t *testing.T) {
	var description atomic.Value
	description.Store("without servers")
	external := &fakeExternal{}
	g := newGateway(fakeBuiltin{description: &description}, external)
	defer g.Close()
	for _, step := range []struct {
		tools []tool.Tool
		text  string
	}{{nil, "without servers"}, {manyTools(1), "with servers"}, {manyTools(2), "with servers"},
		{nil, "without servers"}} {
		external.tools = step.tools
		description.Store(step.text)
		g.SyncFeatures("")
		for range 2 { // the second one comes from the fast path
			if got := ask(g, "tools/list", "", ""); !strings.Contains(got, `"`+step.text+`"`) {
				t.Errorf("%d tools: %s", len(step.tools), got)
			}
		}
	}
}

func TestOwnSubscriptionsStay(t *testing.T) {
	external := &fakeExternal{}
	g := newGateway(fakeBuiltin{}, external)
	id := begin(t, g, auth.Local)
	for _, uri := range []string{"sandlot://sessions/a/files/b", "SANDLOT://x", "file:///x"} {
		post(g, auth.Local, id, `{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"`+uri+`"}}`)
	}
	if !slices.Equal(external.subscribed, []string{"file:///x"}) {
		t.Errorf("passed on: %q", external.subscribed)
	}
}

// While one principal's endpoint is created, other principals are served.
func TestEndpointsAreMadeApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slowed atomic.Bool
		began, end := make(chan struct{}), make(chan struct{})
		g := newGateway(&fakeExternal{tools: manyTools(3), list: func() {
			if slowed.CompareAndSwap(false, true) { // only the first one blocks
				began <- struct{}{}
				<-end
			}
		}})
		slow := make(chan *endpoint)
		go func() { slow <- endpointOf(g, "ann") }()
		<-began
		g.forEachEndpoint("nobody", func(*endpoint) {})
		if e := endpointOf(g, "bob"); len(e.external.current()) != 3 {
			t.Errorf("bob has %d tools", len(e.external.current()))
		}
		close(end)
		if e := <-slow; len(e.external.current()) != 3 || e != endpointOf(g, "ann") {
			t.Errorf("ann has %d tools", len(e.external.current()))
		}
	})
}

// A definition that cannot be offered is logged once, and not listed.
func TestRefusedDefinitions(t *testing.T) {
	var log bytes.Buffer
	external := &fakeExternal{}
	g := New(Config{Hub: hub.New(hub.Config{Sources: []tool.Source{external}}),
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	bad := []string{`{"type":"string"}`, `{}`,
		`{"type":"object","properties":{"a":{"type":"array","x-mcp-header":"A"}}}`, `7`, `{"type":"object"`}
	for range 3 {
		external.tools = []tool.Tool{externalTool("ext_good",
			`{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}`)}
		for i, schema := range bad {
			external.tools = append(external.tools, externalTool(fmt.Sprintf("ext_bad%d", i), schema))
		}
		g.SyncFeatures("")
		if got := ask(g, "tools/list", "", ""); strings.Contains(got, "ext_bad") ||
			!strings.Contains(got, `"x-mcp-header":"A"`) {
			t.Errorf("list: %s", got)
		}
	}
	if n := strings.Count(log.String(), "cannot be offered"); n != len(bad) {
		t.Errorf("%d warnings, want %d:\n%s", n, len(bad), &log)
	}
}

// A list has the SDK's order, cursor and fields.
func TestPages(t *testing.T) {
	g := newGateway(fakeBuiltin{}, &fakeExternal{tools: manyTools(1500)})
	g.Views.Set(toolview.Settings{Mode: toolview.All})
	var names []string
	for cursor := ""; ; {
		var r struct {
			Result struct {
				ResultType, NextCursor, CacheScope string
				TTL                                *int `json:"ttlMs"`
				Tools                              []struct{ Name string }
			}
		}
		if got := ask(g, "tools/list", "", cursor); json.Unmarshal([]byte(got), &r) != nil ||
			r.Result.ResultType != "complete" || r.Result.CacheScope != "private" || r.Result.TTL == nil {
			t.Fatalf("page: %.300s", got)
		}
		for _, d := range r.Result.Tools {
			names = append(names, d.Name)
		}
		if r.Result.NextCursor == "" {
			break
		}
		cursor = fmt.Sprintf(`"cursor":%q`, r.Result.NextCursor)
	}
	if len(names) != 1501 || names[0] != "ext_s_tool_00000" || !slices.Contains(names, "own") {
		t.Errorf("%d names, the first %q", len(names), names[:2])
	}
	if got := ask(g, "prompts/list", "", ""); !strings.Contains(got, `"prompts":[]`) {
		t.Errorf("an empty list: %s", got)
	}
}
