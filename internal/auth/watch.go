package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/event"
	"sandlot/internal/fault"
)

// ErrEnded is the cause of a context that ended with its token, or, without one,
// when tokens came to be required.
var ErrEnded error = fault.New(fault.Unauthorized, "the token was revoked, or has expired, or one is required by now")

// checkInterval is how often Watch checks the tokens that hold something: what one holds
// ends that much later than the token, at most.
const checkInterval = 2 * time.Second

// Watch ends what was let in by a token, and lasts, when the token is revoked or
// expires, and what was let in without one when one is required. Whoever revokes or
// makes one may be another process. A nil Watch ends nothing.
type Watch struct {
	door *Door
	log  *slog.Logger
	now  func() time.Time

	events *event.Stream

	mu   sync.Mutex
	held map[string]map[*hold]struct{} // by the token's id; noToken: what came without one
}

// noToken is the id, which no token has, of what came without one.
const noToken = ""

// hold is one thing that a token holds.
type hold struct {
	cancel    context.CancelCauseFunc
	principal string // its id
}

// NewWatch returns one for what comes in by that door; it checks while Run runs, and
// publishes an event when something ends with its token.
func NewWatch(d *Door, log *slog.Logger, events *event.Stream) *Watch {
	return &Watch{door: d, log: log, events: events, now: time.Now, held: map[string]map[*hold]struct{}{}}
}

// Hold returns a context that ends with the token of p, with the cause ErrEnded,
// until release is called, which ends it too. Who came by the owner's socket holds
// for ever, and who needed no token until one is needed.
func (w *Watch) Hold(ctx context.Context, p Principal) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if w == nil || p.Token == noToken && !p.Open {
		return ctx, func() { cancel(nil) }
	}
	h := &hold{cancel, p.ID}
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

// Run checks the tokens until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := w.check(ctx); err != nil && ctx.Err() == nil {
				w.log.Error("the tokens cannot be looked at; what revoked ones hold open stays open until they can",
					"error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// check ends what is held by tokens that are no longer good.
func (w *Watch) check(ctx context.Context) error {
	w.mu.Lock()
	held := make([]string, 0, len(w.held))
	for id := range w.held {
		held = append(held, id)
	}
	w.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	required, err := w.door.Required(ctx)
	if err != nil {
		return err
	}
	all, err := w.door.store.Tokens(ctx)
	if err != nil {
		return err
	}
	good := map[string]bool{noToken: !required}
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
		w.events.Publish(event.Event{Kind: event.Token, Principal: h.principal, Operation: event.TokenEnded, Name: id,
			Outcome: event.OK})
		break // all are of one token, and so of one principal
	}
	for h := range all {
		h.cancel(ErrEnded)
	}
	if id == noToken {
		w.log.Info("a token is required now; what came in without one is over", "held", len(all))
		return
	}
	w.log.Info("a token is no longer good; what it held is over", "token", id, "held", len(all))
}
