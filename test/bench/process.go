package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// commandLines returns the arguments of all processes of the machine, each argument with a zero byte at its end.
func commandLines() map[int]string {
	all := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil {
			all[pid] = string(line)
		}
	}
	return all
}

// parents returns the parent of each process.
func parents() map[int]int {
	all := map[int]int{}
	for pid := range commandLines() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(f) > 1 {
			all[pid], _ = strconv.Atoi(f[1])
		}
	}
	return all
}

// descends reports whether pid is one of the roots, or a descendant of one.
func descends(pid int, roots map[int]bool, parent map[int]int) bool {
	for ; pid > 1; pid = parent[pid] {
		if roots[pid] {
			return true
		}
	}
	return false
}

// spaces returns the roots and their descendants: of the processes that share an address space, only one.
func spaces(roots map[int]bool) (pids []int, err error) {
	parent := parents()
	for _, pid := range slices.Sorted(maps.Keys(parent)) { // parents mostly first
		if !descends(pid, roots, parent) {
			continue
		}
		known := false
		for _, other := range pids {
			same, err := sameSpace(pid, other)
			if err != nil {
				return nil, err
			}
			known = known || same
		}
		if !known {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// sameSpace reports whether two processes share their address space, as the kernel says.
func sameSpace(a, b int) (bool, error) {
	const kcmpVM = 1
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("kcmp of processes %d and %d: %w", a, b, errno)
	}
	return r == 0, nil
}

// proportional returns the memory of a process, in which a page that n processes share counts as 1/n of a page.
func proportional(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no Pss", pid)
}
