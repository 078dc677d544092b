package session

import "sync"

// gone remembers of sessions that were removed why they were: the next call for one is told. A server that starts again
// knows nothing of them.
type gone struct {
	mu    sync.Mutex
	byID  map[string]goneSession
	order []string // ids, the oldest first
}

type goneSession struct{ owner, why string }

// maxGone bounds the sessions that are remembered, of all principals.
const maxGone = 4096

// add notes why a session was removed, in words that can end a sentence.
func (g *gone) add(id, owner, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byID == nil {
		g.byID = map[string]goneSession{}
	}
	if len(g.order) == maxGone {
		delete(g.byID, g.order[0])
		g.order = g.order[1:]
	}
	g.byID[id], g.order = goneSession{owner, why}, append(g.order, id)
}

// why returns why the owner's session of that id was removed; empty: it is not known, or there was none.
func (g *gone) why(owner, id string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.byID[id]; s.owner == owner {
		return s.why
	}
	return ""
}
