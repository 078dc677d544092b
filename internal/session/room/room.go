// Package room says whether a principal may have one more live session.
package room

import (
	"math"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/quota"
)

// Quota is a number of sessions, without homes, with their memory and CPUs, as they count against the
// limits.
type Quota struct{ Sessions, MemoryMB, MilliCPUs int }

// Plus returns the sum.
func (q Quota) Plus(r Quota) Quota {
	return Quota{q.Sessions + r.Sessions, q.MemoryMB + r.MemoryMB, q.MilliCPUs + r.MilliCPUs}
}

// Minus returns the difference.
func (q Quota) Minus(r Quota) Quota {
	return Quota{q.Sessions - r.Sessions, q.MemoryMB - r.MemoryMB, q.MilliCPUs - r.MilliCPUs}
}

// Beyond returns what q has more than r, of each.
func (q Quota) Beyond(r Quota) Quota {
	return Quota{max(q.Sessions-r.Sessions, 0), max(q.MemoryMB-r.MemoryMB, 0), max(q.MilliCPUs-r.MilliCPUs, 0)}
}

// Of returns what a live session of a flavor counts. A home counts by its memory and its CPUs, not as
// one of the sessions.
func Of(home bool, f image.Flavor) Quota {
	q := Quota{1, f.MemoryMB, MilliCPUs(f.CPUs)}
	if home {
		q.Sessions = 0
	}
	return q
}

// MilliCPUs returns thousandths, whose sums are exact.
func MilliCPUs(cpus float64) int { return int(math.Round(cpus * 1000)) }

// Usage is what is in use: by one principal, and the memory of the sessions of all.
type Usage struct {
	Own      Quota
	MemoryMB int
}

// Bounds are the limits of a principal.
type Bounds struct {
	Sessions int // live sessions, without the home
	MemoryMB int // of the sessions of all; 0: no limit
	Quota    quota.Limits
}

// Reached returns the fault of the limit that a principal has reached. There is one.
func (b Bounds) Reached(used Usage, want Quota) error {
	own, limits := used.Own, b.Quota
	switch all := own.Plus(want); {
	case all.Sessions > b.Sessions:
		return fault.Limit("sessions", own.Sessions, b.Sessions,
			"%d of your %d sessions are live; stop one with stop_session, or use one of them", own.Sessions,
			b.Sessions)
	case limits.Sessions > 0 && all.Sessions > limits.Sessions:
		return quota.Reached("sessions", own.Sessions, limits.Sessions,
			"%d of your sessions are live, and your quota is %d; stop one with stop_session, or use one of them",
			own.Sessions, limits.Sessions)
	case limits.MemoryMB > 0 && all.MemoryMB > limits.MemoryMB:
		return quota.Reached("memory_mb", own.MemoryMB, limits.MemoryMB,
			"your live sessions have %d MB of memory together, and your quota is %d MB; a session of %d MB does "+
				"not fit",
			own.MemoryMB, limits.MemoryMB, want.MemoryMB)
	case limits.CPUs > 0 && all.MilliCPUs > MilliCPUs(limits.CPUs):
		return quota.Reached("cpus", float64(own.MilliCPUs)/1000, limits.CPUs,
			"your live sessions have %g CPUs together, and your quota is %g; a session of %g CPUs does not fit",
			float64(own.MilliCPUs)/1000, limits.CPUs, float64(want.MilliCPUs)/1000)
	}
	return fault.Limit("memory", used.MemoryMB, b.MemoryMB,
		"the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit",
		used.MemoryMB, b.MemoryMB, want.MemoryMB).
		With("current_memory_mb", used.MemoryMB).With("limit_memory_mb", b.MemoryMB)
}

// Fit reports whether the limits allow a principal so much more.
func (b Bounds) Fit(used Usage, want Quota) bool {
	all, limits := used.Own.Plus(want), b.Quota
	within := func(used, limit int) bool { return limit == 0 || used <= limit }
	return all.Sessions <= b.Sessions && within(all.Sessions, limits.Sessions) &&
		within(all.MemoryMB, limits.MemoryMB) && within(all.MilliCPUs, MilliCPUs(limits.CPUs)) &&
		within(used.MemoryMB+want.MemoryMB, b.MemoryMB)
}
