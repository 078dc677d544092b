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
// ends at most that much later than the token, and so much later come the events of a
// token's creation and revocation. A token that is created and revoked between two
// checks has no such event.
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
	held map[*hold]bool
}

// noToken is the id, which no token has, of what came without one.
const noToken = ""

// hold is one thing that a token holds.
type hold struct {
	cancel    context.CancelCauseFunc
	principal string // its id
	token     string // the token's id, or noToken
}

// NewWatch returns one for what comes in by that door; it checks while Run runs, and
// publishes an event when something ends with its token.
func NewWatch(d *Door, log *slog.Logger, events *event.Stream) *Watch {
	return &Watch{door: d, log: log, events: events, now: time.Now, held: map[*hold]bool{}}
}

// Hold returns a context that ends with the token of p, with the cause ErrEnded,
// until release is called, which ends it too. Who came by the owner's socket holds
// for ever, and who needed no token until one is needed.
func (w *Watch) Hold(ctx context.Context, p Principal) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if w == nil || p.Token == noToken && !p.Open {
		return ctx, func() { cancel(nil) }
	}
	h := &hold{cancel, p.ID, p.Token}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[h] = true
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.held, h)
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
	ended := map[string][]*hold{} // by token
	for _, h := range held {
		t, good := stored[h.token]
		if good = good && !t.expired(w.now()); h.token == noToken {
			good = !required
		}
		if !good {
			ended[h.token] = append(ended[h.token], h)
		}
	}
	for token, all := range ended {
		w.end(token, all)
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
	for id, t := range stored {
		if _, ok := before[id]; !ok {
			w.publish(event.TokenCreated, t.Owner, id)
		}
	}
	for id, t := range before {
		if _, ok := stored[id]; !ok {
			w.publish(event.TokenRevoked, t.Owner, id)
		}
	}
}

func (w *Watch) publish(operation, principal, id string) {
	w.events.Publish(event.Event{Kind: event.Token, Principal: principal, Operation: operation, Name: id,
		Outcome: event.OK})
}

// end ends all holds of one token.
func (w *Watch) end(token string, all []*hold) {
	w.publish(event.TokenEnded, all[0].principal, token) // a token is one principal's
	w.mu.Lock()
	for _, h := range all {
		delete(w.held, h)
		h.cancel(ErrEnded)
	}
	w.mu.Unlock()
	if token == noToken {
		w.log.Info("a token is required now; what came in without one is over", "held", len(all))
		return
	}
	w.log.Info("a token is no longer good; what it held is over", "token", token, "held", len(all))
}
