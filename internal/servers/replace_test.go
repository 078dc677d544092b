package servers

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/spec"
)

// After a connection could not be replaced, the previous one offers its tools again, and clients are
// notified of that.
func TestFailedReplaceIsAnnounced(t *testing.T) {
	st, counts := &memStore{}, make(chan int, 100)
	var servers *Servers
	servers = newServers(t, st, func(c *Config) {
		c.Dial = func(context.Context, auth.Principal, bool, string, string) (net.Conn, error) {
			return nil, errors.New("connection refused")
		}
		c.OnChange = func(string) { counts <- len(servers.viewOf(P).List) }
	})
	s := own(servers, P, "x", "aaaaaa", onhost("x", script(t, pyLoop), nil))
	if err := s.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := func(want int, when string) {
		for timeout := time.After(10 * time.Second); ; {
			select {
			case n := <-counts:
				if n == want {
					return
				}
			case <-timeout:
				t.Errorf("%s, clients are not notified that there are %d tools", when, want)
				return
			}
		}
	}
	next(1, "after the start")
	st.set(func(r Record) {
		if r.URL == "" { // the roll back: before it, the tool is gone
			st.set(nil)
			next(0, "before the roll back")
		}
	})
	_, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", Kind: spec.HTTP,
		URL: "http://server.example/mcp"})
	if err == nil {
		t.Fatal("a server that cannot be reached was connected")
	}
	next(1, "after the roll back")
}
