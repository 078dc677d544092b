package tty

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent"
)

// What becomes known twice is one terminal, and what becomes known after the end of all is none: neither holds the others.
func TestAddedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		x := r.open()
		if again := r.open(); again != x {
			t.Error("there are two")
		}
		if n := r.owners["user:ann"].terminals; n != 1 {
			t.Errorf("%d count", n)
		}
		release, err := r.Reserve("user:ann", "s")
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if x, err := r.Add(Start{Owner: "user:ann", Session: "s", ID: "p9", Release: release}); err == nil {
			t.Errorf("it is %+v", x)
		}
		if r.Find("user:ann", "s", "p1") != nil || len(r.owners) > 0 {
			t.Errorf("something is left: %v", r.owners)
		}
	})
}

// A program that an agent has started is not ended because a person has looked at it. One that a viewer of an earlier
// server has started is.
func TestWhoseProgramsEnd(t *testing.T) {
	for unread, ends := range map[time.Duration]bool{0: false, Unread: true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.m.size, r.m.unread = agent.Size{Rows: 10, Cols: 20}, unread
			x, err := r.TakeOver(t.Context(), "user:ann", "s", "p1")
			if err != nil {
				t.Fatal(err)
			}
			r.look(x, 10, 20).Close()
			time.Sleep(3 * unwatched)
			synctest.Wait()
			if got := r.m.was(isStopped); got != ends {
				t.Errorf("started with %v: it has ended: %v", unread, got)
			}
		})
	}
}

// broken is a screen with a mistake.
type broken struct{ screen }

func (broken) Write([]byte) (shown, answers []byte) { panic("a mistake") }

// broken2 is one that cannot be drawn, or resized.
type broken2 struct{ screen }

func (broken2) Draw() []byte    { panic("a mistake") }
func (broken2) Resize(int, int) { panic("a mistake") }

// A mistake of the screen ends one terminal, and holds no lock.
func TestScreenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		x := r.open()
		e := r.look(x, 10, 20)
		r.m.print("before")
		e.sees("before")
		x.mu.Lock()
		x.screen = broken{x.screen}
		x.mu.Unlock()
		r.m.print("after")
		e.sees("")
		if e.end.ExitCode != nil || e.end.Why == "" || r.Find("user:ann", "s", "p1") != nil {
			t.Errorf("it ended with %+v", e.end)
		}
		e.Close()
		x = r.openIn("another")
		e = r.look(x, 10, 20)
		x.mu.Lock()
		x.screen = broken2{x.screen}
		x.mu.Unlock()
		for _, do := range []func(){
			func() { _, _ = e.Next(t.Context()) },
			func() { e.Resize(t.Context(), agent.Size{Rows: 5, Cols: 15}) },
			func() { _, _ = x.View(agent.Size{Rows: 3, Cols: 15}) },
		} {
			if !panics(do) {
				t.Error("there is no mistake")
			}
			if !x.mu.TryLock() {
				t.Fatal("it is locked")
			}
			x.mu.Unlock()
		}
		if n := r.owners["user:ann"].viewers; n != 1 {
			t.Errorf("%d viewers count", n)
		}
	})
}

func panics(do func()) (is bool) {
	defer func() { is = recover() != nil }()
	do()
	return false
}

// All viewers of a principal are bounded, also those of terminals that have ended.
func TestViewersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var eyes []*eye
		for _, session := range []string{"a", "b"} {
			x := r.openIn(session)
			for range maxOfViewers / 2 {
				eyes = append(eyes, r.look(x, 10, 20))
			}
		}
		x := r.openIn("c")
		if _, err := x.View(agent.Size{}); err == nil {
			t.Error("a principal has any number of viewers")
		}
		r.m.change(func() { r.m.exited = true })
		synctest.Wait()
		r.m.change(func() { r.m.exited = false })
		x = r.openIn("d")
		if _, err := x.View(agent.Size{}); err == nil {
			t.Error("those of terminals that have ended do not count")
		}
		eyes[0].Close()
		eyes[0].Close()
		eyes = append(eyes[1:], r.look(x, 10, 20))
		if _, err := x.View(agent.Size{}); err == nil {
			t.Error("who leaves twice counts twice")
		}
		for _, e := range eyes {
			e.Close()
		}
		r.m.change(func() { r.m.exited = true })
		synctest.Wait()
		if len(r.owners) > 0 {
			t.Errorf("left is %+v", r.owners)
		}
	})
}

// A sandbox that answers at once, with nothing or with little, is not asked all the time.
func TestReadsHaveAPace(t *testing.T) {
	for empty, most := range map[bool]int{true: 20, false: 1100} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.m.empty = empty
			r.open()
			for range 10_000 {
				r.m.print("x")
				time.Sleep(time.Millisecond)
			}
			if r.m.was(func(m *machine) bool { return m.reads > most }) {
				t.Errorf("it is asked more than %d times in 10 s; without output: %v", most, empty)
			}
		})
	}
}

// Who takes over a terminal that floods sees something.
func TestFloodIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.m.size = agent.Size{Rows: 10, Cols: 20}
		r.m.print("before\r\n")
		r.m.change(func() { r.m.flood = true })
		x, err := r.TakeOver(t.Context(), "user:ann", "s", "p1")
		if err != nil {
			t.Fatal(err)
		}
		e := r.look(x, 10, 20)
		synctest.Wait() // it has read what was there
		r.m.print("%100s", "\x1b[H\x1b[2Jon and on")
		e.sees("on and on")
	})
}

// The end of the server is no end of a terminal.
func TestServerStops(t *testing.T) {
	for name, stop := range map[string]func(*rig){
		"the registry": func(r *rig) { r.Close() },
		"events":       func(r *rig) { r.Events.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				x := r.open()
				e := r.look(x, 10, 20)
				r.m.print("before")
				e.sees("before")
				r.m.change(func() { r.m.broken = true })
				r.becomes(Programs{Kept: true})
				synctest.Wait()
				stop(r)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if out, err := e.Next(ctx); !errors.Is(err, ErrStops) {
					t.Errorf("the viewer gets %+v, %v", out, err)
				}
			})
		})
	}
}
