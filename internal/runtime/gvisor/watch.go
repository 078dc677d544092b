package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
)

// sampleInterval is the time between two checks of what the kernel does not limit: how much
// a sandbox writes into its mounts, and, without cgroups, its memory.
const sampleInterval = 250 * time.Millisecond

// sample is what the runtime remembers of one sandbox from one check to the next.
type sample struct {
	disk disk
	cpu  cpuUse
}

// watch checks all sandboxes at each sampleInterval until the runtime closes.
func (r *Runtime) watch() {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	seen := map[*box]*sample{}
	pinner := newPinner(r.cgroups)
	for {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return
		}
		now := map[*box]*sample{}
		r.mu.Lock()
		for _, b := range r.boxes {
			now[b] = seen[b]
		}
		r.mu.Unlock()
		for b, s := range now {
			if s == nil {
				s = &sample{}
				now[b] = s
			}
			r.check(b, s)
			if b.cgroups.usable() {
				_, cpu := b.cost(0)
				pinner.update(b.spec.ID, b.Spec().Limits.CPUs, cpu, time.Now(), &s.cpu)
			}
		}
		for b, s := range seen {
			if now[b] == nil && b.cgroups.usable() {
				pinner.remove(b.spec.ID, &s.cpu)
			}
		}
		seen = now
	}
}

// check kills a sandbox that is over a limit which the kernel does not enforce.
func (r *Runtime) check(b *box, s *sample) {
	pid, _ := b.process()
	limits := b.Spec().Limits
	if pid == 0 {
		return
	}
	if !b.cgroups.usable() && limits.MemoryBytes > 0 {
		if used := b.footprint(pid); used > headroom(limits.MemoryBytes) {
			r.Log.Warn("a sandbox reached its memory limit", "sandbox", b.spec.ID, "bytes", used)
			b.kill("memory")
			return
		}
	}
	if limits.DiskBytes > 0 {
		r.watchDisk(b, &s.disk, usage{pid, limits.DiskBytes, b.spec.Mounts})
	}
}

// cost returns the host's memory and processor time that the sandbox uses. pid is its
// process, which is needed where it has no cgroup.
func (b *box) cost(pid int) (memory int64, cpu time.Duration) {
	c, id := b.cgroups, b.spec.ID
	switch c.version {
	case 1:
		return c.number(id, "memory", "memory.usage_in_bytes"), time.Duration(c.number(id, "cpuacct", "cpuacct.usage"))
	case 2:
		return c.number(id, "", "memory.current"),
			time.Duration(field(c.file(id, "", "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return b.footprint(pid), proc.CPU(pid)
}

// memoryFile begins the names of the memfds in which gVisor keeps a sandbox's memory.
const memoryFile = "/memfd:runsc-memory"

// footprint returns the memory of the sandbox whose process is pid. The memory of its
// programs is in memfds that gVisor's process holds open and maps only while they are
// used, so no process's resident size includes it.
func (b *box) footprint(pid int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := memoryOf(b.memory)
	if total == 0 {
		files, _ := openFiles(pid)
		b.memory = slices.DeleteFunc(files, func(f openFile) bool { return !strings.HasPrefix(f.target, memoryFile) })
		total = memoryOf(b.memory)
	}
	return total + anonymous(pid)
}

// memoryOf returns the size of the memfds among files. A descriptor may have been closed,
// and reused for another file, since files was listed.
func memoryOf(files []openFile) (total int64) {
	seen := map[uint64]bool{}
	for _, f := range files {
		target, err := os.Readlink(f.path)
		var st unix.Stat_t
		if err == nil && strings.HasPrefix(target, memoryFile) && unix.Stat(f.path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
	}
	return total
}

// openFile is a descriptor of a process: its path below /proc, and the path of the file.
type openFile struct{ path, target string }

// openFiles lists the open descriptors of a process. When it returns an error, some are
// missing.
func openFiles(pid int) (files []openFile, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		target, lerr := os.Readlink(path)
		switch {
		case lerr == nil:
			files = append(files, openFile{path, target})
		case !os.IsNotExist(lerr): // else it was closed meanwhile
			err = lerr
		}
	}
	return files, err
}

// anonymous returns the resident memory of a process that is not shared.
func anonymous(pid int) int64 {
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
