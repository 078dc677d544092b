package pool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwaitDial: an agent that never connects is given up long before a boot may take too long, and one that does is
// not.
func TestAwaitDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		err := awaitDial(ctx, never)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not connect") {
			t.Errorf("an agent that never connects: %v", err)
		}
		if ctx.Err() != nil {
			t.Error("the whole time of the boot was waited for it")
		}
		if err := awaitDial(ctx, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		over, end := context.WithCancel(ctx)
		end()
		if err := awaitDial(over, never); !errors.Is(err, context.Canceled) {
			t.Errorf("a boot that was cancelled: %v", err)
		}
	})
}
