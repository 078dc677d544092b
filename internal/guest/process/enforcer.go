package process

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

// Enforcer enforces the limits of the sandbox: it kills the processes that exceed them, so
// that the other processes, and the sandbox, go on. If it fails, the host ends the sandbox.
type Enforcer struct {
	// Active reports whether a call runs, or ended a moment ago.
	Active func() bool
	// OnKill is called with the limit because of which the enforcer kills a process, and with
	// the ids of that process, its ancestors, and their sessions.
	Blame func(pids map[int]bool, limit string)

	wake chan struct{}

	limits atomic.Pointer[agentv1.Limits] // nil: none

	mu     sync.Mutex
	killed time.Time // when the enforcer last killed a process
	why    string    // the limit because of which it did
}

// NewEnforcer returns an enforcer that has no limits yet.
func NewEnforcer(active func() bool, blame func(map[int]bool, string)) *Enforcer {
	return &Enforcer{Active: active, Blame: blame, wake: make(chan struct{}, 1)}
}

// Set replaces the limits.
func (e *Enforcer) Set(l *agentv1.Limits) { e.limits.Store(l) }

// CheckSoon makes the enforcer check within 20 ms. It is called when a call begins.
func (e *Enforcer) CheckSoon() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

const (
	checkFast = 20 * time.Millisecond  // while the use of memory grows
	checkBusy = 200 * time.Millisecond // while a call runs
	// CheckIdle is the interval of checks at other times.
	CheckIdle = time.Second
)

// Run enforces the limits until stop is closed. A check costs as much as a short call, so
// Run checks at one of the three intervals.
func (e *Enforcer) Run(stop <-chan struct{}) {
	var last uint64
	crowded, counted := time.Time{}, time.Time{}
	t := time.NewTimer(CheckIdle)
	defer t.Stop()
	pause := CheckIdle
	for {
		select {
		case <-e.wake:
			if pause > checkBusy {
				pause = checkFast
				t.Reset(pause)
			}
			continue
		case <-t.C:
		case <-stop:
			return
		}
		limits := e.limits.Load()
		limit, most := limits.GetMemoryBytes(), limits.GetProcesses()
		used, exact := memoryBound(), false
		if used == 0 || limit > 0 && used > limit/2 {
			used, exact = memoryUsed(), true
		}
		active := e.Active()
		pause = min(pause*2, CheckIdle)
		if active {
			pause = min(pause, checkBusy)
		}
		if limit > 0 && used > limit/2 || used > last+(8<<20) {
			pause = checkFast
		}
		last = used
		if exact && limit > 0 && used > limit {
			e.killLargest(limit)
			pause = checkFast
		}
		if most > 0 && active && time.Since(counted) > 500*time.Millisecond {
			crowded, counted = e.checkProcesses(most, crowded), time.Now()
		}
		t.Reset(pause)
	}
}

// checkProcesses kills the group with the most processes when the sandbox has had more than
// nine tenths of the processes that it may have for two seconds. It returns since when it has
// had so many; zero: it has fewer.
func (e *Enforcer) checkProcesses(most uint64, since time.Time) time.Time {
	if threads() <= int(most*9/10) {
		return time.Time{}
	}
	if since.IsZero() {
		return time.Now()
	}
	if time.Since(since) > 2*time.Second {
		e.KillLargestGroup()
		return time.Time{}
	}
	return since
}

// killLargest kills the process with the most memory, and waits until the kernel has freed
// that memory: otherwise the next check would kill another process for it.
func (e *Enforcer) killLargest(limit uint64) {
	worst, size := largest(0)
	if worst == 0 || size < 4<<20 {
		return // files fill the memory, and no process
	}
	e.note("memory")
	e.blame(worst, "memory")
	_ = syscall.Kill(worst, unix.SIGKILL)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		time.Sleep(checkFast)
		if memoryUsed() <= limit {
			return
		}
		if _, next := largest(worst); next > size/2 { // another process is as large
			return
		}
	}
}

// largest returns the process with the most memory, and how many bytes that are. The process
// except is left out.
func largest(but int) (worst int, size int64) {
	for _, pid := range own() {
		if pid == os.Getpid() || pid == 1 || pid == but {
			continue
		}
		if rss := rssOf(pid); rss > size {
			worst, size = pid, rss
		}
	}
	return worst, size
}

// KillLargestGroup kills the session with the most processes.
func (e *Enforcer) KillLargestGroup() {
	count := map[int][]int{}
	for _, pid := range own() {
		f, err := Stat(pid)
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
	e.note("processes")
	e.blame(worst, "processes")
	// Stop all of them first: otherwise some would start more processes while others are killed.
	for _, pid := range count[worst] {
		_ = syscall.Kill(pid, unix.SIGSTOP)
	}
	for round := 0; round < 10; round++ {
		found := false
		for _, pid := range own() {
			if f, err := Stat(pid); err == nil && f[3] == strconv.Itoa(worst) && f[0] != "Z" && pid != 1 {
				found = true
				_ = syscall.Kill(pid, unix.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(checkFast)
	}
}

func (e *Enforcer) note(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.killed, e.why = time.Now(), why
}

// KilledSince returns the limit because of which a process was killed after start, or "".
func (e *Enforcer) KilledSince(start time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.killed.After(start) {
		return e.why
	}
	return ""
}

// reportKill calls OnKill for a process, its ancestors, and their sessions.
func (e *Enforcer) blame(pid int, why string) {
	chain := map[int]bool{pid: true}
	for up := pid; up > 1; {
		f, err := Stat(up)
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
	e.Blame(chain, why)
}

// Usage returns the sandbox's use of resources.
func (e *Enforcer) Usage() *agentv1.UsageResponse {
	u := &agentv1.UsageResponse{MemoryBytes: memoryUsed()}
	for _, pid := range own() {
		f, err := Stat(pid)
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
