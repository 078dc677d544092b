package test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// neighbour is a user beside others, who by turns runs code and calls a tool of a third-party server, and measures how
// long that takes. Each call has to go well.
type neighbour struct {
	t    *testing.T
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	now    string // what goes on beside the calls
	phases []string
	took   map[string]map[string][]time.Duration // by phase and tool
}

// neighbour connects a server for a user, and starts the calls. They end with the test, or before.
func (s *server) neighbour(t *testing.T, token string) *neighbour {
	t.Helper()
	s.put(token, "odd.py")
	c := s.connect(older, token, nil)
	say := c.odd("odd", "plain", nil).exposed(t, "say")
	c.call(say, nil)
	id := c.code("new", "1").session()
	ctx, cancel := context.WithCancel(context.Background())
	n := &neighbour{t: t, stop: cancel, took: map[string]map[string][]time.Duration{}}
	n.phase("first")
	n.work.Go(func() {
		for ctx.Err() == nil && n.make(c, "execute_code", args{"code": "6*7", "session_id": id}, "42") &&
			n.make(c, say, args{"text": "here"}, "odd: here") && n.ping(c) {
			time.Sleep(breath)
		}
	})
	t.Cleanup(n.end)
	return n
}

// make makes one call, and reports whether it went well.
func (n *neighbour) make(c *client, tool string, a args, want string) bool {
	n.mu.Lock()
	phase := n.now
	n.mu.Unlock()
	ctx, done := context.WithTimeout(context.Background(), 10*time.Second)
	defer done()
	began := time.Now()
	r, err := c.try(ctx, tool, a)
	if err != nil || r.Text != want {
		n.t.Errorf("a neighbour's call of %s, %s: %+v, %v", tool, phase, r, err)
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note(phase, tool, time.Since(began))
	return true
}

// ping asks the server for a sign of life, which takes nothing but the server.
func (n *neighbour) ping(c *client) bool {
	n.mu.Lock()
	phase := n.now
	n.mu.Unlock()
	began := time.Now()
	if err := c.Ping(context.Background(), nil); err != nil {
		n.t.Errorf("a neighbour's ping, %s: %v", phase, err)
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note(phase, "ping", time.Since(began))
	return true
}

// note notes how long something took. The caller holds n.mu.
func (n *neighbour) note(phase, what string, took time.Duration) {
	if n.took[phase] == nil {
		n.took[phase] = map[string][]time.Duration{}
	}
	n.took[phase][what] = append(n.took[phase][what], took)
}

// phase says what goes on from now on.
func (n *neighbour) phase(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.phases, what) {
		n.phases = append(n.phases, what)
	}
	n.now = what
}

// end ends the calls, and logs how long they took in each phase.
func (n *neighbour) end() {
	n.stop()
	n.work.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, phase := range n.phases {
		for tool, took := range n.took[phase] {
			slices.Sort(took)
			n.t.Logf("a neighbour, %s: %d calls of %s: P50 %v, P99 %v, longest %v", phase, len(took), tool,
				took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
		}
	}
	n.phases = nil
}
