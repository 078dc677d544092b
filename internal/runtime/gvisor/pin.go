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

// keeper keeps a sandbox that computes all the time to as many cores as it has
// CPUs, so that the short calls of others find a free one. A quota alone does
// not: a sandbox may use it up on all cores at once, and every wake-up of the
// others waits behind it. When so many compute that no core would be free, all
// have all cores. One goroutine uses it.
type keeper struct {
	cgroups cgroups
	cores   []int
	load    map[int]int // how many sandboxes are kept to a core
	wanted  int         // cores, by all that compute
}

// pulse is what a keeper knows of one sandbox.
type pulse struct {
	cpu  time.Duration
	at   time.Time
	heat int
	busy int   // cores that it is counted for in wanted
	kept []int // cores; nil: all
}

const (
	// hot is how many looks in a row a sandbox must be busy before it is kept,
	// and the most that it can be ahead of being let go.
	hot     = 2
	hottest = 8
)

func newKeeper(c cgroups) *keeper {
	k := &keeper{cgroups: c, load: map[int]int{}}
	if c.usable() {
		file := filepath.Join(cgroupRoot, "cpuset", "cpuset.cpus")
		if c.version == 2 {
			file = filepath.Join(cgroupRoot, "cpuset.cpus.effective")
		}
		text, err := os.ReadFile(file)
		if err == nil {
			k.cores = cores(strings.TrimSpace(string(text)))
		}
	}
	return k
}

// cores reads a list of the kernel's, such as 0-2,5.
func cores(list string) []int {
	var all []int
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

// look takes a sandbox's pulse.
func (k *keeper) look(id string, cpus float64, used time.Duration, now time.Time, p *pulse) {
	n := int(math.Ceil(cpus))
	if n <= 0 || n >= len(k.cores) {
		return // it may have them all
	}
	span := now.Sub(p.at)
	rate := float64(used-p.cpu) / float64(max(span, 1))
	first := p.at.IsZero()
	p.cpu, p.at = used, now
	switch {
	case first:
		return
	case rate > 0.8*cpus:
		p.heat = min(p.heat+1, hottest)
	case rate < 0.5*cpus:
		p.heat = max(p.heat-1, 0)
	}
	switch {
	case p.busy == 0 && p.heat >= hot:
		p.busy = n
		k.wanted += n
	case p.busy > 0 && p.heat == 0:
		k.calm(p)
	}
	keep := p.busy > 0 && k.wanted < len(k.cores)
	switch {
	case keep && p.kept == nil:
		k.keep(id, n, p)
	case !keep && p.kept != nil:
		k.free(id, p)
	}
}

// calm takes a sandbox out of the count.
func (k *keeper) calm(p *pulse) {
	k.wanted -= p.busy
	p.busy = 0
}

// keep takes the n cores that the fewest others are kept to.
func (k *keeper) keep(id string, n int, p *pulse) {
	order := slices.Clone(k.cores)
	slices.SortStableFunc(order, func(a, b int) int { return k.load[a] - k.load[b] })
	if k.set(id, order[:n]) {
		p.kept = order[:n]
		for _, c := range p.kept {
			k.load[c]++
		}
	}
}

// free lets the sandbox, which may be dead, have all cores.
func (k *keeper) free(id string, p *pulse) {
	k.set(id, k.cores)
	for _, c := range p.kept {
		k.load[c]--
	}
	p.kept = nil
}

func (k *keeper) set(id string, list []int) bool {
	text := make([]string, len(list))
	for i, c := range list {
		text[i] = strconv.Itoa(c)
	}
	// Where the controller is off, sandboxes have all cores.
	return os.WriteFile(k.cgroups.file(id, "cpuset", "cpuset.cpus"), []byte(strings.Join(text, ",")), 0) == nil
}
