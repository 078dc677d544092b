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
	// hold returns a context that is cancelled when the principal's token ends.
	hold func(context.Context, auth.Principal) (context.Context, func())

	life context.Context // of all runs; Close cancels it
	stop context.CancelFunc
	runs sync.WaitGroup

	mu     sync.Mutex
	closed bool // by Close: no run starts any more
	byID   map[replyKey]*reply
}

type replyKey struct{ owner, tool, key string }

type reply struct {
	args   [32]byte
	done   chan struct{}
	result *tool.Result
	err    error
	size   int
	at     time.Time // when the run ended; zero: it is running
}

const (
	replyLife     = 10 * time.Minute
	maxReplies    = 1000
	maxOwnReplies = 100
	// Limits of the results' sizes, in bytes.
	maxReplyBytes    = 64 << 20
	maxOwnReplyBytes = 16 << 20
)

// New returns Replies without any result. hold returns a context that is cancelled when the
// principal's token ends; nil: no context is.
func New(hold func(context.Context, auth.Principal) (context.Context, func())) *Replies {
	if hold == nil {
		hold = (*auth.Watch)(nil).Hold
	}
	r := &Replies{byID: map[replyKey]*reply{}, now: time.Now, hold: hold}
	r.life, r.stop = context.WithCancel(context.Background())
	return r
}

// Close cancels all runs, and waits for them.
func (r *Replies) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
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
	mine, first, err := r.claim(k, sha256.Sum256(c.Args))
	if err != nil {
		return nil, err
	}
	if first {
		go func() {
			defer r.runs.Done()
			held, release := r.hold(context.WithoutCancel(ctx), c.Principal)
			defer release()
			goesOn, cancel := context.WithCancel(held)
			defer context.AfterFunc(r.life, cancel)()
			defer cancel()
			result, err := safely(goesOn, run)
			r.finish(k, mine, result, err)
		}()
	}
	select {
	case <-mine.done:
		return mine.result, mine.err
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	}
}

// safely turns a panic of run into an error: in a goroutine of its own, a panic would end the server.
func safely(ctx context.Context, run Run) (result *tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, fault.From(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	return run(ctx)
}

// claim returns the reply of a key. For the first call with the key, it creates the reply and adds the
// run to r.runs; the caller has to start the run.
func (r *Replies) claim(k replyKey, args [32]byte) (_ *reply, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, fault.New(fault.Connection, "the server is stopping; try again in a moment")
	}
	for k, old := range r.byID {
		if !old.at.IsZero() && r.now().Sub(old.at) > replyLife {
			delete(r.byID, k)
		}
	}
	if old := r.byID[k]; old != nil {
		if old.args != args {
			return nil, false, fault.New(fault.InvalidParameters,
				"idempotency_key %q was used with other arguments; use a new key", k.key).
				With("argument", "idempotency_key")
		}
		return old, false, nil
	}
	limit := 0
	switch {
	case r.count(k.owner) >= maxOwnReplies:
		limit = maxOwnReplies
	case len(r.byID) >= maxReplies:
		limit = maxReplies
	}
	if limit > 0 && !r.forget(k.owner) && !(limit == maxReplies && r.forget("")) {
		return nil, false, fault.New(fault.ResourceLimit,
			"%d calls with an idempotency_key are remembered already; leave it out or try again in ten minutes", limit).
			With("resource_type", "idempotency_keys").With("current_usage", limit).With("limit", limit)
	}
	mine := &reply{args: args, done: make(chan struct{})}
	r.byID[k] = mine
	r.runs.Add(1)
	return mine, true, nil
}

// finish hands the result to the waiting calls. The result stays stored for retries, unless the call
// failed before it did anything, or the result is too large.
func (r *Replies) finish(k replyKey, mine *reply, result *tool.Result, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine.result, mine.err, mine.size, mine.at = result, err, result.Size(), r.now()
	close(mine.done)
	if nothingRan(err) || mine.size > maxOwnReplyBytes {
		delete(r.byID, k)
	}
	for r.bytes(k.owner) > maxOwnReplyBytes && r.forget(k.owner) {
	}
	for r.bytes("") > maxReplyBytes && (r.forget(k.owner) || r.forget("")) {
	}
}

// nothingRan reports whether a call failed before it did anything, so that a retry may run.
func nothingRan(err error) bool {
	if err == nil {
		return false
	}
	switch fault.From(err).Kind {
	case fault.ResourceLimit, fault.SandboxCreation, fault.Connection, fault.InvalidParameters, fault.SessionNotFound:
		return true
	}
	return false
}

// count returns the number of an owner's replies.
func (r *Replies) count(owner string) (n int) {
	for k := range r.byID {
		if k.owner == owner {
			n++
		}
	}
	return n
}

// bytes returns the total size of an owner's replies, or, for "", of all replies.
func (r *Replies) bytes(owner string) (sum int) {
	for k, one := range r.byID {
		if owner == "" || k.owner == owner {
			sum += one.size
		}
	}
	return sum
}

// forget removes the oldest completed reply of an owner, or, for "", of all owners. It returns false if
// there is none.
func (r *Replies) forget(owner string) bool {
	var oldest replyKey
	var at time.Time
	for k, one := range r.byID {
		if (owner == "" || k.owner == owner) && !one.at.IsZero() && (at.IsZero() || one.at.Before(at)) {
			oldest, at = k, one.at
		}
	}
	delete(r.byID, oldest)
	return !at.IsZero()
}
