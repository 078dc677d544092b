package api

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

// foreign is a third-party source that notes that it was asked: the real one
// starts servers then.
type foreign struct {
	tool.External
	asked atomic.Int32
}

func (f *foreign) Tools(context.Context, auth.Principal) []tool.Tool {
	f.asked.Add(1)
	return []tool.Tool{{Name: "ext_internal-payroll_transfer_salary"}}
}
func (f *foreign) Find(auth.Principal, string) (tool.Callable, bool) {
	f.asked.Add(1)
	return tool.Callable{}, false
}

// What anyone may ask starts nothing, and names nothing of anyone's.
func TestHealthStartsNothing(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	third := &foreign{}
	e.Hub = hub.New(hub.Config{Sources: []tool.Source{who{}, third}, Ports: e.Hub.Ports})
	for _, path := range []string{"/", "/mcp", "/healthz", "/readyz"} {
		a := do(e.Handler(), "GET", path, "")
		if a.StatusCode != 200 || strings.Contains(a.body, "payroll") {
			t.Errorf("GET %s: %d %s", path, a.StatusCode, a.body)
		}
	}
	if n := third.asked.Load(); n > 0 {
		t.Errorf("third-party servers were asked %d times", n)
	}
	var names []string
	for _, n := range do(e.Handler(), "GET", "/", "").json()["available_tools"].([]any) {
		names = append(names, n.(string))
	}
	if !slices.Equal(names, []string{"get_sessions", "fails"}) {
		t.Errorf("the tools are %q", names)
	}
}
