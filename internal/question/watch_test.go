package question

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
)

func next(t *testing.T, w *Watch) []Change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	changes, _, anew, err := w.Next(ctx)
	if err != nil || anew {
		t.Fatalf("no change comes: %v, anew %v", err, anew)
	}
	return changes
}

// Who watches sees each question that is asked, and how it ends, and nobody else's.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memory{})
		ask := func(p auth.Principal, detail string, timeout time.Duration) *Open {
			t.Helper()
			o, err := s.Ask(Question{Subject: Subject{Principal: p.ID, Operation: subject.Operation, Detail: detail},
				Session: "s"}, timeout, true)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		bob := auth.User("bob", false)
		first := ask(ann, "first", time.Hour)
		w, all := s.Watch(func(id string) bool { return id == ann.ID })
		operator, _ := s.Watch(nil)
		defer operator.Close()
		if len(all) != 1 || all[0].ID != first.ID {
			t.Errorf("at first there is %+v", all)
		}
		ask(bob, "another's", time.Hour)
		if _, err := s.Answer(t.Context(), first.ID, true, Session, ann); err != nil {
			t.Fatal(err)
		}
		if c := next(t, w); len(c) != 1 || c[0] != (Change{ID: first.ID, How: Answered, Answer: "yes"}) {
			t.Errorf("answered: %+v", c)
		}
		if c := next(t, operator); len(c) != 2 || c[0].Asked == nil || c[0].Asked.Principal != bob.ID {
			t.Errorf("the operator sees %+v", c)
		}
		late := ask(ann, "late", time.Minute)
		if c := next(t, w); len(c) != 1 || c[0].Asked == nil || c[0].Asked.ID != late.ID || c[0].Asked.Detail != "late" {
			t.Errorf("asked: %+v", c)
		}
		time.Sleep(time.Minute)
		if c := next(t, w); len(c) != 1 || c[0] != (Change{ID: late.ID, How: Expired}) {
			t.Errorf("expired: %+v", c)
		}
		given := ask(ann, "given up", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = s.Wait(ctx, given)
		if c := next(t, w); len(c) != 2 || c[1] != (Change{ID: given.ID, How: Withdrawn}) {
			t.Errorf("withdrawn: %+v", c)
		}
		w.Close()
		ask(ann, "unseen", time.Hour)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, _, _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its end: %+v, %v", c, err)
		}
		_, _, _, _ = operator.Next(t.Context())
		s.Close()
		for err := error(nil); !errors.Is(err, ErrClosed); {
			if _, _, _, err = operator.Next(t.Context()); err != nil && !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
		}
	})
}

// A watcher that does not read gets the newest state in place of all changes.
func TestWatchIsBounded(t *testing.T) {
	s := open(t, &memory{})
	w, _ := s.Watch(nil)
	defer w.Close()
	for i := range 10 * maxChanges {
		o, err := s.Ask(Question{Subject: subject, Session: fmt.Sprint(i)}, time.Hour, false)
		if err != nil {
			t.Fatal(err)
		}
		if i < 10*maxChanges-3 {
			_, _ = s.Answer(t.Context(), o.ID, false, Once, ann)
		}
		if len(w.changes) > maxChanges {
			t.Fatalf("%d changes wait", len(w.changes))
		}
	}
	changes, all, anew, err := w.Next(t.Context())
	if len(changes) != 0 || len(all) != 3 || !anew || err != nil {
		t.Errorf("it gets %+v, %+v, anew %v, %v", changes, all, anew, err)
	}
	_, _ = s.Answer(t.Context(), all[0].ID, false, Once, ann)
	if c := next(t, w); len(c) != 1 || c[0].ID != all[0].ID {
		t.Errorf("then it gets %+v", c)
	}
}

// slow stores an answer only when it may.
type slow struct {
	memory
	began, may chan struct{}
}

func (m *slow) PutAnswer(ctx context.Context, a Answer) error {
	m.began <- struct{}{}
	<-m.may
	return m.memory.PutAnswer(ctx, a)
}

// Of two answers that are given at once the first one counts, and it alone is stored.
func TestAnswersCountOnce(t *testing.T) {
	m := &slow{began: make(chan struct{}, 2), may: make(chan struct{})}
	s, err := New(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Ask(Question{Subject: subject, Session: "s"}, time.Hour, true)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if found, err := s.Answer(t.Context(), o.ID, true, Always, ann); !found || err != nil {
			t.Errorf("the first answer: %v, %v", found, err)
		}
	})
	<-m.began
	// The first one may fail yet: the question has not ended.
	if found, err := s.Answer(t.Context(), o.ID, false, Always, ann); found || err == nil ||
		!strings.Contains(err.Error(), "try again") || len(s.List(nil)) != 1 {
		t.Errorf("the second answer: %v, %v", found, err)
	}
	close(m.may)
	work.Wait()
	if allowed, known := s.Known(subject, "s"); !allowed || !known || len(m.list) != 1 || !m.list[0].Allowed {
		t.Errorf("what counts is %v, %v; stored is %+v", allowed, known, m.list)
	}
	if reason, err := s.Wait(t.Context(), o); reason != "" || err != nil {
		t.Errorf("the call gets %q, %v", reason, err)
	}
}

// stuck is a store that does not answer in time.
type stuck struct{ memory }

func (*stuck) PutAnswer(ctx context.Context, _ Answer) error {
	<-ctx.Done()
	return ctx.Err()
}

// A store that hangs keeps a question for a time only, also when the call that answers has no end: then another answer
// counts.
func TestStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(t.Context(), &stuck{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		o, err := s.Ask(Question{Subject: subject, Session: "s"}, time.Hour, true)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := s.Answer(t.Context(), o.ID, true, Always, ann); found || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the store hangs: %v, %v", found, err)
		}
		if found, err := s.Answer(t.Context(), o.ID, false, Once, ann); !found || err != nil {
			t.Errorf("then: %v, %v", found, err)
		}
	})
}
