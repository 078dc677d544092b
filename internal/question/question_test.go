package question

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// memory is a store that can fail.
type memory struct {
	list []Answer
	err  error
}

func (m *memory) PutAnswer(_ context.Context, a Answer) error {
	if m.err == nil {
		m.list = append(slices.DeleteFunc(m.list, func(o Answer) bool { return o.Subject == a.Subject }), a)
	}
	return m.err
}

func (m *memory) Answers(context.Context) ([]Answer, error) { return m.list, m.err }

func (m *memory) RemoveAnswer(_ context.Context, id string) error {
	if m.err == nil {
		m.list = slices.DeleteFunc(m.list, func(o Answer) bool { return o.ID == id })
	}
	return m.err
}

var (
	ann     = auth.User("ann", false)
	subject = Subject{Principal: ann.ID, Operation: policy.ShellExecute, Detail: "git push"}
)

func open(t *testing.T, m *memory) *Questions {
	t.Helper()
	s, err := New(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memory{})
		ask := func() *Open {
			o, err := s.Ask(Question{Subject: subject, Session: "s"}, time.Minute, true)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		began := time.Now()
		if reason, err := s.Wait(t.Context(), ask()); reason == "" || err != nil || time.Since(began) != time.Minute {
			t.Errorf("nobody answers: %q, %v after %s", reason, err, time.Since(began))
		}
		first, second := ask(), ask()
		if first != second {
			t.Error("one subject has two questions")
		}
		if ok, err := s.Answer(t.Context(), first.ID, true, Once, ann); !ok || err != nil {
			t.Errorf("answering: %v, %v", ok, err)
		}
		for _, o := range []*Open{first, second} {
			if reason, err := s.Wait(t.Context(), o); reason != "" || err != nil {
				t.Errorf("a yes is %q, %v", reason, err)
			}
		}
		if ok, _ := s.Answer(t.Context(), first.ID, true, Once, ann); ok {
			t.Error("a question was answered twice")
		}
		if s.TakeOnce(subject, "s") {
			t.Error("an answer for which calls waited counts once more")
		}
		if _, known := s.Known(subject, "s"); known {
			t.Error("an answer for once is known later")
		}
		// The question lives while one call waits, and ends with the last.
		first, second = ask(), ask()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Wait(ctx, first); err == nil || len(s.List(nil)) != 1 {
			t.Errorf("one of two calls ended: %v, %v", err, s.List(nil))
		}
		if _, err := s.Wait(ctx, second); err == nil || len(s.List(nil)) != 0 {
			t.Errorf("both calls ended: %v, %v", err, s.List(nil))
		}
	})
}

func TestSpans(t *testing.T) {
	m := &memory{}
	s := open(t, m)
	answer := func(allowed bool, span Span) {
		t.Helper()
		o, err := s.Ask(Question{Subject: subject, Session: "s"}, time.Minute, true)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Answer(t.Context(), o.ID, allowed, span, ann); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	answer(true, Session)
	other := subject
	other.Detail = "git push "
	for _, c := range []struct {
		about   Subject
		session string
		known   bool
	}{{subject, "s", true}, {subject, "t", false}, {subject, "", false}, {other, "s", false},
		{Subject{ann.ID, subject.Operation, subject.Detail, TextHash("more")}, "s", false},
		{Subject{"user:bob", subject.Operation, subject.Detail, ""}, "s", false},
		{Subject{subject.Principal, policy.FileRead, subject.Detail, ""}, "s", false}} {
		if _, known := s.Known(c.about, c.session); known != c.known {
			t.Errorf("%v in %q: %v", c.about, c.session, known)
		}
	}
	answer(false, Always)
	if allowed, known := s.Known(subject, "t"); allowed || !known {
		t.Error("a no for always is not known")
	}
	if s = open(t, m); len(s.Answers(nil)) != 1 {
		t.Error("the store lost the answer")
	}
	m.err = errors.New("the disk is full")
	if err := s.Forget(t.Context(), m.list[0].ID); err == nil {
		t.Error("forgotten, but stored")
	}
	if _, known := s.Known(subject, ""); !known {
		t.Error("an answer that could not be removed is forgotten")
	}
	o, _ := s.Ask(Question{Subject: other}, time.Minute, true)
	if _, err := s.Answer(t.Context(), o.ID, true, Always, ann); err == nil {
		t.Error("answered for always, but not stored")
	}
	if _, err := s.Answer(t.Context(), o.ID, true, Session, ann); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("for a session that is not there: %v", err)
	}
	if len(s.List(nil)) != 1 {
		t.Error("a failed answer ended the question")
	}
	m.err = nil
	if err := s.Forget(t.Context(), m.list[0].ID); err != nil || len(m.list) != 0 {
		t.Errorf("forget: %v", err)
	}
	if err := s.Forget(t.Context(), "a_x"); !errors.Is(err, ErrNone) {
		t.Errorf("forget what is not there: %v", err)
	}
	s.Close()
	if reason, _ := s.Wait(t.Context(), o); reason == "" {
		t.Error("the end of the server is a yes")
	}
}

func TestQuestionWithoutCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memory{})
		for _, wait := range []time.Duration{0, Grace + time.Second} {
			o, err := s.Ask(Question{Subject: subject}, time.Minute, false)
			if err != nil {
				t.Fatal(err)
			}
			if s.TakeOnce(subject, "") {
				t.Error("a question is a yes")
			}
			if _, err := s.Answer(t.Context(), o.ID, true, Once, ann); err != nil {
				t.Fatal(err)
			}
			time.Sleep(wait)
			if got := s.TakeOnce(subject, ""); got != (wait == 0) || s.TakeOnce(subject, "") {
				t.Errorf("%s after a yes: %v", wait, got)
			}
		}
		s.Close()
	})
}

// Someone who says yes has read one text, about one session: the answer is for no other.
func TestAnswerIsForOneText(t *testing.T) {
	s := open(t, &memory{})
	defer s.Close()
	shown, other := subject, subject
	shown.Shown, other.Shown = TextHash("Runs: docs"), TextHash("Runs: evil")
	ask := func(about Subject, session string) *Open {
		o, err := s.Ask(Question{Subject: about, Session: session}, time.Minute, false)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := ask(shown, "s")
	if ask(other, "s") == first || ask(shown, "t") == first || ask(subject, "s") == first || ask(shown, "s") != first {
		t.Error("questions with different texts or sessions are one, or those with the same are two")
	}
	if ok, err := s.Answer(t.Context(), first.ID, true, Once, ann); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if s.TakeOnce(other, "s") || s.TakeOnce(shown, "t") || s.TakeOnce(subject, "s") || !s.TakeOnce(shown, "s") {
		t.Error("a yes counts for another text or session, or not for its own")
	}
	if ok, err := s.Answer(t.Context(), ask(shown, "s").ID, true, Always, ann); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, known := s.Known(other, "s"); known {
		t.Error("a yes for always counts for another text")
	}
}

func TestBounds(t *testing.T) {
	s := open(t, &memory{})
	defer s.Close()
	ask := func(p string, i int) error {
		_, err := s.Ask(Question{Subject: Subject{p, policy.ShellExecute, fmt.Sprint(i), ""}}, time.Minute, false)
		return err
	}
	for i := range maxOpen {
		if err := ask(ann.ID, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(ann.ID, maxOpen); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("one too many: %v", err)
	}
	if err := ask("user:bob", 0); err != nil {
		t.Errorf("another principal: %v", err)
	}
	for i := range maxStored + 1 {
		q := Question{Subject: Subject{ann.ID, policy.ShellExecute, fmt.Sprint(i), ""}}
		if err := s.Remember(t.Context(), q, true, Always, ann); (err == nil) != (i < maxStored) {
			t.Errorf("answer %d: %v", i, err)
		}
	}
}
