package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

// guard ends processes that reach the sandbox's limits, so that the others, and
// the sandbox, live on. What it misses, the host ends with all of it.
type guard struct {
	agent *Agent
	wake  chan struct{}

	mu     sync.Mutex
	limits agentv1.Limits
	killed time.Time // when it ended something last
	why    string
}

func newGuard(a *Agent) *guard { return &guard{agent: a, wake: make(chan struct{}, 1)} }

func (g *guard) set(l *agentv1.Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits.MemoryBytes, g.limits.Processes, g.limits.DiskBytes = l.MemoryBytes, l.Processes, l.DiskBytes
}

func (g *guard) bounds() (memory, processes uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.MemoryBytes, g.limits.Processes
}

// hurry makes the guard look again soon: something was started.
func (g *guard) hurry() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

const (
	often  = 20 * time.Millisecond
	steady = 200 * time.Millisecond
	seldom = time.Second
)

// run looks often while memory grows, sometimes while something runs, and
// seldom otherwise: a look costs as much as a short call.
func (g *guard) run(stop <-chan struct{}) {
	var last, limit, most uint64
	crowded, counted := time.Time{}, time.Time{}
	t := time.NewTimer(seldom)
	defer t.Stop()
	pause := seldom
	for {
		select {
		case <-g.wake:
			if pause > steady { // the first look after a quiet time comes soon
				pause = often
				t.Reset(pause)
			}
			continue
		case <-t.C:
		case <-stop:
			return
		}
		limit, most = g.bounds()
		used, exact := memoryBound(), false
		if used == 0 || limit > 0 && used > limit/2 {
			used, exact = memoryUsed(), true
		}
		g.agent.mu.Lock()
		active := g.agent.active > 0 || time.Since(g.agent.used) < seldom
		g.agent.mu.Unlock()
		pause = min(pause*2, seldom)
		if active {
			pause = min(pause, steady)
		}
		if limit > 0 && used > limit/2 || used > last+(8<<20) {
			pause = often
		}
		last = used
		if exact && limit > 0 && used > limit {
			g.relieve(limit)
			pause = often
		}
		if most > 0 && active && time.Since(counted) > 500*time.Millisecond {
			crowded, counted = g.crowd(most, crowded), time.Now()
		}
		t.Reset(pause)
	}
}

// crowd ends the largest group when the sandbox has been full of processes for
// two seconds.
func (g *guard) crowd(most uint64, since time.Time) time.Time {
	if threads() <= int(most*9/10) {
		return time.Time{}
	}
	if since.IsZero() {
		return time.Now()
	}
	if time.Since(since) > 2*time.Second {
		g.thin()
		return time.Time{}
	}
	return since
}

// relieve kills the process with the most memory, and waits until what it held
// is free: that takes the kernel a moment, in which the others, which did
// nothing wrong, would be next.
func (g *guard) relieve(limit uint64) {
	worst, size := largest(0)
	if worst == 0 || size < 4<<20 {
		return // what fills the memory is no process
	}
	g.note("memory")
	g.blame(worst, "memory")
	_ = syscall.Kill(worst, unix.SIGKILL)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		time.Sleep(often)
		if memoryUsed() <= limit {
			return
		}
		if _, next := largest(worst); next > size/2 { // it was not alone
			return
		}
	}
}

// largest returns the process with the most memory, but for one, and how many
// bytes that are.
func largest(but int) (worst int, size int64) {
	for _, pid := range ours() {
		if pid == os.Getpid() || pid == 1 || pid == but {
			continue
		}
		if rss := rssOf(pid); rss > size {
			worst, size = pid, rss
		}
	}
	return worst, size
}

