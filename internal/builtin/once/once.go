// Package once stores the results of calls with an idempotency key, so that a client's retry does not
// run the call a second time.
package once

import (
	"context"
	"crypto/sha256"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Replies are the stored results. When there are too many, a new one replaces its owner's oldest.
type Replies struct {
	now func() time.Time
	// tokenContext returns a context that is cancelled when the principal's token ends.
	tokenContext func(context.Context, auth.Principal) (context.Context, func())

	runsCtx    context.Context // of all runs; Close cancels it
	cancelRuns context.CancelFunc
	runs       sync.WaitGroup

	mu     sync.Mutex
	closed bool // by Close: no run starts any more
	byKey  map[replyKey]*savedReply
}

type replyKey struct{ owner, tool, key string }

type savedReply struct {
	args     [32]byte
	done     chan struct{}
	result   *tool.Result
	err      error
	size     int
	finished time.Time // when the run ended; zero: it is running
}

const (
	replyLifetime   = 10 * time.Minute
	maxReplies      = 1000
	maxOwnerReplies = 100
	// Limits of the results' sizes, in bytes.
	maxReplyBytes      = 64 << 20
	maxOwnerReplyBytes = 16 << 20
)

// New returns Replies without any result. hold returns a context that is cancelled when the
// principal's token ends; nil: no context is.
func New(tokenContext func(context.Context, auth.Principal) (context.Context, func())) *Replies {
	if tokenContext == nil {
		tokenContext = (*auth.TokenWatch)(nil).TokenContext
	}
	r := &Replies{byKey: map[replyKey]*savedReply{}, now: time.Now, tokenContext: tokenContext}
	r.runsCtx, r.cancelRuns = context.WithCancel(context.Background())
	return r
}

// Close cancels all runs, and waits for them.
func (r *Replies) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancelRuns()
	r.runs.Wait()
}

// A Run executes a call, which may outlast its client's connection.
type Run func(context.Context) (*tool.Result, error)

// Do runs the call, or waits for the run of an earlier call with the same key. A run with a key goes on
// when its client disconnects, since clients retry after that; the end of the client's token, or Close,
// cancels it.
func (r *Replies) Do(ctx context.Context, c tool.Call, key string, run Run) (*tool.Result, error) {
	if key == "" {
		return run(ctx)
	}
	k := replyKey{c.Principal.ID, c.Name, key}
	reply, first, err := r.claim(k, sha256.Sum256(c.Args))
	if err != nil {
		return nil, err
	}
	if first {
		go func() {
			defer r.runs.Done()
			tokenCtx, release := r.tokenContext(context.WithoutCancel(ctx), c.Principal)
			defer release()
			runCtx, cancel := context.WithCancel(tokenCtx)
			defer context.AfterFunc(r.runsCtx, cancel)()
			defer cancel()
			result, err := runSafely(runCtx, run)
			r.finish(k, reply, result, err)
		}()
	}
	select {
	case <-reply.done:
		return reply.result, reply.err
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	}
}

// runSafely turns a panic of run into an error: in a goroutine of its own, a panic would end the server.
func runSafely(ctx context.Context, run Run) (result *tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, fault.From(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	return run(ctx)
}

// claim returns the reply of a key. For the first call with the key, it creates the reply and adds the
// run to r.runs; the caller has to start the run.
func (r *Replies) claim(k replyKey, args [32]byte) (_ *savedReply, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, fault.New(fault.Connection, "the server is stopping; try again in a moment")
	}
	for k, stored := range r.byKey {
		if !stored.finished.IsZero() && r.now().Sub(stored.finished) > replyLifetime {
			delete(r.byKey, k)
		}
	}
	if stored := r.byKey[k]; stored != nil {
		if stored.args != args {
			return nil, false, fault.Argument("idempotency_key",
				"idempotency_key %q was used with other arguments; use a new key", k.key)
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
	if limit > 0 && !r.removeOldest(k.owner) && !(limit == maxReplies && r.removeOldest("")) {
		return nil, false, fault.Limit("idempotency_keys", limit, limit,
			"%d calls with an idempotency_key are remembered already; leave it out or try again in ten minutes", limit)
	}
	reply := &savedReply{args: args, done: make(chan struct{})}
	r.byKey[k] = reply
	r.runs.Add(1)
	return reply, true, nil
}

// finish hands the result to the waiting calls. The result stays stored for retries, unless the call
// failed before it did anything, or the result is too large.
func (r *Replies) finish(k replyKey, reply *savedReply, result *tool.Result, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reply.result, reply.err, reply.size, reply.finished = result, err, result.Size(), r.now()
	close(reply.done)
	if failedBeforeRun(err) || reply.size > maxOwnerReplyBytes {
		delete(r.byKey, k)
	}
	for r.totalBytes(k.owner) > maxOwnerReplyBytes && r.removeOldest(k.owner) {
	}
	for r.totalBytes("") > maxReplyBytes && (r.removeOldest(k.owner) || r.removeOldest("")) {
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
func (r *Replies) ownerCount(owner string) (n int) {
	for k := range r.byKey {
		if k.owner == owner {
			n++
		}
	}
	return n
}

// totalBytes returns the total size of an owner's replies, or, for "", of all replies.
func (r *Replies) totalBytes(owner string) (sum int) {
	for k, reply := range r.byKey {
		if owner == "" || k.owner == owner {
			sum += reply.size
		}
	}
	return sum
}

// removeOldest removes the oldest completed reply of an owner, or, for "", of all owners. It returns false if
// there is none.
func (r *Replies) removeOldest(owner string) bool {
	var oldest replyKey
	var oldestTime time.Time
	for k, reply := range r.byKey {
		if (owner == "" || k.owner == owner) && !reply.finished.IsZero() &&
			(oldestTime.IsZero() || reply.finished.Before(oldestTime)) {
			oldest, oldestTime = k, reply.finished
		}
	}
	delete(r.byKey, oldest)
	return !oldestTime.IsZero()
}
