package once

import (
	"context"
	"sync/atomic"
)

// Shared is something that several holders use, such as a request's place among its principal's limits: the
// client's request, and the run that goes on when the client has disconnected. The last one to release it
// ends it.
type Shared struct {
	holders atomic.Int64
	end     func()
}

// NewShared returns a Shared with one holder, who calls Release once.
func NewShared(end func()) *Shared {
	s := &Shared{end: end}
	s.holders.Store(1)
	return s
}

// Hold adds a holder, who calls release once. Only a holder may call Hold. A nil Shared has no end.
func (s *Shared) Hold() (release func()) {
	if s == nil {
		return func() {}
	}
	s.holders.Add(1)
	return s.Release
}

// Release ends what is shared, if no other holder is left.
func (s *Shared) Release() {
	if s.holders.Add(-1) == 0 {
		s.end()
	}
}

// effect says whether a run may have changed anything. A run within a run, such as a tool's call within an HTTP
// request, has an effect of its own.
type effect struct {
	began atomic.Bool
	outer *effect
}

type effectKey struct{}

func withEffect(ctx context.Context) (context.Context, *effect) {
	outer, _ := ctx.Value(effectKey{}).(*effect)
	e := &effect{outer: outer}
	return context.WithValue(ctx, effectKey{}, e), e
}

// Begun notes that the run of ctx, if it is one, may change something from now on: whatever its outcome, a retry
// does not run again.
func Begun(ctx context.Context) {
	e, _ := ctx.Value(effectKey{}).(*effect)
	for ; e != nil; e = e.outer {
		e.began.Store(true)
	}
}
