package builtin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// made is where openSession notes the session that a call has made.
type made struct {
	id      string // empty: none
	unnamed bool   // the call named no session
}

type madeKey struct{}

// noteSession notes the session of a call, if the call has made it and it is not the home.
func noteSession(ctx context.Context, c tool.Call, l *session.Lease, a session.OpenRequest) {
	if m, ok := ctx.Value(madeKey{}).(*made); ok && l.Created && a.Wanted(c.Principal) == "new" {
		*m = made{id: l.ID(), unnamed: a.ID == ""}
	}
}

// namingSession returns a handler whose faults name the session that their call has made: its caller has no result with
// the id, and would make one more session with the next call.
func namingSession[In any](t *Tools, h handler[In]) handler[In] {
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		m := &made{}
		r, err := h(context.WithValue(ctx, madeKey{}, m), c, in)
		if err != nil && m.id != "" && t.Sessions.Has(c.Principal.ID, m.id) {
			err = m.name(err)
		}
		return r, err
	}
}

// name returns the fault of an error with the session in its context, and with how to go on in its advice.
func (m *made) name(err error) error {
	f := *fault.From(err) // a copy: the fault may be stored
	why := "This call"
	if m.unnamed {
		why = "This call named no session_id, and so"
	}
	advice := fmt.Sprintf("%s made a new session: pass session_id %q to go on there, or the id of the session with "+
		"your files (get_sessions lists them)", why, m.id)
	f.Advice = slices.Concat([]string{advice}, f.Data().RecoverySuggestions)
	f.Context = maps.Clone(f.Context)
	return f.With("session_id", m.id).With("session_created", true)
}
