package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandlot/internal/api/metric"
	"sandlot/internal/auth"
)

func TestWhoMayReadMetrics(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	if a := do(e.Handler(), "GET", "/metrics", ""); a.StatusCode != 200 {
		t.Errorf("the local user on loopback: %d", a.StatusCode)
	}
	ann := e.token("ann")
	_, v, err := auth.Issue(t.Context(), e.tokens, "prometheus", false, 0, auth.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	isProblem(t, do(e.Handler(), "GET", "/metrics", "", "Authorization", ann), 403, "FORBIDDEN")
	isProblem(t, do(e.SocketHandler(), "GET", "/metrics", "", "Authorization", ann), 403, "FORBIDDEN")
	if a := do(e.Handler(), "GET", "/metrics", ""); a.StatusCode != 401 {
		t.Errorf("nobody: %d", a.StatusCode)
	}
	if a := do(e.Handler(), "GET", "/metrics", "", "Authorization", "Bearer "+v.Reveal()); a.StatusCode != 200 ||
		!strings.Contains(a.body, "go_goroutines") {
		t.Errorf("a token with the right: %d", a.StatusCode)
	}
	if a := do(e.SocketHandler(), "GET", "/metrics", ""); a.StatusCode != 200 {
		t.Errorf("the owner's socket: %d", a.StatusCode)
	}
	// A user who is called local is not the local user.
	isProblem(t, do(e.Handler(), "GET", "/metrics", "", "Authorization", e.token("local2")), 403, "FORBIDDEN")
	if (auth.Principal{ID: auth.Local.ID, Authenticated: true}).HasRole(auth.Metrics) ||
		(auth.Principal{}).HasRole(auth.Metrics) {
		t.Error("somebody else counts as the local user")
	}
}

// What a server in a sandbox answers makes no more series than there are statuses.
func TestSeriesAreBounded(t *testing.T) {
	m := metric.New(func() int { return 0 }, func() map[string]int { return nil }, nil)
	for code := 100; code < 1000; code++ {
		m.Request("GET", code)
	}
	for n := range 100 {
		m.Request(fmt.Sprint("M", n), 200)
		m.Call(metric.External, "ok", time.Millisecond)
	}
	all, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if n := len(f.GetMetric()); strings.HasPrefix(f.GetName(), "sandlot_") && n > 80 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
	}
}
