package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/fault"
)

// ErrEnded is the cause of a context that ended with its token.
var ErrEnded error = fault.New(fault.Unauthorized, "the token was revoked, or has expired")

// looks is how often the tokens that hold something are looked at: what one holds
// ends that much later than the token, at most.
const looks = 2 * time.Second

// Watch ends what was let in by a token, and lasts, when the token is revoked or
// expires. Whoever revokes it may be another process. A nil Watch ends nothing.
type Watch struct {
	store Store
	log   *slog.Logger
	now   func() time.Time

	mu   sync.Mutex
	held map[string]map[*hold]struct{} // by the token's id
}

// hold is one thing that a token holds.
type hold struct{ cancel context.CancelCauseFunc }

// NewWatch returns one; it looks while Run runs.
func NewWatch(store Store, log *slog.Logger) *Watch {
	return &Watch{store: store, log: log, now: time.Now, held: map[string]map[*hold]struct{}{}}
}

// Hold returns a context that ends with the token of p, with the cause ErrEnded,
// until release is called, which ends it too. Who brought no token holds for ever.
func (w *Watch) Hold(ctx context.Context, p Principal) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if w == nil || p.Token == "" {
		return ctx, func() { cancel(nil) }
	}
	h := &hold{cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.held[p.Token]
	if all == nil {
		all = map[*hold]struct{}{}
		w.held[p.Token] = all
	}
	all[h] = struct{}{}
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		all := w.held[p.Token]
		delete(all, h)
		if len(all) == 0 {
			delete(w.held, p.Token)
		}
	}
}

// Run looks at the tokens until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := w.look(ctx); err != nil && ctx.Err() == nil {
				w.log.Error("the tokens cannot be looked at; what revoked ones hold open stays open until they can", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// look ends what is held by tokens that are no longer good.
func (w *Watch) look(ctx context.Context) error {
	w.mu.Lock()
	held := make([]string, 0, len(w.held))
	for id := range w.held {
		held = append(held, id)
	}
	w.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	all, err := w.store.Tokens(ctx)
	if err != nil {
		return err
	}
	good := map[string]bool{}
	for _, t := range all {
		good[t.ID] = !t.expired(w.now())
	}
	for _, id := range held {
		if !good[id] {
			w.end(id)
		}
	}
	return nil
}

func (w *Watch) end(id string) {
	w.mu.Lock()
	all := w.held[id]
	delete(w.held, id)
	w.mu.Unlock()
	for h := range all {
		h.cancel(ErrEnded)
	}
	w.log.Info("a token is no longer good; what it held is over", "token", id, "held", len(all))
}
