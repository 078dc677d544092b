package usage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// book is a HistoryStore in memory, which fails while broken.
type book struct {
	all     map[Key]Used
	broken  error
	removed int64
}

func (b *book) AddUsage(_ context.Context, used map[Key]Used, _ map[string]time.Duration) error {
	if b.broken != nil {
		return b.broken
	}
	for k, u := range used {
		b.all[k] = b.all[k].Plus(u)
	}
	return nil
}

func (b *book) Usage(context.Context, string, int64) (map[Key]Used, error) {
	all := map[Key]Used{}
	for k, u := range b.all {
		all[k] = u
	}
	return all, nil
}

func (b *book) RemoveUsage(_ context.Context, before int64) error {
	b.removed = before
	return nil
}

func (b *book) CountedCPU(context.Context) (map[string]time.Duration, error) { return nil, nil }

// What could not be stored stays counted, what is not stored yet is read, and what waits is bounded.
func TestHistory(t *testing.T) {
	b := &book{all: map[Key]Used{}, broken: errors.New("no disk")}
	h := NewHistory(b)
	k := Key{Day: 7, Owner: "user:ann", Session: "s"}
	h.Add(k, Used{CPU: time.Second, Memory: 5, Calls: 1})
	if h.Flush(t.Context(), 7) == nil {
		t.Fatal("a broken store")
	}
	h.Add(k, Used{CPU: time.Second, Memory: 3, Calls: 1})
	h.Add(Key{Day: 7, Owner: "user:bob"}, Used{Calls: 1})
	want := Used{CPU: 2 * time.Second, Memory: 5, Calls: 2}
	if all, err := h.Read(t.Context(), "user:ann", 7); err != nil || len(all) != 1 || all[k] != want {
		t.Errorf("before it is stored: %v, %v", all, err)
	}
	b.broken = nil
	for range 2 {
		if err := h.Flush(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
	}
	if b.all[k] != want || len(b.all) != 2 || b.removed != 7-KeptDays+1 {
		t.Errorf("stored: %v, removed before %d", b.all, b.removed)
	}
	const many = 3 * MaxOfService
	for i := range many {
		h.Add(Key{Day: 8, Owner: fmt.Sprint("user:svc/", i), Session: "s"}, Used{Calls: 1})
		h.Add(Key{Day: 8, Owner: "user:eve", Session: fmt.Sprint("s", i)}, Used{Calls: 1})
	}
	if len(h.pending) > 2*MaxOfService+1+MaxSessions+1 {
		t.Errorf("%d counts wait", len(h.pending))
	}
	others := []Key{{Day: 8, Owner: "user:bob", Session: "b"}, {Day: 8, Owner: "oidc:https://id.example/bob", Session: "b"}}
	for _, k := range others {
		if h.Add(k, Used{Calls: 1}); h.pending[k].Calls != 1 {
			t.Errorf("what others do takes the room of %v", k)
		}
	}
	if all, err := h.Read(t.Context(), "", 8); err != nil || all[Key{Day: 8, Owner: "user:svc"}].Calls != many ||
		all[Key{Day: 8, Owner: others[1].Owner}].Calls != 1 {
		t.Errorf("all have %v, %v", all, err)
	}
	if err := h.Flush(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	var calls int64
	for _, u := range b.all {
		calls += u.Calls
	}
	if calls != 2*many+2+3 {
		t.Errorf("%d calls are stored", calls)
	}
}
