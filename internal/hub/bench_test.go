package hub

import (
	"context"
	"fmt"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// quick is a source whose tool does nothing: what is left is the door.
type quick struct{ found tool.Callable }

func (q quick) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "nothing"}}
}

func (q quick) Find(auth.Principal, string) (tool.Callable, bool) { return q.found, true }

// The event of a call says whose token it was, which service acted, from where, and how large it was.
func TestEventHasItsOrigin(t *testing.T) {
	res := &tool.Result{Raw: []byte(`{"content":[]}`)}
	call := func(context.Context, tool.Call) (*tool.Result, error) { return res, nil }
	events := event.New()
	h := New(Config{Sources: []tool.Source{quick{tool.Callable{Operation: policy.ShellExecute, Call: call}}},
		Events: events})
	sub := events.Subscribe(event.Filter{}, 0)
	defer sub.Close()
	ctx := event.NewContext(t.Context(), "192.0.2.1", "")
	p := auth.Principal{ID: "user:gitu/ann", Token: "tok_1", Authenticated: true}
	if _, err := h.Call(ctx, tool.Call{Principal: p, Name: "nothing", Args: []byte(`{"a":1}`)}); err != nil {
		t.Fatal(err)
	}
	all, _, _ := sub.Read()
	if len(all) != 1 || all[0].Token != "tok_1" || all[0].Service != "user:gitu" || all[0].Address != "192.0.2.1" ||
		all[0].RequestBytes != 7 || all[0].AnswerBytes != int64(len(res.Raw)) {
		t.Errorf("%+v", all)
	}
}

// BenchmarkCall measures a call of a tool that does nothing, without the door and
// through it: with events and without, one call at a time and many at once.
func BenchmarkCall(b *testing.B) {
	res := &tool.Result{Fields: map[string]any{"session_id": "s"}}
	call := func(context.Context, tool.Call) (*tool.Result, error) { return res, nil }
	q := quick{tool.Callable{Operation: policy.ShellExecute, Call: call}}
	c := tool.Call{Principal: auth.User("ann", false), Name: "nothing"}
	ctx := b.Context()
	b.Run("without the door", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, _ := q.Find(c.Principal, c.Name)
			_, _ = f.Call(ctx, c)
		}
	})
	for name, events := range map[string]*event.Stream{"no events": nil, "events": event.New()} {
		h := New(Config{Sources: []tool.Source{q}, Events: events})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = h.Call(ctx, c)
			}
		})
		b.Run(name+", many at once", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = h.Call(ctx, c)
				}
			})
		})
	}
}

// BenchmarkCallWithRules measures what 100 rules about the operation of a call add to it, with patterns that do not
// match.
func BenchmarkCallWithRules(b *testing.B) {
	res := &tool.Result{Fields: map[string]any{"session_id": "s"}}
	q := quick{tool.Callable{Operation: policy.ShellExecute,
		Detail: func(tool.Call) (tool.Detail, error) {
			return tool.Detail{Text: "cd /workspace/project && git log --oneline -20 | grep -v merge"}, nil
		},
		Call: func(context.Context, tool.Call) (*tool.Result, error) { return res, nil }}}
	c := tool.Call{Principal: auth.User("ann", false), Name: "nothing"}
	for _, n := range []int{0, 100} {
		var list []policy.Rule
		for i := range n {
			r, err := policy.ParseRule(fmt.Sprintf("deny * shell.execute command-%d *", i), "bench")
			if err != nil {
				b.Fatal(err)
			}
			list = append(list, r)
		}
		rules := new(policy.Current)
		rules.Set(policy.Compile(list))
		h := New(Config{Sources: []tool.Source{q}, Rules: rules})
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.Call(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
