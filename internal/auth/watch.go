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
var ErrEnded error = fault.New(fault.Unauthorized, "the token was revoked or has expired, or a token is required now")

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
	// expires is the time at which a JWT ends; zero: the store knows when the token ends.
	expires time.Time
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
	c := &tokenContext{cancel, p.ID, p.Token, p.Expires}
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

// Run checks the tokens periodically until ctx ends, and stores when they were last used. Tokens that are
// stored when it starts get no event.
func (w *TokenWatch) Run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		if err := w.check(ctx); err != nil && ctx.Err() == nil {
			w.log.Error("cannot read the tokens; connections of revoked tokens stay open until that works again",
				"error", err)
		}
		if err := w.storeUses(ctx, useInterval); err != nil && ctx.Err() == nil {
			w.log.Warn("cannot store when tokens were last used; trying again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.storeLastUses()
			return
		}
	}
}

// storeLastUses stores all last uses of tokens, at the server's end.
func (w *TokenWatch) storeLastUses() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.storeUses(ctx, 0); err != nil {
		w.log.Warn("cannot store when tokens were last used", "error", err)
	}
}

// check publishes events for the tokens that were created and revoked since the last check, and cancels
// the contexts of tokens that are no longer valid.
func (w *TokenWatch) check(ctx context.Context) error {
	// The contexts are read before the tokens: so the token of each context is stored already.
	w.mu.Lock()
	contexts := slices.Collect(maps.Keys(w.contexts))
	w.mu.Unlock()
	ended := map[string][]*tokenContext{} // by token
	defer func() {
		for token, contexts := range ended {
			w.cancelContexts(token, contexts)
		}
	}()
	contexts = slices.DeleteFunc(contexts, func(c *tokenContext) bool { // JWTs, which end without the store
		if !c.expires.IsZero() && !w.now().Before(c.expires) {
			ended[c.token] = append(ended[c.token], c)
		}
		return !c.expires.IsZero()
	})
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
	for _, c := range contexts {
		t, valid := stored[c.token]
		if valid = valid && !t.expired(w.now()); c.token == noTokenID {
			valid = !required
		}
		if !valid {
			ended[c.token] = append(ended[c.token], c)
		}
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
	principals := map[string]bool{} // a service's token has that of each user it acts for
	for _, c := range contexts {
		principals[c.principal] = true
	}
	for principal := range principals {
		w.publish(event.TokenEnded, principal, token)
	}
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

// storeUses stores the last uses of tokens that are at least interval later than those in the store.
func (w *TokenWatch) storeUses(ctx context.Context, interval time.Duration) error {
	uses := &w.authenticator.uses
	changed := uses.changed(interval)
	if len(changed) == 0 {
		return nil
	}
	if err := w.authenticator.store.PutTokenUses(ctx, changed); err != nil {
		return err
	}
	uses.setStored(changed, func(token string) bool {
		_, ok := w.stored[token]
		_, now := changed[token] // it may be newer than the last check
		return ok || now
	})
	return nil
}
