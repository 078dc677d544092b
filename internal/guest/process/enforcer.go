package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
	OnKill func(pids map[int]bool, limit string)

	wake chan struct{}

	limits atomic.Pointer[agentv1.Limits] // nil: none

	mu        sync.Mutex
	lastKill  time.Time // when the enforcer last killed a process
	lastLimit string    // the limit because of which it did
}

// NewEnforcer returns an enforcer that has no limits yet.
func NewEnforcer(active func() bool, onKill func(map[int]bool, string)) *Enforcer {
	return &Enforcer{Active: active, OnKill: onKill, wake: make(chan struct{}, 1)}
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
	crowdedSince, lastCount := time.Time{}, time.Time{}
	t := time.NewTimer(CheckIdle)
	defer t.Stop()
	interval := CheckIdle
	for {
		select {
		case <-e.wake:
			if interval > checkBusy {
				interval = checkFast
				t.Reset(interval)
			}
			continue
		case <-t.C:
		case <-stop:
			return
		}
		limits := e.limits.Load()
		memoryLimit, maxProcesses := limits.GetMemoryBytes(), limits.GetProcesses()
		system := ownSystem()
		used, exact := memoryUpperBound(system), false
		if used == 0 || memoryLimit > 0 && used > memoryLimit/2 {
			used, exact = memoryUsed(), true
		}
		active := e.Active()
		interval = min(interval*2, CheckIdle)
		if active {
			interval = min(interval, checkBusy)
		}
		if memoryLimit > 0 && used > memoryLimit/2 || used > last+(8<<20) {
			interval = checkFast
		}
		last = used
		if exact && memoryLimit > 0 && used > memoryLimit {
			e.killLargest(memoryLimit)
			interval = checkFast
		}
		if maxProcesses > 0 && uint64(system.Procs) > maxProcesses+2*moreThreads {
			e.killOtherUsers()
			interval = checkFast
		}
		if maxProcesses > 0 && active && time.Since(lastCount) > 500*time.Millisecond {
			crowdedSince, lastCount = e.checkProcesses(maxProcesses, crowdedSince), time.Now()
		}
		t.Reset(interval)
	}
}

// checkProcesses kills the group with the most processes when the sandbox has had more than
// nine tenths of the processes that it may have for two seconds. It returns since when it has
// had so many; zero: it has fewer.
func (e *Enforcer) checkProcesses(maxProcesses uint64, since time.Time) time.Time {
	if threadCount() <= int(maxProcesses*9/10) {
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

// programScore is the oom_score_adj of programs: where memory is short, a program goes before an interpreter that
// uses up to a fifth of the limit more, and before the agent. So a fork bomb of small processes does not take the
// interpreter, and a large interpreter does not take small programs.
const programScore = 200

// offer raises the oom_score_adj of a program. What the program starts inherits it, and nobody in the sandbox may
// lower it.
func (ps *Processes) offer(pid int) {
	_ = ps.User.Do(func() error { // the file is the user's. It is gone if the program has ended
		return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), strconv.AppendInt(nil, programScore, 10), 0)
	})
}

// smallProcess is how many bytes a process has at most that is not worth killing alone.
const smallProcess = 4 << 20

// killLargest kills the process with the most memory, and waits until the kernel has freed
// that memory: otherwise the next check would kill another process for it. Where many small
// processes fill the memory, it kills the session with the most of it.
func (e *Enforcer) killLargest(limit uint64) {
	victim, size := largest(0, limit)
	if victim != 0 && size < smallProcess {
		if e.killLargestSession("memory", int64(limit/4), rssOf) {
			return
		}
		victim, size = largest(0, 0)
	}
	if victim == 0 || size < smallProcess {
		return // files fill the memory, and no process
	}
	e.setLastKill("memory")
	e.reportKill(victim, "memory")
	_ = syscall.Kill(victim, unix.SIGKILL)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		time.Sleep(checkFast)
		if memoryUsed() <= limit {
			return
		}
		if _, next := largest(victim, limit); next > size/2 { // another process is as large
			return
		}
	}
}

// largest returns the process that is to be killed first when memory is short, as the kernel chooses it, and how many
// bytes it has. The process except is left out. Without a limit it is the one with the most memory.
func largest(except int, limit uint64) (victim int, size int64) {
	highest := int64(0)
	for _, pid := range ownProcesses() {
		if pid == os.Getpid() || pid == 1 || pid == except {
			continue
		}
		rss := rssOf(pid)
		if score := rss + scoreOf(pid)*int64(limit/1000); rss > 0 && score > highest {
			victim, size, highest = pid, rss, score
		}
	}
	return victim, size
}

