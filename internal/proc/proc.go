// Package proc reads /proc about this machine's processes. A user can give a process any
// command line: it proves nothing.
package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// TicksPerSecond is the kernel's USER_HZ, the unit of start times.
const TicksPerSecond = 100

// stat returns the fields of /proc/PID/stat after the command: the first is the state.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 22 {
		return nil, errors.New("short stat")
	}
	return f, nil
}

// State returns the letter of a process's state; one that is gone is a zombie, 'Z'.
func State(pid int) byte {
	f, err := stat(pid)
	if err != nil {
		return 'Z'
	}
	return f[0][0]
}

// Started returns when a process started, in clock ticks since the machine's boot.
// Process id and start time together identify a process. A zombie counts as gone.
func Started(pid int) (uint64, error) {
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// exiting is the kernel's PF_EXITING.
const exiting = 0x4

// Ending says whether the process with that id and start time has ended, or is about to:
// the kernel closes its files, and it runs no more code of its own.
func Ending(pid int, started uint64) bool {
	f, err := stat(pid)
	if err != nil || f[0] == "Z" || f[0] == "X" || f[19] != strconv.FormatUint(started, 10) {
		return true
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return err == nil && flags&exiting != 0
}

// Since is the time of day of a start time.
func Since(started uint64) time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	running := time.Duration(up.Nano()) - time.Duration(started)*(time.Second/TicksPerSecond)
	return time.Now().Add(-running).Truncate(time.Second)
}

// CPU is how much processor time a process has used; 0 if it is gone.
func CPU(pid int) time.Duration {
	f, err := stat(pid)
	if err != nil {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / TicksPerSecond
}

// Written is how many bytes a process has written by system calls, to files, pipes and
// sockets alike; 0 if the process is gone, or not this user's to look at.
func Written(pid int) int64 { return written(pid, "wchar: ") }

// WrittenToDisk is how many bytes a process has had written to disks; 0 as for Written.
func WrittenToDisk(pid int) int64 { return written(pid, "write_bytes: ") }

// written reads one of the numbers of proc_pid_io(5).
func written(pid int, name string) int64 {
	n, _ := strconv.ParseInt(line(pid, "io", name), 10, 64)
	return n
}

// line returns the rest of the line of a process's file that begins with a name, or
// nothing.
func line(pid int, file, name string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// Args returns a process's command line, or nothing.
func Args(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// Mine says whether all user ids of a process are this user's. A program of another
// user that has only this user's rights is not.
func Mine(pid int) bool {
	ids := strings.Fields(line(pid, "status", "Uid:")) // real, effective, saved, of the file system
	me := strconv.Itoa(os.Geteuid())
	return len(ids) == 4 && !slices.ContainsFunc(ids, func(id string) bool { return id != me })
}

// Parent returns the id of a process's parent; 0: the process is gone, or its parent is
// not visible.
func Parent(pid int) int {
	f, err := stat(pid)
	if err != nil {
		return 0
	}
	parent, _ := strconv.Atoi(f[1])
	return parent
}

// Local says whether a process is in the PID namespace of this one, and in none below,
// such as a container's.
func Local(pid int) bool { return len(strings.Fields(line(pid, "status", "NSpid:"))) == 1 }

// Mount is a mount in a process's mount namespace (proc_pid_mountinfo(5)).
type Mount struct {
	ID     uint64
	Root   string // the folder of the file system that is mounted
	Target string // where
}

// Mounts returns the mounts that a process sees; none if it is gone.
func Mounts(pid int) (mounts []Mount) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil
	}
	for l := range strings.Lines(string(text)) {
		f := strings.Fields(l)
		if len(f) < 5 {
			continue
		}
		if id, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			mounts = append(mounts, Mount{id, f[3], strings.ReplaceAll(f[4], `\040`, " ")})
		}
	}
	return mounts
}

// Runs says whether a process is this user's and runs a program of that name. The
// program's file may have been replaced since.
func Runs(pid int, name string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && Mine(pid) && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == name
}

// All returns the ids of all visible processes.
func All() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
