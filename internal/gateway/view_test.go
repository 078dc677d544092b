package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// listed are the names of a list that a client of one address gets.
func listed(t *testing.T, g *Gateway, wanted toolview.Mode, list string) (names []string) {
	t.Helper()
	e, release := g.acquire(endpointKey{auth.Local, wanted})
	defer release()
	g.sync(e)
	e.external.syncMu.Lock()
	defer e.external.syncMu.Unlock()
	for k := range e.external.listed {
		if k.method == list {
			names = append(names, k.key)
		}
	}
	slices.Sort(names)
	return names
}

// Views multiply the endpoints of a token, and are bounded with them.
func TestViewsAreBounded(t *testing.T) {
	g := newGateway(fakeBuiltin{}, &fakeExternal{tools: manyTools(3)})
	defer g.Close()
	for n := range 2 * maxUserEndpoints {
		for _, m := range append(toolview.Modes, "") {
			p := auth.User("ann", false)
			p.Token = fmt.Sprint("tok_", n)
			_, release := g.acquire(endpointKey{p, m})
			release()
		}
	}
	if n := len(g.endpoints); n > maxUserEndpoints {
		t.Errorf("there are %d endpoints", n)
	}
}

// Tools that are not listed are used all the same, in each view, with and without the fast path. Prompts and resources
// are listed in each.
func TestUnlistedIsUsed(t *testing.T) {
	item := func(key, member string) []tool.Item {
		return []tool.Item{{Key: key, Raw: json.RawMessage(fmt.Sprintf(`{%q:%q,"name":%q}`, member, key, key))}}
	}
	external := &fakeExternal{tools: manyTools(3), prompts: item("ext_p", "name"), resources: item("file:///r", "uri"),
		templates: item("file:///{t}", "uriTemplate")}
	for _, m := range toolview.Modes {
		g := newGateway(fakeBuiltin{}, external)
		g.Views.Set(toolview.Settings{Limit: 1 << 20})
		want := 3
		if m == toolview.Search || m == toolview.Code {
			want = 0
		}
		for list, n := range map[string]int{"tools/call": want, "prompts/get": 1, "resources/read": 1,
			"resources/templates": 1} {
			if names := listed(t, g, m, list); len(names) != n {
				t.Errorf("%s: %s lists %q", m, list, names)
			}
		}
		e, release := g.acquire(endpointKey{auth.Local, m})
		for _, k := range []featureKey{{"tools/call", "ext_s_tool_00001"}, {"prompts/get", "ext_p"},
			{"resources/read", "file:///r"}} {
			if !g.isExternal(t.Context(), e, k.method, k.key) {
				t.Errorf("%s: %s %s cannot be used", m, k.method, k.key)
			}
		}
		release()
		g.Close()
	}
}

// A bad view in an address is refused, and says which there are.
func TestBadView(t *testing.T) {
	g := newGateway(fakeBuiltin{})
	defer g.Close()
	r := httptest.NewRequest("POST", "/mcp?tools=none", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), auth.Local)))
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "all, search, code, auto") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Clients use tools while the settings change, and lists follow.
func TestViewsChangeMeanwhile(t *testing.T) {
	g := newGateway(fakeBuiltin{}, &fakeExternal{tools: manyTools(40)})
	defer g.Close()
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 50 {
				g.used(auth.Local, fmt.Sprintf("ext_s_tool_%05d", (n*10+i)%40))
				listed(t, g, "", "tools/call")
			}
		})
	}
	all.Go(func() {
		for i := range 50 {
			g.Views.Set(toolview.Settings{Limit: i % 2 * 1_000_000})
			g.SyncViews()
		}
	})
	all.Wait()
	g.Views.Set(toolview.Settings{Mode: toolview.Auto, Limit: 1})
	g.SyncViews()
	if names := listed(t, g, "", "tools/call"); len(names) != 10 {
		t.Errorf("of the tools that were used, %q are listed", names)
	}
	g.Views.Set(toolview.Settings{Mode: toolview.All})
	g.SyncViews()
	if names := listed(t, g, "", "tools/call"); len(names) != 40 {
		t.Errorf("%d tools are listed", len(names))
	}
}
