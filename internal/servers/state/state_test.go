package state

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// inOrder are the states that a server can be in, as the letters of TestStates stand
// for them.
var inOrder = map[byte]State{'D': Disabled, 'S': Starting, 'C': Connected, 'I': Idle, 'B': Backoff, 'F': Failed,
	'E': NeedsEnv, 'A': NeedsAuth}

// All states and all that can happen in them.
func TestStates(t *testing.T) {
	now := time.Now()
	const from = "DSCIBFEA"
	timer, soon, later := []Action{DropTimer}, []Action{StartNow}, []Action{StartLater}
	for _, row := range []struct {
		does   string
		was    Status
		e      Event
		to     string
		after  []Action // when the state is one of those in on
		on     string
		passed func(s Status) bool // also
	}{
		{"is made", Status{}, Event{What: Created}, from, nil, "", func(s Status) bool { return s.NeverStarted }},
		{"starts", Status{Earliest: now}, Event{What: Begins, At: now}, "SSSSSSSS", timer, from, nil},
		{"is tried while its user logs in", Status{AuthURL: "l"}, Event{What: Begins, At: now}, "SSSSSSSA", timer, from,
			nil},
		{"awaits a log-in", Status{Failures: 1}, Event{What: AwaitsLogin, Why: "n"}, "DICIBFEA", nil, "",
			func(s Status) bool { return s.Failures == 1 && s.State != Failed || s.Why != "n" }},
		{"is to start after a pause", Status{Earliest: now.Add(1)}, Event{What: Begins, At: now}, from, timer, from,
			nil},
		{"runs", Status{NeverStarted: true, AuthURL: "l", Why: "w", Failures: 2}, Event{What: Started}, "CCCCCCCC",
			nil, "",
			func(s Status) bool { return !s.NeverStarted && s.AuthURL == "" && s.Why == "" && s.Failures == 2 }},
		{"is interrupted", Status{}, Event{What: Interrupted}, "DIIIIIII", nil, "", nil},
		{"lacks a secret", Status{}, Event{What: LacksSecret, Why: "n"}, "DEEEEEEE", nil, "",
			func(s Status) bool { return s.Failures == 0 }},
		{"fails", Status{Failures: 1}, Event{What: StartFailed, At: now, Why: "n"}, "DBBBBBBA", nil, "",
			func(s Status) bool {
				return s.State != Backoff || s.Failures == 2 && s.Earliest.Equal(now.Add(time.Second)) && s.Why == "n"
			}},
		{"fails and is wanted", Status{}, Event{What: StartFailed, At: now, Wanted: true}, "DBBBBBBA", later,
			"SCIBFE", nil},
		{"fails for the last time", Status{Failures: MaxFailures - 1}, Event{What: StartFailed, Why: "n",
			Wanted: true}, "DFFFFFFA", nil, "",
			func(s Status) bool {
				return s.State != Failed || s.Why == "it failed 6 times in a row, and was given up: n"
			}},
		{"dies for the first time", Status{}, Event{What: Exited, At: now}, "BBBBBBBA", nil, "",
			func(s Status) bool { return s.State != Backoff || s.Earliest.Equal(now) }},
		{"dies", Status{Failures: 1}, Event{What: Exited, At: now}, "BBBBBBBA", nil, "",
			func(s Status) bool { return s.State != Backoff || s.Earliest.Equal(now.Add(firstPause)) }},
		{"dies and is wanted", Status{Failures: 1}, Event{What: Exited, At: now, Wanted: true}, "BBBBBBBA", later,
			"DSCIBFE", nil},
		{"dies, as ever", Status{Failures: MaxFailures - 1}, Event{What: Exited}, "FFFFFFFA", nil, "", nil},
		{"dies after it lasted", Status{Failures: MaxFailures - 1}, Event{What: Exited, Lasted: true}, "BBBBBBBA",
			nil, "",
			func(s Status) bool { return s.State == NeedsAuth || s.Failures == 1 }},
		{"loses its session", Status{Failures: 3}, Event{What: SessionOver}, "IIIIIIII", nil, "",
			func(s Status) bool { return s.Failures == 3 }},
		{"answers", Status{Failures: 3}, Event{What: Worked}, from, nil, "",
			func(s Status) bool { return s.Failures == 0 }},
		{"asks to log in", Status{NeverStarted: true}, Event{What: AsksLogin, Link: "l", Why: "n"}, "AAAAAAAA", nil, "",
			func(s Status) bool { return s.AuthURL == "l" && s.Why == "n" && !s.NeverStarted }},
		{"is logged in to", Status{AuthURL: "l", Failures: 3}, Event{What: LoggedIn}, "DSCIBFEI", soon, "A",
			func(s Status) bool { return s.AuthURL == "" }},
		{"is logged in to and runs", Status{AuthURL: "l"}, Event{What: LoggedIn, Running: true}, "DSCIBFEC", nil, "",
			nil},
		{"is not logged in to", Status{AuthURL: "l"}, Event{What: LoginFailed, Why: "n"}, "DSCIBFEI", nil, "",
			func(s Status) bool { return s.AuthURL == "" }},
		{"is not logged in to and runs", Status{}, Event{What: LoginFailed, Why: "n", Running: true}, "DSCIBFEC", nil,
			"",
			func(s Status) bool { return s.Why == "" || s.State != Connected }},
		{"loses the link", Status{AuthURL: "l"}, Event{What: LoginDropped}, from, nil, "",
			func(s Status) bool { return s.AuthURL == "" }},
		{"has the link again", Status{}, Event{What: LoginBack, Link: "l"}, from, nil, "",
			func(s Status) bool { return s.AuthURL == "l" }},
		{"has its secret", Status{}, Event{What: SecretStored}, "DSCIBFIA", nil, "", nil},
		{"is stopped", Status{Failures: 3, Why: "w"}, Event{What: Stopped}, "IIIIIIII", timer, from,
			func(s Status) bool { return s.Failures == 3 && s.Why == "" }},
		{"is forgiven", Status{Failures: 3, Earliest: now}, Event{What: Forgiven}, from, nil, "",
			func(s Status) bool { return s.Failures == 0 && s.Earliest.IsZero() }},
		{"is disconnected", Status{Why: "w"}, Event{What: Disconnected}, "DDDDDDDD", timer, from,
			func(s Status) bool { return s.Why == "" }},
		{"cannot be used", Status{}, Event{What: Broken, Why: "n"}, "FFFFFFFF", timer, from,
			func(s Status) bool { return s.Why == "n" }},
		{"goes", Status{}, Event{What: Removal}, from, timer, from, func(s Status) bool { return s.Removed }},
	} {
		for i := range len(from) {
			was := row.was
			was.State = inOrder[from[i]]
			is, actions := Next(was, row.e)
			if want := inOrder[row.to[i]]; is.State != want {
				t.Errorf("%s %s: it is %s, want %s", was.State, row.does, is.State, want)
			}
			want := row.after
			if !strings.Contains(row.on, from[i:i+1]) {
				want = nil
			}
			if !slices.Equal(actions, want) {
				t.Errorf("%s %s: to do is %v, want %v", was.State, row.does, actions, want)
			}
			if row.passed != nil && !row.passed(is) {
				t.Errorf("%s %s: %+v becomes %+v", was.State, row.does, was, is)
			}
		}
	}
}

// Nothing happens any more to a server that is removed, but that its link is over.
func TestRemovedStaysRemoved(t *testing.T) {
	for what := Created; what <= Removal; what++ {
		for _, state := range inOrder {
			was := Status{State: state, Why: "w", AuthURL: "l", Failures: 3, NeverStarted: true, Removed: true}
			want := was
			if what == LoginDropped {
				want.AuthURL = ""
			}
			is, actions := Next(was, Event{What: what, Why: "n", Wanted: true})
			if is != want || actions != nil {
				t.Errorf("%d makes %+v of %+v, and %v", what, is, was, actions)
			}
		}
	}
}

// The pauses after failures grow, and end.
func TestPauses(t *testing.T) {
	s := Status{State: Starting}
	now := time.Now()
	var all []time.Duration
	for range MaxFailures {
		if s, _ = Next(s, Event{What: StartFailed, At: now}); s.State == Backoff {
			all = append(all, s.Earliest.Sub(now))
		}
	}
	want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	if !slices.Equal(all, want) || s.State != Failed || pause(100) != longestPause {
		t.Errorf("%v, then %s", all, s.State)
	}
}
