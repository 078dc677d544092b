package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ownProcesses returns the processes that the agent may kill: all of the sandbox when the agent
// is process 1; in tests, where it is not, its descendants.
func ownProcesses() []int {
	if os.Getpid() != 1 {
		return descendants(os.Getpid())
	}
	all := allPIDs()
	if InGVisor() {
		return all
	}
	return slices.DeleteFunc(all, func(pid int) bool {
		f, err := Stat(pid)
		return err == nil && isKernels(f) || StartedFromOutside(pid)
	})
}

// isKernels reports whether a process is a thread of the kernel, by the fields of Stat. Where the agent is the first
// process of a virtual machine, it sees these.
func isKernels(fields []string) bool {
	const kernelThread = 0x200000 // PF_KTHREAD
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&kernelThread != 0
}

// StartedFromOutside reports whether a process was started by the runtime, such as `sandlot-agent
// connect`: its parent is in no PID namespace of the sandbox. No program can start such a process.
func StartedFromOutside(pid int) bool {
	if pid == 1 {
		return false
	}
	f, err := Stat(pid)
	return err == nil && f[1] == "0"
}

// InGVisor reports whether this is gVisor, whose kernel, with /proc/meminfo and the limits of users, is the
// sandbox's own.
var InGVisor = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/version")
	return err == nil && strings.Contains(string(b), "gvisor")
})

// memoryUsed returns how many bytes of memory all processes of the sandbox use, and outside gVisor
// its tmpfs, which count against the memory of a container.
func memoryUsed() uint64 {
	if !InGVisor() {
		total := tmpfsUsed("/proc/self/mountinfo")
		for _, pid := range append(ownProcesses(), os.Getpid()) {
			total += uint64(rssOf(pid))
		}
		return total
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	// The total minus what is free would be wrong: gVisor does not show more than the sandbox's
	// limit.
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

// tmpfsUsed returns how many bytes the files in the sandbox's own tmpfs have. Mountinfo is the path
// of the process's mounts, see proc_pid_mountinfo(5). A mount of a folder in a tmpfs is the host's.
func tmpfsUsed(mountinfo string) (total uint64) {
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return 0
	}
	counted := map[string]bool{} // by device
	for line := range strings.Lines(string(text)) {
		mount, rest, _ := strings.Cut(line, " - ")
		f := strings.Fields(mount)
		if len(f) < 5 || !strings.HasPrefix(rest, "tmpfs ") || f[3] != "/" || counted[f[2]] {
			continue
		}
		counted[f[2]] = true
		var st unix.Statfs_t
		if unix.Statfs(unescape.Replace(f[4]), &st) == nil && st.Type == unix.TMPFS_MAGIC && st.Blocks >= st.Bfree {
			total += (st.Blocks - st.Bfree) * uint64(st.Bsize)
		}
	}
	return total
}

// unescape replaces the escapes of paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// ownSystem returns what gVisor says of the sandbox as a whole; elsewhere it is the machine's, and nothing is returned.
func ownSystem() (i unix.Sysinfo_t) {
	if !InGVisor() || unix.Sysinfo(&i) != nil {
		return unix.Sysinfo_t{}
	}
	return i
}

// memoryUpperBound returns a number of bytes that is at least memoryUsed, at a tenth of the
// cost: gVisor counts its pages for each read of /proc/meminfo, and many sandboxes are idle. It
// returns 0 where it knows no bound.
func memoryUpperBound(i unix.Sysinfo_t) uint64 {
	if i.Freeram == 0 || i.Freeram > i.Totalram {
		return 0
	}
	return (i.Totalram - i.Freeram) * uint64(max(i.Unit, 1))
}

// Stat returns the fields of /proc/PID/stat that follow the name; the first is the state.
func Stat(pid int) ([]string, error) {
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

// Ancestor says where a process stands in the tree of processes.
type Ancestor struct {
	Parent, Session int
	Started         time.Time // too early by up to wire.StartError
}

// clockTicks is how many units of time of /proc/PID/stat a second has, on all systems.
const clockTicks = 100

// Ancestry returns it for a process.
func Ancestry(pid int) (a Ancestor, err error) {
	f, err := Stat(pid)
	if err != nil {
		return a, err
	}
	text, err := os.ReadFile("/proc/uptime") // on the clock of the time of start, also after the sandbox has slept
	if err != nil {
		return a, err
	}
	var up float64 // seconds
	var ticks int64
	_, err = fmt.Sscan(string(text), &up)
	if err == nil {
		_, err = fmt.Sscan(strings.Join([]string{f[1], f[3], f[19]}, " "), &a.Parent, &a.Session, &ticks)
	}
	age := time.Duration(up*float64(time.Second)) - time.Duration(ticks)*time.Second/clockTicks
	a.Started = time.Now().Add(-max(age, 0))
	return a, err
}

func rssOf(pid int) int64 {
	f, err := Stat(pid)
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return pages * int64(os.Getpagesize())
}

// threadCount returns the number of threads of all processes but this one.
func threadCount() int {
	n := 0
	for _, pid := range ownProcesses() {
		if f, err := Stat(pid); err == nil && pid != os.Getpid() {
			k, _ := strconv.Atoi(f[17])
			n += max(k, 1)
		}
	}
	return n
}

// descendants returns the children of a process, their children and so on, and the processes of
// its session.
func descendants(root int) []int {
	parent, session := map[int]int{}, map[int]int{}
	for _, pid := range allPIDs() {
		if f, err := Stat(pid); err == nil {
			parent[pid], _ = strconv.Atoi(f[1])
			session[pid], _ = strconv.Atoi(f[3])
		}
	}
	var found []int
	for pid := range parent {
		if pid == root || pid == os.Getpid() {
			continue
		}
		if session[pid] == root {
			found = append(found, pid)
			continue
		}
		for ancestor := parent[pid]; ancestor > 1; ancestor = parent[ancestor] {
			if ancestor == root {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

func allPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Member is a process of the tree of another one, the root.
type Member struct {
	PID     int
	Group   int
	Top     int    // the child of the root that it is, or comes from; 0: its parent has ended, but it is of the root's session
	Started uint64 // in clock ticks since the boot: no other process has this id and this time
	Age     time.Duration
}

// Tree returns the descendants of a process, and the processes of its session.
func Tree(root int) (members []Member) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return nil
	}
	var up float64 // seconds
	if _, err := fmt.Sscan(string(text), &up); err != nil {
		return nil
	}
	stats := map[int][]string{}
	for _, pid := range allPIDs() {
		if f, err := Stat(pid); err == nil && f[0] != "Z" {
			stats[pid] = f
		}
	}
	number := func(f []string, i int) int { n, _ := strconv.Atoi(f[i]); return n }
	for pid, f := range stats {
		if pid == root || pid == os.Getpid() {
			continue
		}
		m := Member{PID: pid, Group: number(f, 2)}
		for at := pid; at > 1 && m.Top == 0; {
			g, ok := stats[at]
			if !ok {
				break
			}
			parent := number(g, 1)
			if parent == root {
				m.Top = at
			}
			at = parent
		}
		if m.Top == 0 && number(f, 3) != root {
			continue
		}
		m.Started, _ = strconv.ParseUint(f[19], 10, 64)
		m.Age = time.Duration(up*float64(time.Second)) - time.Duration(m.Started)*time.Second/clockTicks
		members = append(members, m)
	}
	return members
}

// Same reports whether the process of a member still runs.
func (m Member) Same() bool {
	f, err := Stat(m.PID)
	return err == nil && f[0] != "Z" && f[19] == strconv.FormatUint(m.Started, 10)
}
