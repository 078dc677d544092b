package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Pinner pins each sandbox that computes all the time to as many cores as it has CPUs, so
// that the short calls of other sandboxes find a free core. A CPU quota alone does not
// ensure that: a sandbox may use its quota on all cores at once, and delays every wake-up of
// the others. When so many sandboxes compute that no core would stay free, none is pinned, and
// neither is one beside which no other one works: gVisor's own threads could not use its whole quota.
// On one core, ordinary work of a lone user (grep -r, tsc) took 1.3 times as long.
// Only one goroutine uses a Pinner.
type Pinner struct {
	groups      Groups
	cores       []int
	pinsPerCore map[int]int          // how many sandboxes are pinned to each core
	wantedCores int                  // sum of wantedCores over all sandboxes
	worked      map[string]time.Time // when each sandbox has worked last, by id
}

// CPUUse is what a Pinner knows of one sandbox.
type CPUUse struct {
	lastCPU     time.Duration // processor time that it had used at the last update
	lastLook    time.Time     // of the last update
	windowCPU   time.Duration // processor time that it had used at windowStart
	windowStart time.Time
	busyScore   int   // grows with each update at which it was busy, and falls with others
	wanted      int   // cores that it needs while it is busy all the time; else 0
	pinnedCores []int // the cores that it is pinned to; nil: all
}

const (
	// pinScore is the busy score at which a sandbox is pinned. The score never exceeds
	// maxBusyScore, and a pinned sandbox is released when it has fallen to 0.
	pinScore     = 2
	maxBusyScore = 8

	// A sandbox works if it takes more than idleRate of a core for a workWindow. One in which nothing happens, with a
	// Python that waits, takes 0.0016 of a core.
	idleRate   = 0.004
	workWindow = 2 * time.Second
	// restTime is for how long a sandbox that works now and then counts as one that works.
	restTime = 10 * time.Second
)

// NewPinner reads which cores there are. Without cgroups it pins nothing.
func NewPinner(c Groups) *Pinner {
	p := &Pinner{groups: c, pinsPerCore: map[int]int{}, worked: map[string]time.Time{}}
	if c.Usable() {
		file := filepath.Join(Root, "cpuset", "cpuset.cpus")
		if c.version == 2 {
			file = filepath.Join(Root, "cpuset.cpus.effective")
		}
		text, err := os.ReadFile(file)
		if err == nil {
			p.cores = parseCPUList(strings.TrimSpace(string(text)))
		}
	}
	return p
}

// parseCPUList parses a list of the kernel's, such as 0-2,5.
func parseCPUList(list string) (all []int) {
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil {
			return nil
		}
		for n := a; n <= b; n++ {
			all = append(all, n)
		}
	}
	return all
}

// Update pins or releases a sandbox with that many CPUs, which has used that much processor
// time until now.
func (p *Pinner) Update(id string, cpus float64, used time.Duration, now time.Time, u *CPUUse) {
	rate := float64(used-u.lastCPU) / float64(max(now.Sub(u.lastLook), 1))
	first := u.lastLook.IsZero()
	u.lastCPU, u.lastLook = used, now
	if over := now.Sub(u.windowStart); over >= workWindow {
		if first || float64(used-u.windowCPU) > idleRate*float64(over) { // one that is new has work
			p.worked[id] = now
		}
		u.windowCPU, u.windowStart = used, now
	}
	n := int(math.Ceil(cpus))
	if n <= 0 || n >= len(p.cores) {
		return // its limit allows all cores
	}
	switch {
	case first:
		return
	case rate > 0.8*cpus:
		u.busyScore = min(u.busyScore+1, maxBusyScore)
	case rate < 0.5*cpus:
		u.busyScore = max(u.busyScore-1, 0)
	}
	switch {
	case u.wanted == 0 && u.busyScore >= pinScore:
		u.wanted = n
		p.wantedCores += n
	case u.wanted > 0 && u.busyScore == 0:
		p.uncountWanted(u)
	}
	switch pin := u.wanted > 0 && p.wantedCores < len(p.cores) && p.othersWork(id, now); {
	case pin && u.pinnedCores == nil:
		p.pin(id, n, u)
	case !pin && u.pinnedCores != nil:
		p.release(id, u)
	}
}

// othersWork reports whether other sandboxes than this one work.
func (p *Pinner) othersWork(id string, now time.Time) bool {
	for other, at := range p.worked {
		if other != id && now.Sub(at) < restTime {
			return true
		}
	}
	return false
}

// Remove forgets a sandbox that is gone.
func (p *Pinner) Remove(id string, u *CPUUse) {
	delete(p.worked, id)
	p.uncountWanted(u)
	p.release(id, u)
}

// uncountWanted records that a sandbox does not compute all the time any more.
func (p *Pinner) uncountWanted(u *CPUUse) {
	p.wantedCores -= u.wanted
	u.wanted = 0
}

// pin pins the sandbox to the n cores to which the fewest others are pinned.
func (p *Pinner) pin(id string, n int, u *CPUUse) {
	byLoad := slices.Clone(p.cores)
	slices.SortStableFunc(byLoad, func(a, b int) int { return p.pinsPerCore[a] - p.pinsPerCore[b] })
	if p.writeCPUs(id, byLoad[:n]) {
		u.pinnedCores = byLoad[:n]
		for _, c := range u.pinnedCores {
			p.pinsPerCore[c]++
		}
	}
}

// release gives the sandbox, which may be dead, all cores.
func (p *Pinner) release(id string, u *CPUUse) {
	p.writeCPUs(id, p.cores)
	for _, c := range u.pinnedCores {
		p.pinsPerCore[c]--
	}
	u.pinnedCores = nil
}

func (p *Pinner) writeCPUs(id string, list []int) bool {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = strconv.Itoa(c)
	}
	// Without the cpuset controller this fails, and sandboxes have all cores.
	return os.WriteFile(p.groups.filePath(id, "cpuset", "cpuset.cpus"), []byte(strings.Join(text, ",")), 0) == nil
}
