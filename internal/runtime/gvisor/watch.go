package gvisor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/gvisor/hostfile"
)

// sampleInterval is the time between two checks of what the kernel does not limit: how much
// a sandbox writes into its mounts, and, without cgroups, its memory.
const sampleInterval = 250 * time.Millisecond

// sample is what the runtime remembers of one sandbox from one check to the next.
type sample struct {
	disk diskUse
	cpu  cgroup.CPUUse
}

// watchBoxes checks all sandboxes at each sampleInterval until the runtime closes.
func (r *Runtime) watchBoxes() {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	previous := map[*box]*sample{}
	pinner := cgroup.NewPinner(r.cgroups)
	for {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return
		}
		current := map[*box]*sample{}
		r.mu.Lock()
		for _, b := range r.boxes {
			current[b] = previous[b]
		}
		r.mu.Unlock()
		for b, s := range current {
			if s == nil {
				s = &sample{}
				current[b] = s
			}
			r.enforceLimits(b, s)
			if b.cgroups.Usable() {
				_, cpu := b.hostUsage(0)
				pinner.Update(b.spec.ID, b.Spec().Limits.CPUs, cpu, time.Now(), &s.cpu)
			}
		}
		for b, s := range previous {
			if current[b] == nil && b.cgroups.Usable() {
				pinner.Remove(b.spec.ID, &s.cpu)
			}
		}
		previous = current
	}
}

// enforceLimits kills a sandbox that is over a limit which the kernel does not enforce.
func (r *Runtime) enforceLimits(b *box, s *sample) {
	pid, _ := b.process()
	limits := b.Spec().Limits
	if pid == 0 {
		return
	}
	if !b.cgroups.Usable() && limits.MemoryBytes > 0 {
		if used := b.footprint(pid); used > cgroup.MemoryLimit(limits.MemoryBytes) {
			r.Log.Warn("a sandbox reached its memory limit", "sandbox", b.spec.ID, "bytes", used)
			b.kill("memory")
			return
		}
	}
	if limits.DiskBytes > 0 {
		r.watchDisk(b, &s.disk, diskQuery{pid, limits.DiskBytes, b.spec.Mounts, b.root.Image})
	}
}

// hostUsage returns the host's memory and processor time that the sandbox uses. pid is its
// process, which is needed where it has no cgroup.
func (b *box) hostUsage(pid int) (memory int64, cpu time.Duration) {
	if b.cgroups.Usable() {
		return b.cgroups.Usage(b.spec.ID)
	}
	return b.footprint(pid), proc.CPUTime(pid)
}

// memoryFile begins the names of the memfds in which gVisor keeps a sandbox's memory.
const memoryFile = "/memfd:runsc-memory"

// footprint returns the memory of the sandbox whose process is pid. The memory of its
// programs is in memfds that gVisor's process holds open and maps only while they are
// used, so no process's resident size includes it.
func (b *box) footprint(pid int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := memoryFileSize(b.memoryFiles)
	if total == 0 {
		files, _ := hostfile.OpenBy(pid)
		b.memoryFiles = slices.DeleteFunc(files,
			func(f hostfile.Open) bool { return !strings.HasPrefix(f.Target, memoryFile) })
		total = memoryFileSize(b.memoryFiles)
	}
	return total + anonymousMemory(pid)
}

// memoryFileSize returns the size of the memfds among files. A descriptor may have been closed,
// and reused for another file, since files was listed.
func memoryFileSize(files []hostfile.Open) (total int64) {
	seen := map[uint64]bool{}
	for _, f := range files {
		target, err := os.Readlink(f.Path)
		var st unix.Stat_t
		if err == nil && strings.HasPrefix(target, memoryFile) && unix.Stat(f.Path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
	}
	return total
}

// anonymousMemory returns the resident memory of a process that is not shared.
func anonymousMemory(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 3 {
		return 0
	}
	resident, _ := strconv.ParseInt(f[1], 10, 64)
	shared, _ := strconv.ParseInt(f[2], 10, 64)
	return (resident - shared) * int64(os.Getpagesize())
}
