// Package once stores the results of requests with an idempotency key, so that a client's retry does not
// run the request a second time.
package once

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Causes of the faults of requests whose key was used before.
var (
	ErrOtherInput = errors.New("the key was used with another input")
	ErrRunning    = errors.New("the request with the key is running")
)

// Config says how results of the type T are stored.
type Config[T any] struct {
	// TokenContext returns a context that is cancelled when the principal's token ends; nil: no context is.
	TokenContext func(context.Context, auth.Principal) (context.Context, func())
	// Size returns the size of a result in bytes.
	Size func(T) int
	// Undone reports whether a result says that nothing was done, so that a retry may run; nil: none does.
	Undone func(T) bool
}

// Replies are the stored results. When an owner has too many, a new one replaces the owner's oldest. When all
// have too many, it replaces the oldest of who has most; the users of a service count together.
type Replies[T any] struct {
	Config[T]
	now func() time.Time

	runsCtx    context.Context // of all runs; Close cancels it
	cancelRuns context.CancelFunc
	runs       sync.WaitGroup

	mu     sync.Mutex
	closed bool // by Close: no run starts any more
	byKey  map[replyKey]*savedReply[T]
}

type replyKey struct{ owner, name, key string }

type savedReply[T any] struct {
	input    [32]byte
	done     chan struct{}
	result   T
	err      error
	size     int
	finished time.Time // when the run ended; zero: it is running
}

// Lifetime is how long results are stored, unless newer ones need their place.
const Lifetime = 10 * time.Minute

const (
	maxReplies      = 1000
	maxOwnerReplies = 100
	// Limits of the results' sizes, in bytes.
	maxReplyBytes      = 64 << 20
	maxOwnerReplyBytes = 16 << 20
)

// New returns Replies without any result.
func New[T any](c Config[T]) *Replies[T] {
	if c.TokenContext == nil {
		c.TokenContext = (*auth.TokenWatch)(nil).TokenContext
	}
	r := &Replies[T]{Config: c, byKey: map[replyKey]*savedReply[T]{}, now: time.Now}
	r.runsCtx, r.cancelRuns = context.WithCancel(context.Background())
	return r
}

// Close cancels all runs, and waits for them.
func (r *Replies[T]) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancelRuns()
	r.runs.Wait()
}

// Request is a request with an idempotency key.
type Request struct {
	Principal auth.Principal
	Name      string // of what is requested: keys of other names are other keys
	Input     []byte
	Key       string // empty: it has none
	NoWait    bool   // fail while an earlier request with the key runs
	// Hold keeps what the run uses, until release; it is called before Do can return. nil: the run uses nothing
	// that ends with the client's request.
	Hold func() (release func())
}

// A Run executes a request, which may outlast its client's connection.
type Run[T any] func(context.Context) (T, error)

// Do runs the request, or waits for the run of an earlier request with the same key. A run with a key goes on
// when its client disconnects, since clients retry after that; the end of the client's token, or Close,
// cancels it.
func (r *Replies[T]) Do(ctx context.Context, q Request, run Run[T]) (result T, err error) {
	if q.Key == "" {
		return run(ctx)
	}
	k := replyKey{q.Principal.ID, q.Name, q.Key}
	reply, first, err := r.claim(k, sha256.Sum256(q.Input), q.NoWait)
	if err != nil {
		return result, err
	}
	if first {
		release := func() {}
		if q.Hold != nil {
			release = q.Hold()
		}
		go func() {
			defer r.runs.Done()
			defer release()
			tokenCtx, release := r.TokenContext(context.WithoutCancel(ctx), q.Principal)
			defer release()
			runCtx, cancel := context.WithCancel(tokenCtx)
			defer context.AfterFunc(r.runsCtx, cancel)()
			defer cancel()
			runCtx, effect := withEffect(runCtx)
			result, err := runSafely(runCtx, run)
			r.finish(k, reply, result, err, effect.began.Load())
		}()
	}
	select {
	case <-reply.done:
		return reply.result, reply.err
	case <-ctx.Done():
		return result, fault.From(ctx.Err())
	}
}

