// Package awake says what keeps a session awake.
package awake

import (
	"time"

	"sandlot/internal/agent"
)

// Background says which background processes keep a session awake.
type Background string

// The values of Background.
const (
	Active Background = "active" // those that listen for connections, or use the processor
	All    Background = "all"
	None   Background = "none"
)

// quietTime is how long programs have to be quiet before they do not keep a session awake, if it is to make room.
const quietTime = 10 * time.Second

// Idle returns for how long a session with that usage is idle, and whether it has to stay awake now. An idle session
// sleeps after the timeout.
func Idle(u agent.Usage, b Background, timeout time.Duration) (since time.Duration, busy bool) {
	switch b {
	case None:
		return u.Idle, u.Attached
	case All:
		return u.Idle, u.Busy
	}
	return min(u.Idle, u.Quiet), u.Attached || u.Quiet < min(quietTime, timeout)
}
