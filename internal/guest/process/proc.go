package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ownProcesses returns the processes that the agent may kill: all of the sandbox when the agent
// is process 1; in tests, where it is not, its descendants.
func ownProcesses() []int {
	if os.Getpid() == 1 {
		return allPIDs()
	}
	return descendants(os.Getpid())
}

// inGVisor reports whether this is gVisor, whose /proc/meminfo is about the sandbox alone.
var inGVisor = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/version")
	return err == nil && strings.Contains(string(b), "gvisor")
})

// memoryUsed returns how many bytes of memory all processes of the sandbox use.
func memoryUsed() uint64 {
	if !inGVisor() {
		var total uint64
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

// memoryUpperBound returns a number of bytes that is at least memoryUsed, at a tenth of the
// cost: gVisor counts its pages for each read of /proc/meminfo, and many sandboxes are idle. It
// returns 0 where it knows no bound.
func memoryUpperBound() uint64 {
	var i unix.Sysinfo_t
	if !inGVisor() || unix.Sysinfo(&i) != nil || i.Freeram == 0 || i.Freeram > i.Totalram {
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

func rssOf(pid int) int64 {
	f, err := Stat(pid)
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return pages * int64(os.Getpagesize())
}

// threadCount returns the number of threads of all processes.
func threadCount() int {
	n := 0
	for _, pid := range ownProcesses() {
		if f, err := Stat(pid); err == nil {
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