// thin kills the group, or session, with the most processes.
func (g *guard) thin() {
	count := map[int][]int{}
	for _, pid := range ours() {
		f, err := procStat(pid)
		if err != nil || pid == os.Getpid() || pid == 1 {
			continue
		}
		if s, err := strconv.Atoi(f[3]); err == nil && s > 1 {
			count[s] = append(count[s], pid)
		}
	}
	worst := 0
	for s, list := range count {
		if worst == 0 || len(list) > len(count[worst]) {
			worst = s
		}
	}
	if worst == 0 || len(count[worst]) < 8 {
		return
	}
	g.note("processes")
	g.blame(worst, "processes")
	// Stop them first: while some are killed others would start more.
	for _, pid := range count[worst] {
		_ = syscall.Kill(pid, unix.SIGSTOP)
	}
	for round := 0; round < 10; round++ {
		found := false
		for _, pid := range ours() {
			if f, err := procStat(pid); err == nil && f[3] == strconv.Itoa(worst) && f[0] != "Z" && pid != 1 {
				found = true
				_ = syscall.Kill(pid, unix.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(often)
	}
}

func (g *guard) note(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed, g.why = time.Now(), why
}

// ours lists the processes that the agent may end: all of the sandbox's where it
// is the first one, and its own descendants anywhere else.
func ours() []int {
	if os.Getpid() == 1 {
		return pids()
	}
	return descendants(os.Getpid())
}

// recent says which limit ended something since start, or "".
func (g *guard) recent(start time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.killed.After(start) {
		return g.why
	}
	return ""
}

// blame tells the process of ours that the victim belongs to.
func (g *guard) blame(pid int, why string) {
	chain := map[int]bool{pid: true}
	for up := pid; up > 1; {
		f, err := procStat(up)
		if err != nil {
			break
		}
		session, _ := strconv.Atoi(f[3])
		chain[session] = true
		if up, err = strconv.Atoi(f[1]); err != nil {
			break
		}
		chain[up] = true
	}
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	for _, p := range g.agent.processes {
		if chain[p.pid] {
			p.blame(why)
		}
	}
	for _, i := range g.agent.interps {
		if chain[i.PID()] {
			i.Blame(why)
		}
	}
}

// usage is what the sandbox uses.
func (g *guard) usage() *agentv1.UsageResponse {
	u := &agentv1.UsageResponse{MemoryBytes: memoryUsed()}
	for _, pid := range ours() {
		f, err := procStat(pid)
		if err != nil || pid == os.Getpid() {
			continue
		}
		u.Processes++
		user, _ := strconv.ParseUint(f[11], 10, 64)
		system, _ := strconv.ParseUint(f[12], 10, 64)
		u.CpuMicros += (user + system) * 10_000
	}
	var st unix.Statfs_t
	if unix.Statfs("/", &st) == nil && st.Blocks >= st.Bfree {
		u.DiskBytes = (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
	return u
}

// inGVisor: there the machine's memory is the sandbox's.
var inGVisor = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/version")
	return err == nil && strings.Contains(string(b), "gvisor")
})

// memoryUsed is what all processes of the sandbox use, in bytes.
func memoryUsed() uint64 {
	if !inGVisor() {
		var total uint64
		for _, pid := range append(ours(), os.Getpid()) {
			total += uint64(rssOf(pid))
		}
		return total
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	// Not what is missing from the total, which gVisor does not show beyond the
	// sandbox's limit.
	var anonymous, shared uint64
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.Fields(s.Text())
		if len(line) < 2 {
			continue
		}
		n, _ := strconv.ParseUint(line[1], 10, 64)
		switch line[0] {
		case "AnonPages:":
			anonymous = n << 10
		case "Shmem:":
			shared = n << 10
		}
	}
	return anonymous - min(shared, anonymous)
}

// memoryBound is more than, or as much as, memoryUsed, and costs a look at idle
// sandboxes, of which there are many, a tenth: gVisor counts its pages for
// /proc/meminfo. It is 0 where it says nothing.
func memoryBound() uint64 {
	var i unix.Sysinfo_t
	if !inGVisor() || unix.Sysinfo(&i) != nil || i.Freeram == 0 || i.Freeram > i.Totalram {
		return 0
	}
	return (i.Totalram - i.Freeram) * uint64(max(i.Unit, 1))
}

func procStat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(string(text), ')')
	f := strings.Fields(string(text[i+1:]))
	if i < 0 || len(f) < 22 {
		return nil, errors.New("short stat")
	}
	return f, nil
}

func rssOf(pid int) int64 {
	f, err := procStat(pid)
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return pages * int64(os.Getpagesize())
}

// threads counts all threads of all processes.
func threads() int {
	n := 0
	for _, pid := range ours() {
		if f, err := procStat(pid); err == nil {
			k, _ := strconv.Atoi(f[17])
			n += max(k, 1)
		}
	}
	return n
}
