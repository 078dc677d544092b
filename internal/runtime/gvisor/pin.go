package gvisor

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pinner pins each sandbox that computes all the time to as many cores as it has CPUs, so
// that the short calls of other sandboxes find a free core. A CPU quota alone does not
// ensure that: a sandbox may use its quota on all cores at once, and delays every wake-up of
// the others. When so many sandboxes compute that no core would stay free, none is pinned.
// Only one goroutine uses a pinner.
type pinner struct {
	cgroups cgroups
	cores   []int
	load    map[int]int // how many sandboxes are pinned to each core
	wanted  int         // sum of wantedCores over all sandboxes
}

// cpuUse is what a pinner knows of one sandbox.
type cpuUse struct {
	cpu    time.Duration // processor time that it had used at the last update
	at     time.Time     // of the last update
	busy   int           // grows with each update at which it was busy, and falls with others
	wanted int           // cores that it needs while it is busy all the time; else 0
	pinned []int         // the cores that it is pinned to; nil: all
}

const (
	// pinScore is the busy score at which a sandbox is pinned. The score never exceeds
	// maxBusyScore, and a pinned sandbox is released when it has fallen to 0.
	busyLooks     = 2
	mostBusyLooks = 8
)

func newPinner(c cgroups) *pinner {
	p := &pinner{cgroups: c, load: map[int]int{}}
	if c.usable() {
		file := filepath.Join(cgroupRoot, "cpuset", "cpuset.cpus")
		if c.version == 2 {
			file = filepath.Join(cgroupRoot, "cpuset.cpus.effective")
		}
		text, err := os.ReadFile(file)
		if err == nil {
			p.cores = cores(strings.TrimSpace(string(text)))
		}
	}
	return p
}

// cores parses a list of the kernel's, such as 0-2,5.
func cores(list string) (all []int) {
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

// update pins or releases a sandbox with that many CPUs, which has used that much processor
// time until now.
func (p *pinner) update(id string, cpus float64, used time.Duration, now time.Time, u *cpuUse) {
	n := int(math.Ceil(cpus))
	if n <= 0 || n >= len(p.cores) {
		return // its limit allows all cores
	}
	rate := float64(used-u.cpu) / float64(max(now.Sub(u.at), 1))
	first := u.at.IsZero()
	u.cpu, u.at = used, now
	switch {
	case first:
		return
	case rate > 0.8*cpus:
		u.busy = min(u.busy+1, mostBusyLooks)
	case rate < 0.5*cpus:
		u.busy = max(u.busy-1, 0)
	}
	switch {
	case u.wanted == 0 && u.busy >= busyLooks:
		u.wanted = n
		p.wanted += n
	case u.wanted > 0 && u.busy == 0:
		p.uncount(u)
	}
	switch pin := u.wanted > 0 && p.wanted < len(p.cores); {
	case pin && u.pinned == nil:
		p.pin(id, n, u)
	case !pin && u.pinned != nil:
		p.release(id, u)
	}
}

// remove forgets a sandbox that is gone.
func (p *pinner) remove(id string, u *cpuUse) {
	p.uncount(u)
	p.release(id, u)
}

// uncount records that a sandbox does not compute all the time any more.
func (p *pinner) uncount(u *cpuUse) {
	p.wanted -= u.wanted
	u.wanted = 0
}

// pin pins the sandbox to the n cores to which the fewest others are pinned.
func (p *pinner) pin(id string, n int, u *cpuUse) {
	order := slices.Clone(p.cores)
	slices.SortStableFunc(order, func(a, b int) int { return p.load[a] - p.load[b] })
	if p.set(id, order[:n]) {
		u.pinned = order[:n]
		for _, c := range u.pinned {
			p.load[c]++
		}
	}
}

// release gives the sandbox, which may be dead, all cores.
func (p *pinner) release(id string, u *cpuUse) {
	p.set(id, p.cores)
	for _, c := range u.pinned {
		p.load[c]--
	}
	u.pinned = nil
}

func (p *pinner) set(id string, list []int) bool {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = strconv.Itoa(c)
	}
	// Without the cpuset controller this fails, and sandboxes have all cores.
	return os.WriteFile(p.cgroups.file(id, "cpuset", "cpuset.cpus"), []byte(strings.Join(text, ",")), 0) == nil
}
