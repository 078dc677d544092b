package servers

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
	timer, soon, later := []action{dropTimer}, []action{startNow}, []action{startLater}
	for _, row := range []struct {
		does   string
		was    status
		e      event
		to     string
		after  []action // when the state is one of those in on
		on     string
		passed func(s status) bool // also
	}{
		{"is made", status{}, event{what: created}, from, nil, "", func(s status) bool { return s.neverStarted }},
		{"starts", status{earliest: now}, event{what: begins, at: now}, "SSSSSSSS", timer, from, nil},
		{"is to start after a pause", status{earliest: now.Add(1)}, event{what: begins, at: now}, from, timer, from,
			nil},
		{"runs", status{neverStarted: true, authURL: "l", why: "w", failures: 2}, event{what: started}, "CCCCCCCC",
			nil, "",
			func(s status) bool { return !s.neverStarted && s.authURL == "" && s.why == "" && s.failures == 2 }},
		{"is interrupted", status{}, event{what: interrupted}, "DIIIIIII", nil, "", nil},
		{"lacks a secret", status{}, event{what: lacksSecret, why: "n"}, "DEEEEEEE", nil, "",
			func(s status) bool { return s.failures == 0 }},
		{"fails", status{failures: 1}, event{what: startFailed, at: now, why: "n"}, "DBBBBBBA", nil, "",
			func(s status) bool {
				return s.state != Backoff || s.failures == 2 && s.earliest.Equal(now.Add(time.Second)) && s.why == "n"
			}},
		{"fails and is wanted", status{}, event{what: startFailed, at: now, wanted: true}, "DBBBBBBA", later,
			"SCIBFE", nil},
		{"fails for the last time", status{failures: maxFailures - 1}, event{what: startFailed, why: "n",
			wanted: true}, "DFFFFFFA", nil, "",
			func(s status) bool {
				return s.state != Failed || s.why == "it failed 6 times in a row, and was given up: n"
			}},
		{"dies", status{failures: 1}, event{what: exited, at: now}, "BBBBBBBA", nil, "", nil},
		{"dies and is wanted", status{failures: 1}, event{what: exited, at: now, wanted: true}, "BBBBBBBA", later,
			"DSCIBFE", nil},
		{"dies, as ever", status{failures: maxFailures - 1}, event{what: exited}, "FFFFFFFA", nil, "", nil},
		{"dies after it lasted", status{failures: maxFailures - 1}, event{what: exited, lasted: true}, "BBBBBBBA",
			nil, "",
			func(s status) bool { return s.state == NeedsAuth || s.failures == 1 }},
		{"loses its session", status{failures: 3}, event{what: sessionOver}, "IIIIIIII", nil, "",
			func(s status) bool { return s.failures == 3 }},
		{"answers", status{failures: 3}, event{what: worked}, from, nil, "",
			func(s status) bool { return s.failures == 0 }},
		{"asks to log in", status{neverStarted: true}, event{what: asksLogin, link: "l", why: "n"}, "AAAAAAAA", nil, "",
			func(s status) bool { return s.authURL == "l" && s.why == "n" && !s.neverStarted }},
		{"is logged in to", status{authURL: "l", failures: 3}, event{what: loggedIn}, "DSCIBFEI", soon, "A",
			func(s status) bool { return s.authURL == "" }},
		{"is logged in to and runs", status{authURL: "l"}, event{what: loggedIn, running: true}, "DSCIBFEC", nil, "",
			nil},
		{"is not logged in to", status{authURL: "l"}, event{what: loginFailed, why: "n"}, "DSCIBFEI", nil, "",
			func(s status) bool { return s.authURL == "" }},
		{"is not logged in to and runs", status{}, event{what: loginFailed, why: "n", running: true}, "DSCIBFEC", nil,
			"",
			func(s status) bool { return s.why == "" || s.state != Connected }},
		{"loses the link", status{authURL: "l"}, event{what: loginDropped}, from, nil, "",
			func(s status) bool { return s.authURL == "" }},
		{"has the link again", status{}, event{what: loginBack, link: "l"}, from, nil, "",
			func(s status) bool { return s.authURL == "l" }},
		{"has its secret", status{}, event{what: secretStored}, "DSCIBFIA", nil, "", nil},
		{"is stopped", status{failures: 3, why: "w"}, event{what: stopped}, "IIIIIIII", timer, from,
			func(s status) bool { return s.failures == 3 && s.why == "" }},
		{"is forgiven", status{failures: 3, earliest: now}, event{what: forgiven}, from, nil, "",
			func(s status) bool { return s.failures == 0 && s.earliest.IsZero() }},
		{"is disconnected", status{why: "w"}, event{what: disconnected}, "DDDDDDDD", timer, from,
			func(s status) bool { return s.why == "" }},
		{"cannot be used", status{}, event{what: broken, why: "n"}, "FFFFFFFF", timer, from,
			func(s status) bool { return s.why == "n" }},
		{"goes", status{}, event{what: removal}, from, timer, from, func(s status) bool { return s.removed }},
	} {
		for i := range len(from) {
			was := row.was
			was.state = inOrder[from[i]]
			is, actions := next(was, row.e)
			if want := inOrder[row.to[i]]; is.state != want {
				t.Errorf("%s %s: it is %s, want %s", was.state, row.does, is.state, want)
			}
			want := row.after
			if !strings.Contains(row.on, from[i:i+1]) {
				want = nil
			}
			if !slices.Equal(actions, want) {
				t.Errorf("%s %s: to do is %v, want %v", was.state, row.does, actions, want)
			}
			if row.passed != nil && !row.passed(is) {
				t.Errorf("%s %s: %+v becomes %+v", was.state, row.does, was, is)
			}
		}
	}
}

// Nothing happens any more to a server that is removed, but that its link is over.
func TestRemovedStaysRemoved(t *testing.T) {
	for what := created; what <= removal; what++ {
		for _, state := range inOrder {
			was := status{state: state, why: "w", authURL: "l", failures: 3, neverStarted: true, removed: true}
			want := was
			if what == loginDropped {
				want.authURL = ""
			}
			is, actions := next(was, event{what: what, why: "n", wanted: true})
			if is != want || actions != nil {
				t.Errorf("%d makes %+v of %+v, and %v", what, is, was, actions)
			}
		}
	}
}

// The pauses after failures grow, and end.
func TestPauses(t *testing.T) {
	s := status{state: Starting}
	now := time.Now()
	var all []time.Duration
	for range maxFailures {
		if s, _ = next(s, event{what: startFailed, at: now}); s.state == Backoff {
			all = append(all, s.earliest.Sub(now))
		}
	}
	want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	if !slices.Equal(all, want) || s.state != Failed || pause(100) != longestPause {
		t.Errorf("%v, then %s", all, s.state)
	}
}
