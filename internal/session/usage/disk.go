package usage

import (
	"fmt"
	"sync"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/quota"
)

// Disk is what is known of the size of a workspace. It is measured in the background if its owner has a quota: measuring
// reads every folder of it, which no call waits for.
type Disk struct {
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

// NewDisk returns the Disk of a workspace that had so many bytes when it was measured; at the zero time: before this server.
func NewDisk(bytes int64, at time.Time) *Disk { return &Disk{bytes: bytes, at: at} }

// Due reports whether the workspace is to be measured now, and whether it is being measured.
func (d *Disk) Due(now time.Time, inUse, hasSandbox bool) (due, measuring bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.measuring || now.Before(d.next) {
		return false, d.measuring
	}
	return d.at.IsZero() || d.changed || inUse || hasSandbox && now.Sub(d.at) >= live, false
}

// Measured returns when measuring began last.
func (d *Disk) Measured() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// Changed says that the files of the workspace may have changed.
func (d *Disk) Changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = true
}

// Replace says that the session has another workspace, of so many bytes. What is being written or measured goes on to
// count, and takes itself away at its end.
func (d *Disk) Replace(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bytes, d.changed, d.next = bytes, true, time.Time{}
	d.replaced++
}

// Bytes returns the size of the workspace as far as it is known.
func (d *Disk) Bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes + d.added
}

// Counts returns what counts in the quota of the owner: Bytes, and what is to come.
func (d *Disk) Counts() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes + d.added + d.coming
}

// Begin makes the workspace one that is being measured, before Measure.
func (d *Disk) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.measuring = true
}

// Measure measures the workspace by size, which also returns when measuring began. If that fails, the size from before
// stays, and it is tried again.
func (d *Disk) Measure(size func() (bytes int64, at time.Time, err error)) error {
	d.mu.Lock()
	began, admitted, replaced := time.Now(), d.added, d.replaced
	d.measuring, d.changed = true, false
	d.mu.Unlock()
	bytes, at, err := size()
	took := time.Since(began)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.measuring, d.next = false, began.Add(took+max(Tick, pause*took))
	switch {
	case err != nil:
		d.changed, d.next = true, began.Add(took+max(live, pause*took))
	case d.replaced != replaced:
		d.changed, d.next = true, time.Time{}
	case at.Before(began): // the runtime has measured it before
		d.bytes, d.at, d.changed = bytes, began, true
	default:
		d.bytes, d.at = bytes, began
		d.added -= admitted
	}
	return err
}

// keepFree is how much of the machine's disk stays free, in bytes: as much as when a session is put to sleep.
const keepFree = 64 << 20

// checkDisk returns a fault if the server's disk has no room for copies of so many bytes. The caller holds l.mu.
func (l *Ledger) checkDisk(bytes int64) error {
	left, err := l.held.FreeBytes()
	if err != nil {
		return fault.Wrap(fault.FileAccess, err, "how much room the server's disk has could not be found out")
	}
	var making int64 // a part of it may be on the disk already
	for _, r := range l.reserved {
		making += r.Copies
	}
	if bytes > left-keepFree-making {
		return fault.New(fault.ResourceLimit, "the server's disk has no room for a copy of the session's files: "+
			"%d MB are left, %d MB of them for copies that are being made, and it needs %d MB", left>>20, making>>20,
			(bytes+keepFree)>>20).
			Advise("Remove files that are not needed, or snapshots with remove_snapshot, and try again")
	}
	return nil
}

// Upload makes bytes count that are about to be written to one of the principal's workspaces, if their quota allows it.
func (l *Ledger) Upload(owner string, to *Disk, bytes int64) (*Upload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkQuota(owner, bytes); err != nil {
		return nil, err
	}
	return to.Upload(bytes), nil
}

// checkQuota returns a fault if a principal may not have so many bytes more on the disk. The caller holds l.mu.
func (l *Ledger) checkQuota(owner string, more int64) error {
	limit := l.held.Bounds(owner).Quota.DiskMB
	if limit == 0 {
		return nil
	}
	used := l.disk(owner)
	if more <= int64(limit)<<20-used { // no sum: a client may say any size
		return nil
	}
	rest := ""
	if more > 1 {
		rest = fmt.Sprintf("; %d MB more do not fit", Megabytes(more))
	}
	return quota.Reached("disk_mb", Megabytes(used), limit,
		"the workspaces of all your sessions have %d MB together, and your quota is %d MB%s", Megabytes(used), limit,
		rest).
		Advise("Remove files with execute_command, or end sessions with stop_session, which removes their files: "+
			"stopped sessions count too",
			"What was removed counts some seconds later, when the workspace has been measured again")
}
