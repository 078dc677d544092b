package usage

import (
	"math"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/quota"
)

// Amount is how much of each a principal has, or wants.
type Amount struct {
	Sessions  int // live ones, without homes
	MemoryMB  int
	MilliCPUs int   // thousandths, whose sums are exact
	Disk      int64 // bytes of workspaces and snapshots, in the principal's quota
	Copies    int64 // bytes of copies that are about to be made on the server's disk
}

// Of returns what a live session of a flavor counts. A home counts by its memory and its CPUs, not as one of the sessions.
func Of(home bool, f image.Flavor) Amount {
	a := Amount{Sessions: 1, MemoryMB: f.MemoryMB, MilliCPUs: milli(f.CPUs)}
	if home {
		a.Sessions = 0
	}
	return a
}

// milli returns thousandths.
func milli(cpus float64) int { return int(math.Round(cpus * 1000)) }

// Megabytes returns a size in MB, rounded up.
func Megabytes(bytes int64) int {
	whole := bytes >> 20
	if bytes&(1<<20-1) != 0 {
		whole++
	}
	return int(whole)
}

// plus returns a with times b more.
func (a Amount) plus(b Amount, times int) Amount {
	return Amount{a.Sessions + times*b.Sessions, a.MemoryMB + times*b.MemoryMB, a.MilliCPUs + times*b.MilliCPUs,
		a.Disk + int64(times)*b.Disk, a.Copies + int64(times)*b.Copies}
}

// Plus returns the sum.
func (a Amount) Plus(b Amount) Amount { return a.plus(b, 1) }

// Beyond returns what a has more than b, of each.
func (a Amount) Beyond(b Amount) Amount {
	return Amount{max(a.Sessions-b.Sessions, 0), max(a.MemoryMB-b.MemoryMB, 0), max(a.MilliCPUs-b.MilliCPUs, 0),
		max(a.Disk-b.Disk, 0), max(a.Copies-b.Copies, 0)}
}

func (a Amount) isLive() bool { return a.Sessions > 0 || a.MemoryMB > 0 || a.MilliCPUs > 0 }

func (a Amount) cpus() float64 { return float64(a.MilliCPUs) / 1000 }

// used is what is in use: by one principal, and the memory of the sessions of all.
type used struct {
	own      Amount
	memoryMB int
}

// Bounds are the limits of a principal.
type Bounds struct {
	Sessions int // live sessions, without the home
	MemoryMB int // of the sessions of all; 0: no limit
	Quota    quota.Limits
}

// check returns the fault of the limit that a principal reaches who gets so much more of live sessions; nil: of none.
func (b Bounds) check(used used, want Amount) error {
	own, limits := used.own, b.Quota
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
	case limits.CPUs > 0 && all.MilliCPUs > milli(limits.CPUs):
		return quota.Reached("cpus", own.cpus(), limits.CPUs,
			"your live sessions have %g CPUs together, and your quota is %g; a session of %g CPUs does not fit",
			own.cpus(), limits.CPUs, want.cpus())
	case b.MemoryMB > 0 && used.memoryMB+want.MemoryMB > b.MemoryMB:
		return fault.Limit("memory", used.memoryMB, b.MemoryMB,
			"the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit",
			used.memoryMB, b.MemoryMB, want.MemoryMB).
			With("current_memory_mb", used.memoryMB).With("limit_memory_mb", b.MemoryMB)
	}
	return nil
}
