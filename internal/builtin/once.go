package builtin

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// replies remembers the results of calls with an idempotency key, so that a
// client's retry does not run the code twice.
type replies struct {
	mu   sync.Mutex
	byID map[replyKey]*reply
	now  func() time.Time
}

type replyKey struct{ owner, tool, key string }

type reply struct {
	args   [32]byte
	done   chan struct{}
	result *tool.Result
	err    error
	at     time.Time // when it was done; zero before
}

const (
	replyLife  = 10 * time.Minute
	maxReplies = 1000
)

func newReplies() *replies { return &replies{byID: map[replyKey]*reply{}, now: time.Now} }

// do runs the call, or waits for the one with the same key. With a key the run
// goes on when its client leaves, which is when clients retry.
func (r *replies) do(ctx context.Context, c tool.Call, a tool.Args, run func(context.Context) (*tool.Result, error)) (*tool.Result, error) {
	key := a.Text("idempotency_key")
	if key == "" {
		return run(ctx)
	}
	mine, first, err := r.claim(replyKey{c.Principal.ID, c.Name, key}, sha256.Sum256(c.Args))
	if err != nil {
		return nil, err
	}
	if first {
		go func() {
			mine.result, mine.err = run(context.WithoutCancel(ctx))
			r.mu.Lock()
			mine.at = r.now()
			r.mu.Unlock()
			close(mine.done)
		}()
	}
	select {
	case <-mine.done:
		return mine.result, mine.err
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	}
}

func (r *replies) claim(k replyKey, args [32]byte) (*reply, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, old := range r.byID {
		if !old.at.IsZero() && r.now().Sub(old.at) > replyLife {
			delete(r.byID, k)
		}
	}
	if old := r.byID[k]; old != nil {
		if old.args != args {
			return nil, false, fault.New(fault.InvalidParameters, "idempotency_key %q was used with other arguments; use a new key", k.key).With("argument", "idempotency_key")
		}
		return old, false, nil
	}
	if len(r.byID) >= maxReplies {
		return nil, false, fault.New(fault.ResourceLimit, "%d calls with an idempotency_key are remembered already; leave it out or try again in ten minutes", maxReplies).
			With("resource_type", "idempotency_keys").With("current_usage", maxReplies).With("limit", maxReplies)
	}
	mine := &reply{args: args, done: make(chan struct{})}
	r.byID[k] = mine
	return mine, true, nil
}
