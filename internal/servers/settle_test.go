package servers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// TestSettle: when an operation that promises tools has its result, code in sandboxes has been given the tools: the
// change is announced before, and not at some time after that.
func TestSettle(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	var servers *Servers
	servers = newServers(t, &memStore{}, func(c *Config) {
		c.OnChange = func(string) {} // as late as it likes
		c.Changing = func(owner string) {
			n := len(servers.viewOf(P).List)
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, fmt.Sprintf("%s changes, %d", owner, n))
		}
		c.Settle = func(_ context.Context, owner string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, owner+" settles")
		}
	})
	own(servers, P, "x", "aaaaaa", onhost("x", script(t, pyLoop), nil))
	for what, do := range map[string]func() error{
		"restarting": func() error { _, err := servers.Restart(t.Context(), P, "x", nil, nil, nil); return err },
		"approving":  func() error { _, err := servers.Approve(t.Context(), P, "x", nil); return err },
	} {
		mu.Lock()
		heard = nil
		mu.Unlock()
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
		mu.Lock()
		all := slices.Clone(heard)
		mu.Unlock()
		announced, settled := slices.Index(all, P.ID+" changes, 1"), slices.Index(all, P.ID+" settles")
		if announced < 0 || settled < announced {
			t.Errorf("%s: %q", what, all)
		}
	}
	mu.Lock()
	heard = nil
	mu.Unlock()
	if _, err := servers.Restart(t.Context(), P, "none", nil, nil, nil); err == nil || len(heard) > 0 {
		t.Errorf("%v, %q", err, heard)
	}
}
