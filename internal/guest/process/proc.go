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

// own lists the processes that the agent may end: all of the sandbox's where it
// is the first one, and its own descendants anywhere else.
func own() []int {
	if os.Getpid() == 1 {
		return pids()
	}
	return descendants(os.Getpid())
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
		for _, pid := range append(own(), os.Getpid()) {
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

// Stat returns the fields of /proc/PID/stat behind the name: its state first.
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

// threads counts all threads of all processes.
func threads() int {
	n := 0
	for _, pid := range own() {
		if f, err := Stat(pid); err == nil {
			k, _ := strconv.Atoi(f[17])
			n += max(k, 1)
		}
	}
	return n
}

// descendants finds a process's children's children, and those of its session.
func descendants(root int) []int {
	parent, session := map[int]int{}, map[int]int{}
	for _, pid := range pids() {
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
		for up := parent[pid]; up > 1; up = parent[up] {
			if up == root {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

func pids() []int {
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
