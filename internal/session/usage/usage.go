// Package usage says how much each principal uses of what sessions have, and whether one may have more: live sessions with
// their memory and CPUs, room on the disk, and traffic of the day.
package usage

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"sandlot/internal/quota"
)

// Holder knows what sessions have. No method but Evict waits for a sandbox, the store or a client.
type Holder interface {
	// Bounds returns the limits of a principal.
	Bounds(owner string) Bounds
	// Live returns what the live sessions of a principal have, without what is reserved, and the memory of all in MB.
	Live(owner string) (own Amount, memoryMB int)
	// DiskBytes returns how much of the disk a principal's workspaces and snapshots have, as far as it is known.
	DiskBytes(owner string) int64
	// FreeBytes returns how much room the disk of the workspaces has.
	FreeBytes() (int64, error)
	// Evict puts an idle session of a principal to sleep, to make room; false: there is none.
	Evict(ctx context.Context, owner string) bool
}

// Ledger has what is reserved for principals, and their traffic of the day.
type Ledger struct {
	*Days
	held Holder

	mu       sync.Mutex // held before the holder's locks
	reserved map[string]Amount
}

// New returns a Ledger without reservations.
func New(held Holder) *Ledger {
	l := &Ledger{held: held, reserved: map[string]Amount{}}
	l.Days = newDays(func(owner string) int64 { return int64(held.Bounds(owner).Quota.TrafficMBPerDay) << 20 })
	return l
}

// maxEvicted is how many idle sessions are put to sleep at most for one reservation.
const maxEvicted = 3

// Reserve makes so much more count for a principal until release is called, which may be called again. It may put idle
// sessions of the principal to sleep for that. The error is a fault that names the limit.
func (l *Ledger) Reserve(ctx context.Context, owner string, want Amount) (release func(), err error) {
	for try := 0; ; try++ {
		evictable, err := l.tryReserve(owner, want)
		switch {
		case err == nil:
			return sync.OnceFunc(func() { l.release(owner, want) }), nil
		case !evictable || try == maxEvicted || !l.held.Evict(ctx, owner):
			return nil, err
		}
	}
}

// tryReserve is Reserve without putting sessions to sleep. evictable: that may help.
func (l *Ledger) tryReserve(owner string, want Amount) (evictable bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if want.isLive() {
		if err := l.held.Bounds(owner).check(l.live(owner), want); err != nil {
			return true, err
		}
	}
	if want.Disk > 0 {
		if err := l.checkQuota(owner, want.Disk); err != nil {
			return false, err
		}
	}
	if want.Copies > 0 {
		if err := l.checkDisk(want.Copies); err != nil {
			return false, err
		}
	}
	l.reserved[owner] = l.reserved[owner].plus(want, 1)
	return false, nil
}

func (l *Ledger) release(owner string, amount Amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reserved[owner] = l.reserved[owner].plus(amount, -1); l.reserved[owner] == (Amount{}) {
		delete(l.reserved, owner)
	}
}

// live returns what counts of live sessions. The caller holds l.mu.
func (l *Ledger) live(owner string) used {
	own, memory := l.held.Live(owner)
	for _, r := range l.reserved {
		memory += r.MemoryMB
	}
	return used{own.plus(l.reserved[owner], 1), memory}
}

// disk returns how many bytes of the disk count for a principal. The caller holds l.mu.
func (l *Ledger) disk(owner string) int64 { return l.held.DiskBytes(owner) + l.reserved[owner].Disk }

// Fits reports whether a principal may have so much more of live sessions, without one that is put to sleep.
func (l *Ledger) Fits(owner string, want Amount) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held.Bounds(owner).check(l.live(owner), want) == nil
}

// CheckDisk returns a fault if a principal's quota of the disk does not allow so many bytes more, and else nil.
func (l *Ledger) CheckDisk(owner string, bytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkQuota(owner, bytes)
}

// DiskBytes returns how many bytes of the disk count for a principal, as far as they are known.
func (l *Ledger) DiskBytes(owner string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.disk(owner)
}

// Reserved returns how many principals have reservations.
func (l *Ledger) Reserved() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.reserved)
}

// Text says how much a principal uses of its quotas of what sessions have; "": there are none.
func (l *Ledger) Text(owner string) string {
	var parts []string
	add := func(limited bool, format string, args ...any) {
		if limited {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	limits, own, disk := l.held.Bounds(owner).Quota, l.own(owner), l.DiskBytes(owner)
	add(limits.Sessions > 0, "%d of %d sessions", own.Sessions, limits.Sessions)
	add(limits.MemoryMB > 0, "%d of %d MB of memory", own.MemoryMB, limits.MemoryMB)
	add(limits.CPUs > 0, "%g of %g CPUs", own.cpus(), limits.CPUs)
	add(limits.DiskMB > 0, "%d of %d MB of disk", Megabytes(disk), limits.DiskMB)
	add(limits.TrafficMBPerDay > 0, "%d of %d MB of network today (UTC)", Megabytes(l.Traffic(owner)), limits.TrafficMBPerDay)
	return strings.Join(parts, ", ")
}

// Uses returns how much a principal uses of each quota of what sessions have.
func (l *Ledger) Uses(owner string) []quota.Use {
	limits, own := l.held.Bounds(owner).Quota, l.own(owner)
	disk := quota.Use{Name: "disk_mb"}
	if limits.DiskMB > 0 {
		disk = quota.NewUse(disk.Name, Megabytes(l.DiskBytes(owner)), limits.DiskMB)
	}
	return []quota.Use{quota.NewUse("sessions", own.Sessions, limits.Sessions),
		quota.NewUse("memory_mb", own.MemoryMB, limits.MemoryMB),
		{Name: "cpus", Used: new(own.cpus()), Limit: limits.CPUs}, disk,
		quota.NewUse("traffic_mb_per_day", Megabytes(l.Traffic(owner)), limits.TrafficMBPerDay)}
}

func (l *Ledger) own(owner string) Amount {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live(owner).own
}