// runSafely turns a panic of run into an error: in a goroutine of its own, a panic would end the server.
func runSafely[T any](ctx context.Context, run Run[T]) (result T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.From(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	return run(ctx)
}

// claim returns the reply of a key. For the first call with the key, it creates the reply and adds the
// run to r.runs; the caller has to start the run.
func (r *Replies[T]) claim(k replyKey, input [32]byte, noWait bool) (_ *savedReply[T], first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, fault.New(fault.Connection, "the server is stopping; try again in a moment")
	}
	for k, stored := range r.byKey {
		if !stored.finished.IsZero() && r.now().Sub(stored.finished) > Lifetime {
			delete(r.byKey, k)
		}
	}
	if stored := r.byKey[k]; stored != nil {
		switch {
		case stored.input != input:
			return nil, false, fault.Wrap(fault.InvalidParameters, ErrOtherInput,
				"idempotency_key %q was used with other arguments; use a new key", fault.Clip(k.key)).
				With("argument", "idempotency_key")
		case noWait && stored.finished.IsZero():
			return nil, false, fault.Wrap(fault.Connection, ErrRunning,
				"the request with the idempotency key %q is still running; try again in a moment", fault.Clip(k.key))
		}
		return stored, false, nil
	}
	limit := 0
	switch {
	case r.ownerCount(k.owner) >= maxOwnerReplies:
		limit = maxOwnerReplies
	case len(r.byKey) >= maxReplies:
		limit = maxReplies
	}
	removed := limit == maxOwnerReplies && r.removeOldest(k.owner, nil) ||
		limit == maxReplies && r.removeFromMost(nil, one)
	if limit > 0 && !removed {
		return nil, false, fault.Limit("idempotency_keys", limit, limit,
			"%d calls with an idempotency_key are remembered already; leave it out or try again in ten minutes", limit)
	}
	reply := &savedReply[T]{input: input, done: make(chan struct{})}
	r.byKey[k] = reply
	r.runs.Add(1)
	return reply, true, nil
}

// finish hands the result to the waiting calls. The result stays stored for retries, unless the call
// failed before it did anything, or the result is too large. A run that has begun is never forgotten because
// of how it ended.
func (r *Replies[T]) finish(k replyKey, reply *savedReply[T], result T, err error, begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reply.result, reply.err, reply.size, reply.finished = result, err, r.Size(result), r.now()
	close(reply.done)
	undone := !begun && (failedBeforeRun(err) || err == nil && r.Undone != nil && r.Undone(result))
	if undone || reply.size > maxOwnerReplyBytes {
		delete(r.byKey, k)
	}
	for r.totalBytes(k.owner) > maxOwnerReplyBytes && r.removeOldest(k.owner, reply) {
	}
	for r.totalBytes("") > maxReplyBytes && r.removeFromMost(reply, (*savedReply[T]).bytes) {
	}
}

// failedBeforeRun reports whether a call failed before it did anything, so that a retry may run.
func failedBeforeRun(err error) bool {
	if err == nil {
		return false
	}
	switch fault.From(err).Kind {
	case fault.ResourceLimit, fault.SandboxCreation, fault.Connection, fault.InvalidParameters, fault.SessionNotFound:
		return true
	}
	return false
}

// ownerCount returns the number of an owner's replies.
func (r *Replies[T]) ownerCount(owner string) (n int) {
	for k := range r.byKey {
		if k.owner == owner {
			n++
		}
	}
	return n
}

// totalBytes returns the total size of an owner's replies, or, for "", of all replies.
func (r *Replies[T]) totalBytes(owner string) (sum int) {
	for k, reply := range r.byKey {
		if owner == "" || k.owner == owner {
			sum += reply.size
		}
	}
	return sum
}

// removeOldest removes the oldest completed reply of an owner, but not keep. It returns false if there is none.
func (r *Replies[T]) removeOldest(owner string, keep *savedReply[T]) bool {
	return r.removeOldestOf(func(k replyKey) bool { return k.owner == owner }, keep)
}

// removeFromMost removes the oldest completed reply of the group that holds most, as counted by size, among
// those that have one beside keep.
func (r *Replies[T]) removeFromMost(keep *savedReply[T], size func(*savedReply[T]) int) bool {
	held, removable := map[string]int{}, map[string]bool{}
	for k, reply := range r.byKey {
		g := groupOf(k.owner)
		held[g] += size(reply)
		removable[g] = removable[g] || !reply.finished.IsZero() && reply != keep
	}
	most := ""
	for g := range removable {
		if removable[g] && (most == "" || held[g] > held[most]) {
			most = g
		}
	}
	return most != "" && r.removeOldestOf(func(k replyKey) bool { return groupOf(k.owner) == most }, keep)
}

// groupOf returns who an owner's replies count for: the owner, or the service that the owner is a user of.
func groupOf(owner string) string {
	if service, ok := auth.ServiceOf(owner); ok {
		return service
	}
	return owner
}

func one[T any](*savedReply[T]) int { return 1 }

func (reply *savedReply[T]) bytes() int { return reply.size }

// removeOldestOf removes the oldest completed reply of those that match selects, but not keep.
func (r *Replies[T]) removeOldestOf(match func(replyKey) bool, keep *savedReply[T]) bool {
	var oldest replyKey
	var oldestTime time.Time
	for k, reply := range r.byKey {
		if reply != keep && match(k) && !reply.finished.IsZero() &&
			(oldestTime.IsZero() || reply.finished.Before(oldestTime)) {
			oldest, oldestTime = k, reply.finished
		}
	}
	delete(r.byKey, oldest)
	return !oldestTime.IsZero()
}
