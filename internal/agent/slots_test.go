package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent/direct"
	"sandlot/proto/agentv1"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		var order []int
		take := func(i int) {
			go func() {
				if turns.take(t.Context(), t.Context()) == nil {
					order = append(order, i)
				}
			}()
			synctest.Wait()
		}
		for i := range 4 {
			take(i)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turns.take(ctx, t.Context()); !errors.Is(err, context.DeadlineExceeded) { // and holds nothing after
			t.Errorf("take: %v", err)
		}
		if len(order) != 2 {
			t.Errorf("%v have a turn, of which there are two", order)
		}
		for range 4 {
			turns.leave()
			synctest.Wait()
		}
		if len(order) != 4 || order[2] != 2 || order[3] != 3 {
			t.Errorf("turns were taken in the order %v", order)
		}
		if len(turns.slots) != 0 {
			t.Errorf("%d turns are held by nobody", len(turns.slots))
		}
	})
	var none *Turns
	if err := none.take(t.Context(), t.Context()); err != nil {
		t.Error(err)
	}
	none.leave()
}

// A piece that runs for long gives its turn back, and so does one whose caller
// leaves; a short one has it until it is over.
func TestTurnsAreGivenBack(t *testing.T) {
	turns := NewTurns(1)
	var pieces atomic.Int64
	over := make(chan struct{})
	silent := &driven{do: func(c net.Conn) {
		for {
			id, ok := asked(c)
			if !ok {
				return
			}
			if pieces.Add(1) == 1 {
				if len(turns.slots) != 1 {
					t.Error("a piece began without a turn")
				}
				c.Write(answered(id, "", ""))
			}
		}
	}, attended: func(*agentv1.SuperviseRequest) *agentv1.RunEvent {
		<-over
		return &agentv1.RunEvent{Event: &agentv1.RunEvent_Evaluated{Evaluated: &agentv1.EvaluateDone{Ok: true}}}
	}}
	c := drive(t, silent)
	c.Share(turns)
	if e, err := evaluate(t.Context(), c); err != nil || string(e.GetResult().GetHead()) != "2" ||
		len(turns.slots) != 0 {
		t.Fatalf("Evaluate = %v, %v, with %d turns held", e, err, len(turns.slots))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := evaluate(ctx, c)
		done <- err
	}()
	for pieces.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	for began := time.Now(); len(turns.slots) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("a piece that runs for long keeps its turn")
		}
	}
	select {
	case err := <-done:
		t.Errorf("the long piece ended: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the long piece: %v", err)
	}
	close(over)

	// Who leaves while waiting holds nothing.
	if err := turns.take(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := evaluate(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a piece without a turn: %v", err)
	}
	turns.leave()
	if len(turns.slots) != 0 {
		t.Error("a turn is held by nobody")
	}
}

// A sandbox that does not take a piece has no longer turn than others.
func TestTurnOfADriverThatDoesNotRead(t *testing.T) {
	turns := NewTurns(1)
	over := make(chan struct{})
	c := drive(t, &driven{do: func(net.Conn) { <-over }})
	c.Share(turns)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.evaluate(ctx, &agentv1.EvaluateRequest{Language: "python", Code: strings.Repeat("#", 8<<20)},
			ignore)
		done <- err
	}()
	for len(turns.slots) == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	for began := time.Now(); len(turns.slots) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > direct.SendLimit/2 {
			t.Fatal("it keeps its turn")
		}
	}
	close(over)
	cancel()
	<-done
}
