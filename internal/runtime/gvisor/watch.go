package gvisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// What the kernel does not bound is looked at here: what a sandbox writes into
// its mounts, and, without cgroups, its memory.
const (
	glance = 250 * time.Millisecond
	// maxEntries bounds the files and folders in a writable mount.
	maxEntries = 1_500_000
	// restWalk is how long a mount may go unmeasured while its sandbox works.
	restWalk = time.Minute
)

// measure is what is known of one sandbox's writing.
type measure struct {
	written int64 // by its processes, when it was measured last
	cpu     time.Duration
	base    int64 // its size when it was first seen: what it may keep
	at      time.Time
	pulse   pulse
	// measuring: a goroutine looks at the mounts, and has base.
	measuring atomic.Bool
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
	if limits.DiskBytes <= 0 {
		return
	}
	written, cpu := writtenBytes(pid), cpuTime(pid)
	first := m.at.IsZero()
	grown := written-m.written > limits.DiskBytes/16
	tired := cpu-m.cpu > 200*time.Millisecond && time.Since(m.at) > restWalk
	if !first && !grown && !tired {
		return
	}
	if !m.measuring.CompareAndSwap(false, true) {
		return
	}
	m.written, m.cpu, m.at = written, cpu, time.Now()
	// A tree of many files takes its time, and nobody else waits for it.
	r.work.Go(func() {
		defer m.measuring.Store(false)
		var size, entries int64
		for _, mount := range mounts {
			if !mount.ReadOnly {
				s, n := tree(mount.Source, maxEntries)
				size, entries = max(size, s), max(entries, n)
			}
		}
		size += unlinked(pid)
		if first {
			m.base = size
		}
		if size > max(limits.DiskBytes+slack, m.base) || entries >= maxEntries {
			r.Log.Warn("a sandbox reached its disk limit", "sandbox", b.spec.ID, "bytes", size, "entries", entries)
			b.kill("disk")
		}
	})
}

// slack is what a mount may be over its limit: what is written between two looks.
const slack = 64 << 20

// unlinked is the size of files that have no name any more and that a sandbox's
// process holds open. What belongs to gVisor itself does not count.
func unlinked(pid int) (size int64) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	seen := map[uint64]bool{}
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !strings.HasSuffix(name, " (deleted)") || strings.HasPrefix(name, "/memfd:") || strings.Contains(name, "/runsc-filestore-") {
			continue
		}
		i, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !i.Mode().IsRegular() {
			continue
		}
		if st, ok := i.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			size += blocks(i)
		}
	}
	return size
}

// tree measures a folder that hostile code writes: it follows no link out of it
// and stops at most entries.
func tree(dir string, most int64) (size, entries int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, 0
	}
	defer root.Close()
	pending := []string{"."}
	for len(pending) > 0 && entries < most {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		f, err := root.Open(name)
		if errors.Is(err, fs.ErrPermission) { // its user has closed it, not to us
			root.Chmod(name, 0o700)
			f, err = root.Open(name)
		}
		if errors.Is(err, fs.ErrPermission) {
			return size, most
		}
		if err != nil {
			continue
		}
		for entries < most {
			list, err := f.ReadDir(1024)
			for _, e := range list {
				entries++
				if e.IsDir() {
					pending = append(pending, filepath.Join(name, e.Name()))
				} else if e.Type()&fs.ModeSymlink == 0 {
					if i, err := e.Info(); err == nil {
						size += blocks(i)
					}
				}
			}
			if err != nil || len(list) == 0 {
				if err != nil && !errors.Is(err, io.EOF) {
					entries++
				}
				break
			}
		}
		f.Close()
	}
	return size, entries
}

// cost is what the sandbox, whose process is pid, uses of the host.
func (b *box) cost(pid int) (memory int64, cpu time.Duration) {
	c, id := b.cgroups, b.spec.ID
	switch c.version {
	case 1:
		return c.number(id, "memory", "memory.usage_in_bytes"), time.Duration(c.number(id, "cpuacct", "cpuacct.usage"))
	case 2:
		return c.number(id, "", "memory.current"), time.Duration(field(c.file(id, "", "cpu.stat"), "usage_usec")) * time.Microsecond
	}
	return b.footprint(pid), cpuTime(pid)
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

func cpuTime(pid int) time.Duration {
	f, err := stat(pid)
	if err != nil {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func writtenBytes(pid int) int64 { return field(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:") }
