package builtin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// opened is where openSession notes what a call's error has to say of the session that the call has opened.
type opened struct {
	made    string // the id of the session that the call has made; empty: none
	unnamed bool   // the call named no session
	lease   *session.Lease
}

type openedKey struct{}

// noteSession notes the session that a call has opened.
func noteSession(ctx context.Context, c tool.Call, l *session.Lease, a session.OpenRequest) {
	o, ok := ctx.Value(openedKey{}).(*opened)
	if !ok {
		return
	}
	if o.lease = l; l.Created && a.Wanted(c.Principal) == "new" { // the home is there in any case
		o.made, o.unnamed = l.ID(), a.ID == ""
	}
}

// namingSession returns a handler whose faults have what a result would say of the session. They name the session that
// their call has made: its caller has no result with the id, and would make one more session with the next call. And
// they have its notice: what was lost explains many a fault, and is told once.
func namingSession[In any](t *Tools, h handler[In]) handler[In] {
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		o := &opened{}
		r, err := h(context.WithValue(ctx, openedKey{}, o), c, in)
		if err != nil && o.made != "" && t.Sessions.Has(c.Principal.ID, o.made) {
			err = o.name(err)
		}
		if err != nil && o.lease != nil && o.lease.Notice != "" {
			err = o.tell(err)
		}
		return r, err
	}
}

// name returns the fault of an error with the session in its context, and with how to go on in its advice.
func (o *opened) name(err error) error {
	f := copyOf(err)
	why := "This call"
	if o.unnamed {
		why = "This call named no session_id, and so"
	}
	advice := fmt.Sprintf("%s made a new session: pass session_id %q to go on there, or the id of the session with "+
		"your files (get_sessions lists them)", why, o.made)
	f.Advice = slices.Concat([]string{advice}, f.Data().RecoverySuggestions)
	return f.With("session_id", o.made).With("session_created", true)
}

// tell returns the fault of an error with the notice. Nobody reads the fault of a call that was cancelled: the next result
// has the notice then.
func (o *opened) tell(err error) error {
	f := copyOf(err)
	if f.Kind == fault.Canceled {
		o.lease.LeaveNotice()
		return f
	}
	f.Message = strings.TrimSuffix(f.Message, ".") + ". " + o.lease.Notice
	return f.With("session_id", o.lease.ID()).With("notice", o.lease.Notice)
}

// copyOf returns a fault of an error that may be changed: the error's own may be stored.
func copyOf(err error) *fault.Error {
	f := *fault.From(err)
	f.Context = maps.Clone(f.Context)
	return &f
}
