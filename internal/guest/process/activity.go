package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	lookOften  = 10 * time.Second // between two looks while programs are active
	lookSeldom = time.Minute      // at other times
	minLook    = 500 * time.Millisecond
	// activeShare: a program is active that uses more than this part of one processor.
	activeShare = 100
	// tick is the unit of processor times in /proc.
	tick = 10 * time.Millisecond
)

// Activity knows when programs were last active without a call: when they listened for TCP connections, or used the
// processor.
type Activity struct {
	// LastUsed returns when the last call ended, whose use of the processor does not count; the zero time: one runs.
	LastUsed func() time.Time

	mu     sync.Mutex
	looked time.Time
	ticks  map[string]uint64 // what programs had used then, by process
	active time.Time         // when one was last active
}

// Run looks from time to time, until stop is closed.
func (a *Activity) Run(stop <-chan struct{}) {
	for {
		interval := lookSeldom
		if a.Quiet() < lookSeldom {
			interval = lookOften
		}
		select {
		case <-time.After(interval):
		case <-stop:
			return
		}
	}
}

// Quiet looks, and returns how long ago a program was last active.
func (a *Activity) Quiet() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	elapsed := now.Sub(a.looked)
	if elapsed >= minLook {
		before, used := a.ticks, a.LastUsed()
		a.ticks = processorTicks()
		if before == nil || used.IsZero() || used.After(a.looked) {
			before = a.ticks // calls have used some of it
		}
		a.looked = now
		if time.Duration(difference(before, a.ticks))*tick > elapsed/activeShare || Listens() {
			a.active = now
		}
	}
	return now.Sub(a.active)
}

// difference returns how many ticks programs have used from one look to the next.
func difference(before, after map[string]uint64) (n uint64) {
	for process, ticks := range after {
		n += ticks - min(before[process], ticks)
	}
	return n
}

// processorTicks returns what programs have used of the processor, with the children that they have waited for.
func processorTicks() map[string]uint64 {
	all := map[string]uint64{}
	for _, pid := range ownProcesses() {
		f, err := Stat(pid)
		if err != nil || pid == os.Getpid() {
			continue
		}
		var sum uint64
		for _, text := range f[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.ParseUint(text, 10, 64)
			sum += n
		}
		all[fmt.Sprint(pid, " ", f[19])] = sum // and the time of its start
	}
	return all
}

// Listens reports whether a program listens for TCP connections.
func Listens() bool {
	files := map[string]bool{}
	for inode := range listening() {
		files[inode] = true
	}
	if len(files) == 0 {
		return false
	}
	return slices.ContainsFunc(ownProcesses(), func(pid int) bool {
		return pid != os.Getpid() && holds(pid, files)
	})
}

// listening returns the ports of the sockets that listen for TCP connections, by their files.
func listening() map[string]uint32 {
	ports := map[string]uint32{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			port, _ := strconv.ParseUint(hex, 16, 16)
			ports["socket:["+f[9]+"]"] = uint32(port)
		}
	}
	return ports
}

// maxListeners is how many ports are listed.
const maxListeners = 256

// Listeners returns on which ports programs listen for TCP connections, the lowest first, and the name of one of them for
// each.
func Listeners() []Listener {
	ports := listening()
	if len(ports) == 0 {
		return nil
	}
	names := map[uint32]string{}
	for _, pid := range ownProcesses() {
		if pid == os.Getpid() {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, _ := os.ReadDir(dir) // it may be gone
		for _, e := range entries {
			target, _ := os.Readlink(dir + "/" + e.Name())
			port, ok := ports[target]
			if _, known := names[port]; ok && !known {
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				names[port] = strings.TrimSpace(string(comm))
			}
		}
	}
	list := make([]Listener, 0, len(names))
	for port, name := range names {
		list = append(list, Listener{port, name})
	}
	slices.SortFunc(list, func(a, b Listener) int { return int(a.Port) - int(b.Port) })
	return list[:min(len(list), maxListeners)]
}

// Listener is a TCP port on which a program listens.
type Listener struct {
	Port    uint32
	Program string // its name
}

// holds reports whether a process has one of these files open.
func holds(pid int, files map[string]bool) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, err := os.Readlink(dir + "/" + e.Name())
		return err == nil && files[target]
	})
}
