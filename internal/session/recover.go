package session

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sandlot/internal/egress"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Recover takes over what an earlier server left, and removes what belongs to
// nobody. It is called once, before the first Open.
func (b *Book) Recover(ctx context.Context, rt sandbox.Runtime) error {
	boxes, err := rt.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recovering sandboxes: %w", err)
	}
	byID := map[string]sandbox.Sandbox{}
	for _, box := range boxes {
		byID[box.Spec().ID] = box
	}
	records, err := b.Store.Sessions(ctx)
	if err != nil {
		return fmt.Errorf("reading the sessions: %w", err)
	}
	kept := map[string]bool{}
	for _, r := range records {
		if r.State == Removed { // as far as the last server came
			err = errors.Join(err, b.Pool.Shelf.Remove(r.Workspace), b.Store.RemoveSession(ctx, r.ID))
			continue
		}
		kept[r.Workspace] = true
		b.recover(r, byID)
	}
	var wg sync.WaitGroup
	for _, box := range byID { // owned by nobody: the old pool's, or made when the server died
		wg.Go(func() {
			if err := box.Stop(ctx); err != nil {
				b.Log.Error("could not remove an unowned sandbox", "sandbox", box.Spec().ID, "error", err)
			}
		})
	}
	wg.Wait()
	if err != nil { // it is tried again at the next start
		b.Log.Error("could not remove what is left of a session", "error", err)
	}
	b.tidy(kept)
	return nil
}

// tidy removes the workspaces that belong to nobody. What stays is found again
// at the next start.
func (b *Book) tidy(kept map[string]bool) {
	all, err := b.Pool.Shelf.All()
	for _, id := range all {
		if !kept[id] {
			err = errors.Join(err, b.Pool.Shelf.Remove(id))
		}
	}
	if err != nil {
		b.Log.Error("could not remove the workspaces that belong to nobody", "error", err)
	}
}

func (b *Book) recover(r Record, boxes map[string]sandbox.Sandbox) {
	s := &Session{book: b, gate: make(chan struct{}, 1), account: egress.NewAccount(r.Traffic), stored: r.Traffic, rec: r}
	if box := boxes[r.Sandbox]; box != nil && r.Sandbox != "" {
		t, f, err := b.resolve(r.Template, r.Flavor)
		if err == nil {
			delete(boxes, r.Sandbox)
			s.booted = b.Pool.Adopt(box, pool.Order{Workspace: r.Workspace, Template: t, Flavor: f})
			b.connect(s.booted, r, s.account)
			s.found = s.booted
		}
	}
	if s.booted == nil && r.Sandbox != "" {
		s.rec.Sandbox = ""
		if s.rec.Lost == "" {
			s.rec.Lost = "it ended while the server was away"
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[r.ID] = s
	if r.Home {
		b.homes[r.Owner] = s
	}
}
