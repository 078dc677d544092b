package auth

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"sandlot/internal/event"
	"sandlot/internal/fault"
)

// ErrEnded is the cause of a context that ended with its token, or, without one,
// when tokens came to be required.
var ErrEnded error = fault.New(fault.Unauthorized, "the token was revoked, or has expired, or one is required by now")

// checkInterval is how often Watch reads the tokens. A request or stream of a token
// ends at most that much later than the token, and so much later events tell of a
// token's creation and revocation.
const checkInterval = 2 * time.Second

// Watch ends the requests and streams that a token admitted when the token is revoked or
// expires, and those that were admitted without a token when one is required. It
// publishes an event for each token that is created or revoked. All this is found in the
// store, since `sandlot token` in another process creates and revokes the tokens. A nil
// Watch ends nothing.
type Watch struct {
	door *Door
	log  *slog.Logger
	now  func() time.Time

	events *event.Stream

	// stored are the tokens of the last check, by id; nil before the first. Run alone
	// uses it.
	stored map[string]Token

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

// Run checks the tokens until ctx ends. Tokens that are stored when it starts are not
// told as created.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		if err := w.check(ctx); err != nil && ctx.Err() == nil {
			w.log.Error("the tokens cannot be looked at; what revoked ones hold open stays open until they can",
				"error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// check publishes which tokens were created and revoked since the last check, and ends
// what is held by tokens that are no longer good.
func (w *Watch) check(ctx context.Context) error {
	// The tokens are read after the held ones: a token that holds something was stored before.
	w.mu.Lock()
	held := slices.Collect(maps.Keys(w.held))
	w.mu.Unlock()
	required, err := w.door.Required(ctx)
	if err != nil {
		return err
	}
	all, err := w.door.store.Tokens(ctx)
	if err != nil {
		return err
	}
	stored := make(map[string]Token, len(all))
	for _, t := range all {
		stored[t.ID] = t
	}
	w.publishChanges(stored)
	for _, id := range held {
		t, ok := stored[id]
		if good := ok && !t.expired(w.now()); id == noToken && required || id != noToken && !good {
			w.end(id)
		}
	}
	return nil
}

// publishChanges publishes an event for each token that was created or revoked since the
// last check, and takes stored as the tokens of the last check.
func (w *Watch) publishChanges(stored map[string]Token) {
	before := w.stored
	w.stored = stored
	if before == nil {
		return
	}
	publish := func(tokens, others map[string]Token, operation string) {
		for id, t := range tokens {
			if _, ok := others[id]; !ok {
				w.events.Publish(event.Event{Kind: event.Token, Principal: t.Owner, Operation: operation, Name: id,
					Outcome: event.OK})
			}
		}
	}
	publish(stored, before, event.TokenCreated)
	publish(before, stored, event.TokenRevoked)
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
