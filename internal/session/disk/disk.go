// Package disk counts how much of the disk a session's workspace has, as far as it is known.
package disk

import (
	"sync"
	"time"
)

// Use is what is known of the size of a workspace. It is measured in the background if its owner has a quota: measuring
// reads every folder of it, which no call waits for.
type Use struct {
	mu      sync.Mutex
	bytes   int64 // when it was measured last; before that, what is stored
	added   int64 // what was admitted, and of uploads has arrived, since then
	coming  int64 // what has not arrived yet of uploads
	changed bool  // a call or the end of a sandbox may have changed it since then
	// at is when measuring began last; zero: it was not measured by this server.
	at, next  time.Time // next: not measured before
	measuring bool
	replaced  int // how often another workspace has come in its place
}

const (
	// Tick is the time between two looks at which workspaces are to be measured.
	Tick = time.Second
	// pause is how many times as long as a workspace took to measure it is not measured again.
	pause = 20
	// live is the time after which the workspace of a sandbox that lives is measured though no call has used it: its
	// programs may write.
	live = time.Minute
)

// New returns the use of a workspace that had so many bytes when it was measured; at the zero time: before this server.
func New(bytes int64, at time.Time) *Use { return &Use{bytes: bytes, at: at} }

// Due reports whether the workspace is to be measured now, and whether it is being measured.
func (u *Use) Due(now time.Time, inUse, hasSandbox bool) (due, measuring bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.measuring || now.Before(u.next) {
		return false, u.measuring
	}
	return u.at.IsZero() || u.changed || inUse || hasSandbox && now.Sub(u.at) >= live, false
}

// Measured returns when measuring began last.
func (u *Use) Measured() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at
}

// Changed says that the files of the workspace may have changed.
func (u *Use) Changed() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = true
}

// Replace says that the session has another workspace, of so many bytes. What is being written or measured goes on to
// count, and takes itself away at its end.
func (u *Use) Replace(bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes, u.changed, u.next = bytes, true, time.Time{}
	u.replaced++
}

// Bytes returns the size of the workspace as far as it is known.
func (u *Use) Bytes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes + u.added
}

// Counts returns what counts in the quota of the owner: Bytes, and what is to come.
func (u *Use) Counts() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes + u.added + u.coming
}

// Begin makes the workspace one that is being measured, before Measure.
func (u *Use) Begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measuring = true
}

// Measure measures the workspace by size, which also returns when measuring began. If that fails, the size from before
// stays, and it is tried again.
func (u *Use) Measure(size func() (bytes int64, at time.Time, err error)) error {
	u.mu.Lock()
	began, admitted, replaced := time.Now(), u.added, u.replaced
	u.measuring, u.changed = true, false
	u.mu.Unlock()
	bytes, at, err := size()
	took := time.Since(began)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.measuring, u.next = false, began.Add(took+max(Tick, pause*took))
	switch {
	case err != nil:
		u.changed, u.next = true, began.Add(took+max(live, pause*took))
	case u.replaced != replaced:
		u.changed, u.next = true, time.Time{}
	case at.Before(began): // the runtime has measured it before
		u.bytes, u.at, u.changed = bytes, began, true
	default:
		u.bytes, u.at = bytes, began
		u.added -= admitted
	}
	return err
}
