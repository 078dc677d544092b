package session

import (
	"cmp"
	"slices"
	"time"

	"sandlot/internal/agent"
)

// Background says which background processes keep a session awake.
type Background string

// The values of Background.
const (
	BackgroundActive Background = "active" // those that listen for connections, or use the processor
	BackgroundAll    Background = "all"
	BackgroundNone   Background = "none"
)

// quietTime is how long programs have to be quiet before they do not keep a session awake, if it is to make room.
const quietTime = 10 * time.Second

// idleOf returns for how long a session with that usage is idle, and whether it has to stay awake now. An idle session
// sleeps after the timeout.
func idleOf(u agent.Usage, b Background, timeout time.Duration) (since time.Duration, busy bool) {
	switch b {
	case BackgroundNone:
		return u.Idle, u.Attached
	case BackgroundAll:
		return u.Idle, u.Busy
	}
	return min(u.Idle, u.Quiet), u.Attached || u.Quiet < min(quietTime, timeout)
}

// inTurns puts the first of each owner before all second ones, and so on: nobody's sessions, which may take long, use
// up the time of the others'.
func inTurns[T any](all []T, owner func(T) string) []T {
	type ranked struct {
		of   T
		rank int // among those of the same owner
	}
	list := make([]ranked, len(all))
	before := map[string]int{} // by owner
	for i, t := range all {
		list[i] = ranked{t, before[owner(t)]}
		before[owner(t)]++
	}
	slices.SortStableFunc(list, func(x, y ranked) int { return cmp.Compare(x.rank, y.rank) })
	for i, r := range list {
		all[i] = r.of
	}
	return all
}
