package hub

import (
	"context"
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
