package agent

import "context"

// Turns lets the pieces of code that have just begun have the machine, a few at
// once, in the order in which they came. Short ones are then quick, however many
// come together: without turns each takes so long, as all share the processors,
// that it counts for long. A piece holds its turn until it is over or has run for
// 15 ms; what runs longer shares the machine as before.
type Turns struct{ slots chan struct{} }

// NewTurns lets n have theirs at once.
func NewTurns(n int) *Turns { return &Turns{make(chan struct{}, n)} }

// take waits for a turn until one of both ends; leave gives it back. Nil has one
// for everybody.
func (t *Turns) take(ctx, client context.Context) error {
	if t == nil {
		return nil
	}
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-client.Done():
		return context.Cause(client)
	}
}

func (t *Turns) leave() {
	if t != nil {
		<-t.slots
	}
}
