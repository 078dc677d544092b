package hub

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/template"
	"sandlot/internal/tool"
)

// lists has the tools whose lists are pushed.
type lists struct {
	sessions map[string]string // the status of each, by its id
	calls    int
}

func (l *lists) Tools(context.Context, auth.Principal) []tool.Tool { return nil }

func (l *lists) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.SessionList, Call: l.call}, name == sessionsTool
}

func (l *lists) call(_ context.Context, c tool.Call) (*tool.Result, error) {
	l.calls++
	var in struct {
		ID string `json:"session_id"`
	}
	_ = json.Unmarshal(c.Args, &in)
	out := &SessionList{}
	for id, status := range l.sessions {
		if in.ID == "" || in.ID == id {
			out.Sessions = append(out.Sessions, SessionRow{ID: id, Status: status})
		}
	}
	if in.ID != "" && len(out.Sessions) == 0 {
		return nil, fault.New(fault.SessionNotFound, "%s", in.ID)
	}
	return &tool.Result{Fields: out}, nil
}

// What faces read again and again is no event, as long as it succeeds. What an agent does is one.
func TestPollsAreNoEvents(t *testing.T) {
	events := event.New()
	h := New(Config{Sources: []tool.Source{&lists{}}, Events: events})
	ann := auth.User("ann", false)
	polls := map[policy.Operation]func() error{
		policy.SessionList:  func() error { _, err := ListSessions.Do(t.Context(), h, ann, tool.Call{}); return err },
		policy.QuestionList: func() error { _, err := ListQuestions.Do(t.Context(), h, ann, None{}); return err },
		policy.MetricsRead: func() error {
			_, err := Do(t.Context(), h, Request{Principal: ann, Operation: policy.QuotaRead},
				func(context.Context) (None, error) { return None{}, nil })
			return err
		},
	}
	for range 100 {
		for o, poll := range polls {
			if err := poll(); err != nil {
				t.Fatal(o, err)
			}
		}
	}
	if n := events.Newest(); n != 0 {
		t.Errorf("300 polls made %d events", n)
	}
	if _, err := h.Call(t.Context(), tool.Call{Principal: ann, Name: sessionsTool}); err != nil || events.Newest() != 1 {
		t.Errorf("an agent's call made %d events, %v", events.Newest(), err)
	}
	h.Decide = func(policy.Question) policy.Decision { return policy.Decision{} }
	for o, poll := range polls {
		before := events.Newest()
		if err := poll(); err == nil || events.Newest() != before+1 {
			t.Errorf("%s: refused, it made %d events, %v", o, events.Newest()-before, err)
		}
	}
}

// The newest state of each session is told, and nothing twice.
func TestWatchSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, l := event.New(), &lists{sessions: map[string]string{"a": "ready"}}
		h := New(Config{Sources: []tool.Source{l}, Events: events})
		ann := auth.User("ann", false)
		w, err := h.WatchSessions(t.Context(), ann)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		next := func(want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := w.Next(ctx)
			b, _ := json.Marshal(out)
			var got []struct {
				Change   string
				Session  *SessionRow
				Sessions []SessionRow
				ID       string `json:"session_id"`
			}
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			text := ""
			for _, g := range got {
				text += g.Change + " " + g.ID
				if g.Session != nil {
					g.Sessions = append(g.Sessions, *g.Session)
				}
				for _, s := range g.Sessions {
					text += s.ID + "=" + s.Status
				}
				text += ";"
			}
			if text != want {
				t.Errorf("it tells %q, %v, want %q", text, err, want)
			}
		}
		happens := func(p auth.Principal, id string) {
			events.Publish(event.Event{Kind: event.Session, Principal: p.ID, Session: id})
		}
		next("all a=ready;")
		happens(ann, "a")
		next("") // nothing has changed
		l.sessions["a"] = "running"
		happens(auth.User("bob", false), "a")
		next("")
		before := l.calls
		for range 1000 {
			happens(ann, "a")
		}
		next("put a=running;")
		if l.calls > before+10 {
			t.Errorf("the list was read %d times", l.calls-before)
		}
		l.sessions["b"] = "ready"
		happens(ann, "b")
		next("put b=ready;")
		delete(l.sessions, "a")
		happens(ann, "a")
		next("removed a;")
		h.Decide = func(policy.Question) policy.Decision { return policy.Decision{} }
		happens(ann, "b")
		if out, err := w.Next(t.Context()); err == nil {
			t.Errorf("refused, it tells %v", out)
		}
	})
}

// Operators see everyone's questions, and others their own.
func TestWhoseQuestionsAreWatched(t *testing.T) {
	ann, eve := auth.User("ann", false), auth.User("eve", false)
	eve.Roles = auth.NewRoles(auth.Operator)
	if of := questionsOf(ann); of == nil || of("user:bob") || !of(ann.ID) || questionsOf(eve) != nil {
		t.Error("somebody sees another's questions")
	}
}

// TestTemplateChanges: a list is told anew when a template is gone, also if another has come, and only then.
func TestTemplateChanges(t *testing.T) {
	told := map[string]string{}
	for i, c := range []struct {
		names string
		state string
		want  int // templates that change; -1: all are told anew
	}{
		{"a b", "ready", -1}, {"a b", "ready", 0}, {"a b", "failed", 2}, {"a c", "failed", -1}, {"a c", "failed", 0},
		{"a c d", "failed", 1}, {"a", "failed", -1}, {"a", "failed", 0}, {"a", "ready", 1},
	} {
		var all []Template
		for name := range strings.FieldsSeq(c.names) {
			all = append(all, Template{Name: name, State: template.State(c.state)})
		}
		got := templateChanges(told, all, i == 0)
		if anew := len(got) == 1 && got[0].(TemplatesChange).Change == changeAll; anew != (c.want < 0) || !anew && len(got) != c.want {
			t.Errorf("%d: %+v", i, got)
		}
		if len(told) != len(all) {
			t.Errorf("%d: told: %v", i, told)
		}
	}
}
