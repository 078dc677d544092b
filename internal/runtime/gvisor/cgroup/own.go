package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AvailableMemory returns how many bytes of memory this process has for new programs: those of the machine, and of the
// groups of this process, such as those of a container.
func AvailableMemory() int64 { return min(ofMachine(), ownLimit()) }

// ofMachine returns how many bytes of memory the machine has for new programs.
func ofMachine() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// ownLimit returns how many bytes the groups of this process leave it.
func ownLimit() int64 {
	const none = int64(1) << 62
	left := none
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controller, path, _ := strings.Cut(rest, ":")
		root, limit, used, files := "/sys/fs/cgroup", "memory.max", "memory.current", []string{"active_file", "inactive_file"}
		switch controller {
		case "memory":
			root += "/memory"
			limit, used, files = "memory.limit_in_bytes", "memory.usage_in_bytes",
				[]string{"total_active_file", "total_inactive_file"}
		case "":
		default:
			continue
		}
		for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
			dir := filepath.Join(root, path)
			if most, err := readNumber(filepath.Join(dir, limit)); err == nil && most < none {
				now, _ := readNumber(filepath.Join(dir, used))
				for _, name := range files { // the kernel gives this memory back when somebody needs it
					now -= readField(filepath.Join(dir, "memory.stat"), name)
				}
				left = min(left, most-now)
			}
			if path == "/" {
				break
			}
		}
	}
	return left
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