// scoreOf returns the oom_score_adj of a process.
func scoreOf(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return max(n, 0)
}

// KillLargestGroup kills the session with the most processes.
func (e *Enforcer) KillLargestGroup() {
	e.killLargestSession("processes", 0, func(int) int64 { return 1 })
}

// killLargestSession kills the session that has the most by what weight says of each process, if it has over that
// much in at least eight processes. It reports whether there was one.
func (e *Enforcer) killLargestSession(limit string, atLeast int64, weight func(pid int) int64) bool {
	count, weights := map[int][]int{}, map[int]int64{}
	for _, pid := range ownProcesses() {
		f, err := Stat(pid)
		if err != nil || pid == os.Getpid() || pid == 1 {
			continue
		}
		if s, err := strconv.Atoi(f[3]); err == nil && s > 1 {
			count[s] = append(count[s], pid)
			weights[s] += weight(pid)
		}
	}
	victim := 0
	for s := range count {
		if victim == 0 || weights[s] > weights[victim] {
			victim = s
		}
	}
	if victim == 0 || len(count[victim]) < 8 || weights[victim] < atLeast {
		return false
	}
	e.setLastKill(limit)
	e.reportKill(victim, limit)
	// Stop all of them first: otherwise some would start more processes while others are killed.
	for _, pid := range count[victim] {
		_ = syscall.Kill(pid, unix.SIGSTOP)
	}
	for round := 0; round < 10; round++ {
		found := false
		for _, pid := range ownProcesses() {
			if f, err := Stat(pid); err == nil && f[3] == strconv.Itoa(victim) && f[0] != "Z" && pid != 1 {
				found = true
				_ = syscall.Kill(pid, unix.SIGKILL)
			}
		}
		if !found {
			break
		}
		time.Sleep(checkFast)
	}
	return true
}

// moreThreads is how many threads the kernel lets a user have beyond the limit: those of the agent.
const moreThreads = 64

// killOtherUsers kills the processes of all users but the agent's, root: the kernel bounds those of each user, and root
// can become many.
func (e *Enforcer) killOtherUsers() {
	killed := map[int]bool{}
	for round := 0; round < 10; round++ {
		var others []int
		for _, pid := range ownProcesses() {
			if f, err := Stat(pid); err == nil && f[0] != "Z" && isOthers(pid) {
				others = append(others, pid)
			}
		}
		if len(others) == 0 {
			break
		}
		// All are stopped first: otherwise some would start more while others are killed.
		for _, signal := range []syscall.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range others {
				if killed[pid] = true; signal == unix.SIGSTOP {
					addFamily(killed, pid)
				}
				_ = syscall.Kill(pid, signal)
			}
		}
		time.Sleep(checkFast)
	}
	if len(killed) > 0 {
		e.setLastKill("processes")
		e.OnKill(killed, "processes")
	}
}

// isOthers reports whether one of a process's user ids is not root's: the kernel counts by the real one.
func isOthers(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			return slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return id != "0" })
		}
	}
	return false
}

func (e *Enforcer) setLastKill(limit string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastKill, e.lastLimit = time.Now(), limit
}

// KilledSince returns the limit because of which a process was killed after start, or "".
func (e *Enforcer) KilledSince(start time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastKill.After(start) {
		return e.lastLimit
	}
	return ""
}

// reportKill calls OnKill for a process, its ancestors, and their sessions.
func (e *Enforcer) reportKill(pid int, limit string) {
	pids := map[int]bool{pid: true}
	addFamily(pids, pid)
	e.OnKill(pids, limit)
}

// addFamily adds the ancestors of a process, and their sessions.
func addFamily(pids map[int]bool, pid int) {
	for ancestor := pid; ancestor > 1; {
		f, err := Stat(ancestor)
		if err != nil {
			break
		}
		session, _ := strconv.Atoi(f[3])
		pids[session] = true
		if ancestor, err = strconv.Atoi(f[1]); err != nil {
			break
		}
		pids[ancestor] = true
	}
}

// Usage returns the sandbox's use of resources.
func (e *Enforcer) Usage() *agentv1.UsageResponse {
	u := &agentv1.UsageResponse{MemoryBytes: memoryUsed()}
	for _, pid := range ownProcesses() {
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
