package state

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// letters stand for the states of TestStates, in their order, and for the errors of those that refuse an event.
const letters = "-NBLAFZPHWCESR"

var refusals = map[byte]error{'r': ErrRemoved, 'b': ErrBusy, 'n': ErrNothing, 'f': ErrFirst, 'x': ErrNever, 'u': ErrInUse,
	'p': ErrPaused}

// TestStates goes through all states and all events: each pair is in the table, or refused by name.
func TestStates(t *testing.T) {
	rows := []struct {
		on   Event
		to   string // - New Booting Live Adopting Freezing asleep(Z) Paused Held Waking Clearing stopping(E) Stopped Removed
		used string // where it differs, while a call uses the session
	}{
		{Opened, "Nxxxxxxxxxxxxr", ""},
		{Taken, "Lxxxxxxxxxxxxr", ""},
		{Copied, "Zxxxxxxxxxxxxr", ""},
		{FoundRunning, "Axxxxxxxxxxxxr", ""},
		{FoundStopping, "Exxxxxxxxxxxxr", ""},
		{FoundAsleep, "Zxxxxxxxxxxxxr", ""},
		{FoundPaused, "Pxxxxxxxxxxxxr", ""},
		{FoundHeld, "Hxxxxxxxxxxxxr", ""},
		{FoundStopped, "Sxxxxxxxxxxxxr", ""},
		{Needed, "xBbLAbWppbCEBr", ""},
		{Freeze, "xnbFnbnnnbnnnr", "xnbunbnnnbnnnr"},
		{Exchange, "xnbFnbnnnbnnnr", ""},
		{Evict, "xnbEnbnnnbnnnr", "xnbunbnnnbnnnr"},
		{Stop, "xSbEEbSHHbEESr", ""},
		{Pause, "xHbffbPPHbffHr", ""},
		{Resume, "xnbnnbnZSbnnnr", ""},
		{ImageLost, "xnbnnbSHnbnnnr", ""},
		{Remove, "xRbffbRRRbfRRr", ""},
		{Booted, "xxLxxxxxxxxxxr", ""},
		{BootFailed, "xxSxxxxxxxxxxr", ""},
		{BootRemains, "xxExxxxxxxxxxr", ""},
		{Woken, "xxxxxxxxxLxxxr", ""},
		{WakeLater, "xxxxxxZxxZxxxr", ""},
		{WakeRemains, "xxxxxxxxxCxxxr", ""},
		{WakeLost, "xxxxxxSxxSxxxr", ""},
		{WakeLostRemains, "xxxxxxxxxExxxr", ""},
		{TakenOver, "xxxxLxxxxxxxxr", ""},
		{Gone, "xxxxSxxxxxxSxr", ""},
		{GoneAsleep, "xxxxZxxxxxZZxr", ""},
		{Died, "xxxExxxxxxxxxr", ""},
		{Frozen, "xxxxxZxxxxxxxr", ""},
		{FrozenPaused, "xxxxxPxxxxxxxr", ""},
		{Thawed, "xxxxxLxxxxxxxr", ""},
		{StandsStill, "xxxxxAxxxxxxxr", ""},
		{Replaced, "xxxxxLLxxxxLLr", ""},
		{ReplacedAsleep, "xZxxxxxxxxxZZr", ""},
		{Unstored, "xRRRRRRRRRRRRr", ""},
		{Leased, "xNBLAFZPHWCESR", ""},
		{Released, "xxxxxxxxxxxxxr", "-NBLAFZPHWCESR"},
	}
	if len(rows) != events || len(letters) != states {
		t.Fatalf("%d of %d events, %d of %d states", len(rows), events, len(letters), states)
	}
	for i, row := range rows {
		if row.on != Event(i) {
			t.Fatalf("%s is not in its place", row.on)
		}
		for calls, to := range []string{row.to, row.used} {
			if to == "" {
				to = row.to
			}
			for from := range states {
				was := Status{State: State(from), Adopted: true, Calls: calls}
				is, actions, err := Next(was, row.on)
				want := strings.IndexByte(letters, to[from])
				switch {
				case want < 0 && (!errors.Is(err, refusals[to[from]]) || is != was || actions != nil):
					t.Errorf("%s in %s: %+v, %v, %v", row.on, was.State, is, actions, err)
				case want >= 0 && (err != nil || is.State != State(want)):
					t.Errorf("%s in %s: it is %s, want %s (%v)", row.on, was.State, is.State, State(want), err)
				}
			}
		}
	}
}

// TestDetails: what is not the state alone.
func TestDetails(t *testing.T) {
	s := Of(FoundRunning)
	for _, step := range []struct {
		on   Event
		want Status
	}{
		{Leased, Status{Adopting, false, 1}},
		{TakenOver, Status{Live, true, 1}},
		{Released, Status{Live, true, 0}},
		{Freeze, Status{Freezing, true, 0}},
		{Thawed, Status{Live, true, 0}}, // the same sandbox
		{Exchange, Status{Freezing, true, 0}},
		{Replaced, Status{Live, false, 0}}, // another one
		{Freeze, Status{Freezing, false, 0}},
		{StandsStill, Status{Adopting, false, 0}},
		{TakenOver, Status{Live, true, 0}},
		{Died, Status{Stopping, true, 0}},
		{Gone, Status{Stopped, true, 0}},
		{Needed, Status{Booting, true, 0}},
		{Booted, Status{Live, false, 0}},
	} {
		var err error
		if s, _, err = Next(s, step.on); err != nil || s != step.want {
			t.Fatalf("after %s: %+v, %v", step.on, s, err)
		}
	}
}

// TestNames: each state, and each event, has a name of its own.
func TestNames(t *testing.T) {
	var all []string
	for s := range states {
		all = append(all, State(s).String())
	}
	for e := range events {
		all = append(all, Event(e).String())
	}
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != states+events || all[0] == "" {
		t.Errorf("%d names of %d", n, states+events)
	}
}

// TestTable: no pair has two rows, and the actions of each have an order in which a crash loses nothing.
func TestTable(t *testing.T) {
	seen := map[[2]int]bool{}
	image := map[State]bool{Asleep: true, Paused: true, Waking: true, Clearing: true}
	for _, r := range table {
		if pair := [2]int{int(r.from), int(r.on)}; seen[pair] {
			t.Errorf("%s has two rows for %s", r.from, r.on)
		} else {
			seen[pair] = true
		}
		stored, removed := slices.Index(r.actions, Store), slices.Index(r.actions, RemoveImage)
		if removed >= 0 && (stored < 0 || stored > removed) {
			t.Errorf("%s, %s: the image is removed while a record has it", r.from, r.on)
		}
		if image[r.from] && !image[r.to] && removed < 0 && r.on != Unstored {
			t.Errorf("%s, %s: the image stays", r.from, r.on)
		}
		for _, first := range []Action{Boot, Wake} {
			if i := slices.Index(r.actions, first); i >= 0 && (stored < 0 || stored > i) {
				t.Errorf("%s, %s: no record has the sandbox that is made", r.from, r.on)
			}
		}
		if i := slices.Index(r.actions, Destroy); (r.to == Asleep || r.to == Paused) && i >= 0 && (stored < 0 || stored > i) {
			t.Errorf("%s, %s: the sandbox ends before the record has the image", r.from, r.on)
		}
		if r.from != None && r.from.IsPaused() != r.to.IsPaused() && r.on != Unstored && stored < 0 {
			t.Errorf("%s, %s: the record does not say whether it is paused", r.from, r.on)
		}
	}
}
