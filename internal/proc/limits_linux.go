//go:build !mac

package proc

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelRelease returns the version of this machine's kernel; "": it is not known.
func KernelRelease() string {
	var own unix.Utsname
	if unix.Uname(&own) != nil {
		return ""
	}
	return unix.ByteSliceToString(own.Release[:])
}

// MaxProcesses returns the limit for the processes of a user that Podman may set; -1: there is none. It lowers its own
// to the number of process ids of the machine. The kernel counts all processes of the user on the machine, so that a
// smaller one would be shared by all sandboxes. Each has another one, its own.
func MaxProcesses() int64 {
	n := int64(math.MaxInt64)
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &own); err == nil && own.Max < math.MaxInt64 {
		n = int64(own.Max)
	}
	if text, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if ids, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			n = min(n, ids)
		}
	}
	if n == math.MaxInt64 {
		return -1
	}
	return n
}

// MountsBelow returns the mount points of this machine in a folder.
func MountsBelow(folder string) (points []string) {
	for _, m := range Mounts(os.Getpid()) {
		if m.Target != folder && strings.HasPrefix(m.Target, strings.TrimSuffix(folder, "/")+"/") &&
			!slices.Contains(points, m.Target) {
			points = append(points, m.Target)
		}
	}
	return points
}
