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

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{ctx: t.Context(), cellSlots: make(Slots, 2)}
		var order []int
		for i := range 4 {
			go func() {
				if c.acquireSlot(t.Context()) == nil {
					order = append(order, i)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.acquireSlot(ctx); !errors.Is(err, context.DeadlineExceeded) { // and holds nothing after
			t.Errorf("acquireSlot: %v", err)
		}
		if len(order) != 2 {
			t.Errorf("%v have a slot, of which there are two", order)
		}
		for range 4 {
			c.releaseSlot()
			synctest.Wait()
		}
		if len(order) != 4 || order[2] != 2 || order[3] != 3 {
			t.Errorf("slots were acquired in the order %v", order)
		}
		if len(c.cellSlots) != 0 {
			t.Errorf("%d slots are held by nobody", len(c.cellSlots))
		}
	})
	unbounded := &Client{ctx: t.Context()}
	if err := unbounded.acquireSlot(t.Context()); err != nil {
		t.Error(err)
	}
	unbounded.releaseSlot()
}

// A cell that runs for long gives its slot back, and so does one whose caller
// goes away; a short one has it until it is over.
func TestSlotsAreGivenBack(t *testing.T) {
	slots := make(Slots, 1)
	var cells atomic.Int64
	over := make(chan struct{})
	silent := &driven{slots: slots, do: func(c net.Conn) {
		for {
			id, ok := asked(c)
			if !ok {
				return
			}
			if cells.Add(1) == 1 {
				if len(slots) != 1 {
					t.Error("a cell began without a slot")
				}
				c.Write(answered(id, "", ""))
			}
		}
	}, supervised: func(*agentv1.SuperviseRequest) *agentv1.RunEvent {
		<-over
		return cellDone(&agentv1.EvaluateDone{Ok: true})
	}}
	c := drive(t, silent)
	if e, err := evaluate(t.Context(), c); err != nil || string(e.GetResult().GetHead()) != "2" || len(slots) != 0 {
		t.Fatalf("Evaluate = %v, %v, with %d slots held", e, err, len(slots))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := evaluate(ctx, c)
		done <- err
	}()
	for cells.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	for began := time.Now(); len(slots) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("a cell that runs for long keeps its slot")
		}
	}
	select {
	case err := <-done:
		t.Errorf("the long cell ended: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the long cell: %v", err)
	}
	close(over)

	// A caller that goes away while it waits holds nothing.
	slots <- struct{}{}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := evaluate(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cell without a slot: %v", err)
	}
	<-slots
	if len(slots) != 0 {
		t.Error("a slot is held by nobody")
	}
}

// A sandbox that does not read a cell holds a slot no longer than others.
func TestTheSlotOfADriverThatDoesNotRead(t *testing.T) {
	slots := make(Slots, 1)
	over, reached := make(chan struct{}), make(chan struct{})
	c := drive(t, &driven{slots: slots, do: func(net.Conn) { close(reached); <-over }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		code := strings.Repeat("#", 8<<20)
		_, err := c.evaluate(ctx, &agentv1.EvaluateRequest{Language: "python", Code: code}, Observer{})
		done <- err
	}()
	<-reached
	for began := time.Now(); len(slots) == 0 && time.Since(began) < time.Second; { // a busy machine may miss it
		time.Sleep(100 * time.Microsecond)
	}
	for began := time.Now(); len(slots) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > direct.SendLimit/2 {
			t.Fatal("it keeps its slot")
		}
	}
	close(over)
	cancel()
	<-done
}
