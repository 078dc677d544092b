package toolcall

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/tool"
)

// file stands for the content of a file of the tree.
type file [sha256.Size]byte

func fileOf(f agent.ToolFile) (sum file) {
	h := sha256.New()
	fmt.Fprintf(h, "%t %q ", f.Executable, f.Link)
	h.Write(f.Data)
	h.Sum(sum[:0])
	return sum
}

// Changed makes the sandboxes of an owner get the tool tree again; of all owners, if it is empty.
func (cs *Calls) Changed(owner string) {
	if cs == nil {
		return
	}
	var boxes []*sandbox
	cs.mu.Lock()
	for of, o := range cs.owners {
		if owner == "" || of == owner {
			o.changes++
			for s := range o.boxes {
				boxes = append(boxes, s)
			}
		}
	}
	cs.mu.Unlock()
	for _, s := range boxes {
		s.updateTree()
	}
}

// Settle waits until the sandboxes of an owner have the tool trees that Changed has announced, for settleWait at most.
func (cs *Calls) Settle(ctx context.Context, owner string) {
	if cs == nil {
		return
	}
	var boxes []*sandbox
	cs.mu.Lock()
	if o := cs.owners[owner]; o != nil {
		boxes = slices.Collect(maps.Keys(o.boxes))
	}
	cs.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	for _, s := range boxes {
		s.treeMu.Lock()
		pending := s.pending
		s.treeMu.Unlock()
		if pending == nil {
			continue
		}
		select {
		case <-pending:
		case <-ctx.Done():
		}
	}
}

// updateTree gives the sandbox the tool tree of its owner, in the background.
func (s *sandbox) updateTree() {
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	if s.pending != nil {
		s.again = true
		return
	}
	pending := make(chan struct{})
	s.pending = pending
	s.calls.spawn(func() {
		defer close(pending)
		for more := true; more; {
			if err := s.pushTree(s.calls.ctx); err != nil {
				s.calls.Log.Warn("could not give a sandbox the tool tree; the next run tries again", "session",
					s.session, "error", err)
			}
			s.treeMu.Lock()
			more, s.again = s.again && s.calls.ctx.Err() == nil, false
			if !more {
				s.pending = nil
			}
			s.treeMu.Unlock()
		}
	})
}

// pushTree sends what has changed of the tree. Only updateTree calls it.
func (s *sandbox) pushTree(ctx context.Context) error {
	s.treeMu.Lock()
	before, had := s.tree, s.had
	s.treeMu.Unlock()
	if !had && !s.calls.Servers.Any(s.owner) {
		return nil
	}
	all, err := s.calls.treeOf(s.shared, s.owner)
	if err != nil {
		return err
	}
	now := map[string]file{}
	var changed []agent.ToolFile
	for _, f := range all {
		now[f.Path] = f.sum
		if old, ok := before[f.Path]; !ok || old != f.sum {
			changed = append(changed, f.ToolFile)
		}
	}
	var removed []string
	for path := range before {
		if _, ok := now[path]; !ok {
			removed = append(removed, path)
		}
	}
	if before != nil && len(changed)+len(removed) == 0 {
		return nil
	}
	err = s.agent.UpdateTools(ctx, changed, removed, before == nil)
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	s.had, s.tree, s.failed = true, now, err != nil
	if err != nil {
		s.tree = nil // it may have some of it
	}
	if agent.ReasonOf(err) == agent.Unsupported {
		s.failed, s.never, err = false, true, nil // an older version of Sandlot made the sandbox
	}
	return err
}

// neverText is said where it is missed that a sandbox cannot have a tool tree.
const neverText = "[note] This session was made by an older version of Sandlot, so its sandbox has no /run/mcp, and " +
	"code in it cannot call third-party tools. A new session can; or stop_session ends this one's sandbox, and the " +
	"next call boots another with the same files."

// Noted adds to the result of a run that the session's sandbox cannot have a tool tree, if the result speaks of it.
func (cs *Calls) Noted(session string, r *tool.Result) *tool.Result {
	if cs == nil {
		return r
	}
	cs.mu.Lock()
	box := cs.sandboxes[session]
	cs.mu.Unlock()
	if box == nil || !cs.Servers.Any(box.owner) {
		return r
	}
	box.treeMu.Lock()
	never := box.never
	box.treeMu.Unlock()
	missed := func(c tool.Content) bool { return c.Text != nil && strings.Contains(*c.Text, "mcp") }
	if never && slices.ContainsFunc(r.Content, missed) {
		r.Content = append(r.Content, tool.Text(neverText))
	}
	return r
}

// awaitTree waits until the sandbox has the tree that was asked for, but not for long.
func (s *sandbox) awaitTree(ctx context.Context) {
	s.treeMu.Lock()
	failed := s.failed
	s.failed = false
	s.treeMu.Unlock()
	if failed {
		s.updateTree()
	}
	s.treeMu.Lock()
	pending, limit := s.pending, treeWait
	if !s.had {
		limit = firstTreeWait
	}
	s.treeMu.Unlock()
	if pending == nil {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-pending:
	case <-t.C:
	case <-ctx.Done():
	}
}
