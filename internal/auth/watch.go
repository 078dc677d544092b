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

// ErrEnded is the cause of a context that was cancelled since its token is no longer valid or, without a
// token, since a token is required now.
var ErrEnded error = fault.New(fault.Unauthorized, "the token was revoked, or has expired, or one is required by now")

// checkInterval is the interval in which TokenWatch reads the tokens. Contexts end, and events of tokens
// are published, at most that much later than the change of the token. A token that is created and
// revoked between two checks has no event.
const checkInterval = 2 * time.Second

// Watch cancels the contexts of long requests and connections when their token is revoked or expires, or,
// if they have none, when a token becomes required. It publishes an event for each token that is created
// or revoked. It polls the store, since `sandlot token` creates and revokes tokens in another process. A
// nil TokenWatch never cancels a context.
type Watch struct {
	door *Door
	log  *slog.Logger
	now  func() time.Time

	events *event.Stream

	// stored has the tokens of the last check, by id; nil before the first check. Only Run uses it.
	stored map[string]Token

	mu   sync.Mutex
	held map[*hold]bool
}

// noToken stands for a token's id in requests without a token.
const noToken = ""

// hold is a context that ends with a token.
type hold struct {
	cancel    context.CancelCauseFunc
	principal string // the principal's id
	token     string // the token's id, or noTokenID
}

// NewWatch returns a TokenWatch for requests that d has authenticated. It checks tokens while Run is
// running, and publishes an event when it cancels contexts.
func NewWatch(d *Door, log *slog.Logger, events *event.Stream) *Watch {
	return &Watch{door: d, log: log, events: events, now: time.Now, held: map[*hold]bool{}}
}

// Hold returns a context that is cancelled, with the cause ErrEnded, when the token of p is no longer
// valid or, if p has none, when a token becomes required. The context of a client on the owner's socket
// is not. The caller must call release, which cancels the context too.
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

// Run checks the tokens periodically until ctx ends. Tokens that are stored when it starts get no event.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		if err := w.check(ctx); err != nil && ctx.Err() == nil {
			w.log.Error("cannot read the tokens; connections of revoked tokens stay open until that works again",
				"error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// check publishes events for the tokens that were created and revoked since the last check, and cancels
// the contexts of tokens that are no longer valid.
func (w *Watch) check(ctx context.Context) error {
	// The contexts are read before the tokens: so the token of each context is stored already.
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

// publishChanges publishes an event for each token that was created or revoked since the last check.
// stored are the tokens now.
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

// end cancels the contexts of a token.
func (w *Watch) end(token string, all []*hold) {
	w.publish(event.TokenEnded, all[0].principal, token) // a token has one principal
	w.mu.Lock()
	for _, h := range all {
		delete(w.held, h)
		h.cancel(ErrEnded)
	}
	w.mu.Unlock()
	if token == noToken {
		w.log.Info("a token is required now; connections without one were ended", "held", len(all))
		return
	}
	w.log.Info("a token is no longer valid; its connections were ended", "token", token, "held", len(all))
}
