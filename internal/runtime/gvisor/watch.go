package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/proc"
)

// glance is how often what the kernel does not bound is looked at: what a sandbox
// writes into its mounts, and, without cgroups, its memory.
const glance = 250 * time.Millisecond

// measure is what is known of one sandbox between two looks.
type measure struct {
	disk  disk
	pulse pulse
}

func (r *Runtime) watch() {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	seen := map[*box]*measure{}
	keeper := newKeeper(r.cgroups)
	for {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return
		}
		r.mu.Lock()
		now := make(map[*box]*measure, len(r.boxes))
		for _, b := range r.boxes {
			now[b] = seen[b]
		}
		r.mu.Unlock()
		for b, m := range now {
			if m == nil {
				m = &measure{}
				now[b] = m
			}
			r.look(b, m)
			if id, limits := b.identity(); b.cgroups.usable() {
				_, cpu := b.cost(0)
				keeper.look(id, limits.CPUs, cpu, time.Now(), &m.pulse)
			}
		}
		for b, m := range seen {
			if now[b] == nil && b.cgroups.usable() {
				keeper.calm(&m.pulse)
				keeper.free(b.spec.ID, &m.pulse)
			}
		}
		seen = now
	}
}

func (r *Runtime) look(b *box, m *measure) {
	b.mu.Lock()
	pid, limits, mounts := b.pid, b.spec.Limits, b.spec.Mounts
	b.mu.Unlock()
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
		r.watchDisk(b, &m.disk, usage{pid, limits.DiskBytes, mounts})
	}
}

// cost is what the sandbox, whose process is pid, uses of the host.
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

// footprint is the memory of the sandbox whose process is pid. What its programs
// use is in files in memory that gVisor's process holds; that is mapped only
// while it is touched, so it does not show in any process's size.
func (b *box) footprint(pid int) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	total, found := int64(0), false
	for _, f := range b.memory {
		name, err := os.Readlink(f)
		i, serr := os.Stat(f)
		if err == nil && serr == nil && strings.HasPrefix(name, memoryFile) {
			total, found = total+blocks(i), true
		}
	}
	if found {
		return total + anonymous(pid)
	}
	b.memory = nil // the next look finds them
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	seen := map[uint64]bool{}
	for _, e := range entries {
		f := filepath.Join(dir, e.Name())
		name, err := os.Readlink(f)
		if err != nil || !strings.HasPrefix(name, memoryFile) {
			continue
		}
		i, err := os.Stat(f)
		if err != nil {
			continue
		}
		if st, ok := i.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			b.memory = append(b.memory, f)
			total += blocks(i)
		}
	}
	return total + anonymous(pid)
}

// memoryFile is what gVisor calls those files.
const memoryFile = "/memfd:runsc-memory"

// anonymous is the memory that a process has for itself.
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
