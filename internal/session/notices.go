package session

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/reason"
)

// notices are what a session's user is to be told with the next result, besides why a sandbox was lost: that is in the
// record, as the next server tells it too.
type notices struct {
	asleepFor   time.Duration // how long it had slept when it woke; 0: its user was told, or it has not slept
	wokeWithout []string      // files of the machine that it did not have any more; see sandbox.FrozenImage
	// warning is why it cannot sleep; it is said once for each sandbox: then warned is true.
	warning string
	warned  bool
	untold  string // what nobody has read, as its call was cancelled
}

// none reports whether there is nothing to tell.
func (n *notices) none() bool { return n.asleepFor == 0 && n.warning == "" && n.untold == "" }

// wake notes that the session has just woken.
func (n *notices) wake(slept time.Time) { n.asleepFor = max(time.Since(slept), 1) }

// sandboxEnds notes that the session gets another sandbox, if it gets one.
func (n *notices) sandboxEnds() { n.warning, n.warned = "", false }

// leave leaves a notice to the next call.
func (n *notices) leave(notice string) { n.untold = strings.TrimSpace(n.untold + " " + notice) }

// take returns the notices, without those that were left, and forgets them.
func (n *notices) take() (t notices, left string) {
	t, left = *n, n.untold
	*n = notices{warned: n.warned}
	return t, left
}

// warn makes the next result say that the session cannot sleep, if files that were replaced or a full disk are
// the cause.
func (n *notices) warn(cause error) {
	until := ""
	switch {
	case errors.Is(cause, sandbox.ErrReplaced):
		until = "the programs that were running before have ended"
	case atomicfile.IsDiskFull(cause):
		until = "the disk has room"
	}
	if until != "" && !n.warned {
		n.warned, n.warning = true, fmt.Sprintf("This session cannot be put to sleep or copied at the moment: %s. "+
			"It stays awake; if the server is stopped, variables and processes may be lost. It can again when %s; files in "+
			"/workspace are kept in any case.", reason.State(cause), until)
	}
}

// takeNotice returns what the user is to be told once: what was lost since the last call, or that the session was
// asleep, and before that what an earlier call was to tell. After an error the next call tells what was left.
func (s *Session) takeNotice() (string, error) {
	s.mu.Lock()
	n, left := s.cur.notices.take()
	c := s.cur
	s.mu.Unlock()
	notice := ""
	switch {
	case c.rec.Lost != "":
		notice = fmt.Sprintf("This session's sandbox was started again (%s). Files in /workspace are kept; "+
			"variables, processes and everything outside /workspace are gone.", c.rec.Lost)
		if err := s.update(func(r *Record) { r.Lost = "" }); err != nil {
			s.leaveNotice(left)
			return "", err
		}
	case n.warning != "":
		notice = n.warning
	case n.asleepFor != 0:
		notice = fmt.Sprintf("This session was asleep for %s, and goes on where it was. Its connections to other "+
			"machines were cut", max(n.asleepFor, time.Second).Round(time.Second))
		if c.rec.Home {
			notice += ", and third-party MCP servers in it start again"
		}
		notice += "." + s.sessions.keptLimit(c.booted, c.rec.Flavor) + reason.Unkept(n.wokeWithout)
	}
	return strings.TrimSpace(left + " " + notice), nil
}

// leaveNotice leaves a notice to the next call.
func (s *Session) leaveNotice(notice string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.notices.leave(notice)
}

// LeaveNotice leaves the notice to the next call.
func (l *Lease) LeaveNotice() { l.leaveNotice(l.told) }

// keptLimit says that a sandbox has more memory than its flavor has by now; empty: it has not. It begins with a space.
func (s *Sessions) keptLimit(b *pool.Booted, flavor string) string {
	f, err := s.flavorOf(flavor)
	if err != nil || b == nil || b.Flavor.MemoryMB <= f.MemoryMB {
		return ""
	}
	return fmt.Sprintf(" It uses more memory than its flavor allows now, %d MB, and keeps its limit of %d MB "+
		"until it sleeps again or its sandbox ends.", f.MemoryMB, b.Flavor.MemoryMB)
}
