package auth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/event"
)

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		d := door(t, Auto, "localhost", s)
		admit := func(header string) Principal {
			p, err := d.Authenticate(t.Context(), header)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		one, oneHeader := issue(t, s, "ann", false, 0)
		_, otherHeader := issue(t, s, "ann", false, 0)
		_, shortHeader := issue(t, s, "ann", false, time.Minute)
		told := event.New()
		w := NewTokenWatch(d, slog.New(slog.DiscardHandler), told)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); w.Run(ctx) }()
		hold := func(p Principal) context.Context {
			c, release := w.TokenContext(t.Context(), p)
			t.Cleanup(release)
			return c
		}
		first, second, other := hold(admit(oneHeader)), hold(admit(oneHeader)), hold(admit(otherHeader))
		short, local := hold(admit(shortHeader)), hold(Local)
		done, release := w.TokenContext(t.Context(), admit(oneHeader))
		release()
		if done.Err() == nil || errors.Is(context.Cause(done), ErrEnded) {
			t.Errorf("what was let go: %v", context.Cause(done))
		}
		open := func(when string, want ...bool) {
			t.Helper()
			synctest.Wait()
			for i, c := range []context.Context{first, second, other, short, local} {
				if (c.Err() == nil) != want[i] || c.Err() != nil && !errors.Is(context.Cause(c), ErrEnded) {
					t.Errorf("%s: %d is open: %v, %v", when, i, c.Err() == nil, context.Cause(c))
				}
			}
		}
		time.Sleep(10 * time.Second)
		open("at the start", true, true, true, true, true)
		s.breaks(errors.New("the disk is full"))
		time.Sleep(10 * time.Second)
		open("while nobody can look", true, true, true, true, true)
		s.breaks(nil)
		if err := s.RemoveToken(t.Context(), one.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ended, _, _ := told.Subscribe(event.Filter{Principal: "user:ann", Kinds: []event.Kind{event.Token}}, 0).Read()
		if len(ended) != 2 || ended[0].Operation != "token.revoked" || ended[0].Name != one.ID ||
			ended[1].Operation != "token.ended" || ended[1].Name != one.ID {
			t.Errorf("told of %+v", ended)
		}
		open("revoked", false, false, true, true, true)
		time.Sleep(time.Minute)
		open("expired", false, false, true, false, true)
		stop()
		<-over
		if len(w.contexts) != 1 {
			t.Errorf("%d tokens hold something", len(w.contexts))
		}
	})
}

// Events tell once of each token that another process creates or revokes while the server
// runs, also of those that hold nothing.
func TestTokenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := &shelf{}, event.New()
		old, _ := issue(t, s, "ann", false, 0)
		w := NewTokenWatch(door(t, Auto, "localhost", s), slog.New(slog.DiscardHandler), events)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); w.Run(ctx) }()
		all := events.Subscribe(event.Filter{}, 0)
		defer all.Close()
		expect := func(when string, want ...event.Event) {
			t.Helper()
			time.Sleep(3 * checkInterval)
			got, _, _ := all.Read()
			for i := range got {
				got[i].ID, got[i].Time = 0, time.Time{}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		token := func(operation string, of Token) event.Event {
			return event.Event{Kind: event.Token, Principal: of.Owner, Operation: operation, Name: of.ID,
				Outcome: event.OK}
		}
		revoke := func(of Token) {
			t.Helper()
			if err := s.RemoveToken(t.Context(), of.ID); err != nil {
				t.Fatal(err)
			}
		}
		expect("at the start")
		bobs, _ := issue(t, s, "bob", false, time.Minute)
		expect("created", token("token.created", bobs))
		revoke(old)
		s.breaks(errors.New("the disk is full"))
		expect("while the store fails")
		s.breaks(nil)
		expect("revoked", token("token.revoked", old))
		time.Sleep(2 * time.Minute)
		expect("expired, and held nothing")
		revoke(bobs)
		expect("the last one", token("token.revoked", bobs))
		stop()
		<-over
	})
}

// What came in without a token ends when the first one is made; what came by the
// owner's socket does not.
func TestTheFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for mode, ends := range map[Mode]bool{Auto: true, Off: false} {
			s := &shelf{}
			d := door(t, mode, "localhost", s)
			p, err := d.Authenticate(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			w := NewTokenWatch(d, slog.New(slog.DiscardHandler), nil)
			ctx, stop := context.WithCancel(t.Context())
			over := make(chan struct{})
			go func() { defer close(over); w.Run(ctx) }()
			held, release := w.TokenContext(t.Context(), p)
			defer release()
			owner, releaseOwner := w.TokenContext(t.Context(), Local)
			defer releaseOwner()
			time.Sleep(10 * time.Second)
			if held.Err() != nil {
				t.Errorf("%s: it ended before there was a token", mode)
			}
			issue(t, s, "ann", false, 0)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if errors.Is(context.Cause(held), ErrEnded) != ends || owner.Err() != nil {
				t.Errorf("%s: with a token: %v, the owner's %v", mode, context.Cause(held), owner.Err())
			}
			stop()
			<-over
		}
	})
}

// Without a watch nothing ends, and what is let go does.
func TestNoWatch(t *testing.T) {
	var w *TokenWatch
	ctx, release := w.TokenContext(t.Context(), Principal{Token: "tok_x"})
	if ctx.Err() != nil {
		t.Error("it ended")
	}
	release()
	if ctx.Err() == nil {
		t.Error("it is not let go")
	}
}
