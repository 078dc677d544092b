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

// TokenWatch cancels the contexts of long requests and connections when their token is revoked or expires, or,
// if they have none, when a token becomes required. It publishes an event for each token that is created
// or revoked. It polls the store, since `sandlot token` creates and revokes tokens in another process. A
// nil TokenWatch never cancels a context.
type TokenWatch struct {
	authenticator *Authenticator
	log           *slog.Logger
	now           func() time.Time

	events *event.Stream

	// stored has the tokens of the last check, by id; nil before the first check. Only Run uses it.
	stored map[string]Token

	mu       sync.Mutex
	contexts map[*tokenContext]bool
}

// noTokenID stands for a token's id in requests without a token.
const noTokenID = ""

// tokenContext is a context that ends with a token.
type tokenContext struct {
	cancel    context.CancelCauseFunc
	principal string // the principal's id
	token     string // the token's id, or noTokenID
}

// NewTokenWatch returns a TokenWatch for requests that d has authenticated. It checks tokens while Run is
// running, and publishes an event when it cancels contexts.
func NewTokenWatch(d *Authenticator, log *slog.Logger, events *event.Stream) *TokenWatch {
	return &TokenWatch{authenticator: d, log: log, events: events, now: time.Now, contexts: map[*tokenContext]bool{}}
}

// TokenContext returns a context that is cancelled, with the cause ErrEnded, when the token of p is no longer
// valid or, if p has none, when a token becomes required. The context of a client on the owner's socket
// is not. The caller must call release, which cancels the context too.
func (w *TokenWatch) TokenContext(ctx context.Context, p Principal) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if w == nil || p.Token == noTokenID && !p.WithoutToken {
		return ctx, func() { cancel(nil) }
	}
	c := &tokenContext{cancel, p.ID, p.Token}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contexts[c] = true
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.contexts, c)
	}
}

// Run checks the tokens periodically until ctx ends. Tokens that are stored when it starts get no event.
func (w *TokenWatch) Run(ctx context.Context) {
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
func (w *TokenWatch) check(ctx context.Context) error {
	// The contexts are read before the tokens: so the token of each context is stored already.
	w.mu.Lock()
	contexts := slices.Collect(maps.Keys(w.contexts))
	w.mu.Unlock()
	required, err := w.authenticator.TokenRequired(ctx)
	if err != nil {
		return err
	}
	tokens, err := w.authenticator.store.Tokens(ctx)
	if err != nil {
		return err
	}
	stored := make(map[string]Token, len(tokens))
	for _, t := range tokens {
		stored[t.ID] = t
	}
	w.publishChanges(stored)
	ended := map[string][]*tokenContext{} // by token
	for _, c := range contexts {
		t, valid := stored[c.token]
		if valid = valid && !t.expired(w.now()); c.token == noTokenID {
			valid = !required
		}
		if !valid {
			ended[c.token] = append(ended[c.token], c)
		}
	}
	for token, contexts := range ended {
		w.cancelContexts(token, contexts)
	}
	return nil
}

// publishChanges publishes an event for each token that was created or revoked since the last check.
// stored are the tokens now.
func (w *TokenWatch) publishChanges(stored map[string]Token) {
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

func (w *TokenWatch) publish(operation, principal, id string) {
	w.events.Publish(event.Event{Kind: event.Token, Principal: principal, Operation: operation, Name: id,
		Outcome: event.OK})
}

// cancelContexts cancels the contexts of a token.
func (w *TokenWatch) cancelContexts(token string, contexts []*tokenContext) {
	w.publish(event.TokenEnded, contexts[0].principal, token) // a token has one principal
	w.mu.Lock()
	for _, c := range contexts {
		delete(w.contexts, c)
		c.cancel(ErrEnded)
	}
	w.mu.Unlock()
	if token == noTokenID {
		w.log.Info("a token is required now; connections without one were ended", "held", len(contexts))
		return
	}
	w.log.Info("a token is no longer valid; its connections were ended", "token", token, "held", len(contexts))
}
