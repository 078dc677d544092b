package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session/usage"
)

// noUsage is a usage.HistoryStore that has nothing, and notes whether it was asked to store anything.
type noUsage struct{ stored error }

func (n *noUsage) AddUsage(ctx context.Context, _ map[usage.Key]usage.Used, _ map[string]time.Duration) error {
	n.stored = ctx.Err()
	return ctx.Err()
}

func (*noUsage) Usage(context.Context, string, int64) (map[usage.Key]usage.Used, error) {
	return map[usage.Key]usage.Used{}, nil
}
func (*noUsage) RemoveUsage(context.Context, int64) error { return nil }
func (*noUsage) CountedCPU(context.Context) (map[string]time.Duration, error) {
	return nil, nil
}

// Requests for usage do not delay the end of a sandbox whose agent does not answer, and such sandboxes do not keep a
// server that ends from storing what is counted.
func TestUsageOfSilentSandboxes(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestSessions(t, nil)
		defer synctest.Wait()
		defer w.close()
		store := &noUsage{stored: context.Canceled}
		w.HistoryStore, w.history = store, usage.NewHistory(store)
		l := w.use(ann, OpenRequest{ID: "new"})
		w.CountCall(ann.ID, l.ID())
		w.fake.Box(l.Booted.ID).Silence()
		for range 100 {
			go w.History(context.Background(), ann.ID, 1)
		}
		synctest.Wait()
		begun := time.Now()
		if !w.Stop(context.Background(), ann, l.ID()) {
			t.Error("the session is not there")
		}
		if d := time.Since(begun); d > 10*time.Second { // of the bubble's clock
			t.Errorf("requests for usage delay an end by %v", d)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if w.Close(ended); store.stored != nil {
			t.Errorf("at the end nothing is stored: %v", store.stored)
		}
	})
}

// A server that ends asks no sandbox what it uses: it would wait for those that do not answer, and the next server asks.
func TestCloseAsksNobody(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestSessions(t, nil)
		defer synctest.Wait()
		defer w.close()
		store := &noUsage{stored: context.Canceled}
		w.HistoryStore, w.history = store, usage.NewHistory(store)
		for range w.MaxSessions {
			l := w.use(ann, OpenRequest{ID: "new"})
			w.CountCall(ann.ID, l.ID())
			w.fake.Box(l.Booted.ID).Silence()
			l.Release()
		}
		begun := time.Now()
		w.Close(t.Context())
		if d := time.Since(begun); d != 0 { // of the bubble's clock
			t.Errorf("the end takes %v", d)
		}
		if store.stored != nil {
			t.Errorf("at the end nothing is stored: %v", store.stored)
		}
	})
}
