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

// pinner pins a sandbox that computes all the time to as many cores as it has CPUs, so
// that the short calls of others find a free one. A quota alone does not: a sandbox may
// use it up on all cores at once, and every wake-up of the others waits for that. When so
// many sandboxes compute that no core would be free, all have all cores. One goroutine
// uses it.
type pinner struct {
	cgroups cgroups
	cores   []int
	load    map[int]int // how many sandboxes are pinned to a core
	wanted  int         // cores, by all sandboxes that compute
}

// cpuUse is what a pinner knows of one sandbox.
type cpuUse struct {
	cpu    time.Duration // used until at
	at     time.Time
	busy   int   // looks at which it computed, less those at which it did not
	wanted int   // cores that it counts for in pinner.wanted
	pinned []int // cores; nil: all
}

const (
	// busyLooks is how many looks in a row a sandbox must compute before it is pinned,
	// and mostBusyLooks the most that count until it is released.
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

// cores reads a list of the kernel's, such as 0-2,5.
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

// update pins or releases a sandbox that has used so much processor time until now.
func (p *pinner) update(id string, cpus float64, used time.Duration, now time.Time, u *cpuUse) {
	n := int(math.Ceil(cpus))
	if n <= 0 || n >= len(p.cores) {
		return // it may have them all
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

func (p *pinner) uncount(u *cpuUse) {
	p.wanted -= u.wanted
	u.wanted = 0
}

// pin takes the n cores that the fewest others are pinned to.
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
	// Where the controller is off, sandboxes have all cores.
	return os.WriteFile(p.cgroups.file(id, "cpuset", "cpuset.cpus"), []byte(strings.Join(text, ",")), 0) == nil
}
