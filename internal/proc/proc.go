// Package proc reads what the kernel tells of this machine's processes. Their command
// lines are what their users have made of them, and prove nothing.
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

// TicksPerSecond is the kernel's USER_HZ, in which it tells start times.
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

// Started returns when a process started, in clock ticks since the machine did.
// Together with its id it tells the process from all others. A zombie counts as gone.
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

// Ending says whether the process with that id and start time has ended, or is
// about to: the kernel closes what it had, and it runs no more code of its own.
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
	return time.Now().Add(time.Duration(started)*(time.Second/TicksPerSecond) - time.Duration(up.Nano())).Truncate(time.Second)
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

// Written is how many bytes a process has written by system calls, to whatever
// (proc_pid_io(5), wchar); 0 if the process is gone, or not this user's to look at.
func Written(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "wchar: "); ok {
			bytes, _ := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			return bytes
		}
	}
	return 0
}

// Args returns a process's command line, or nothing.
func Args(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// Mine says whether a process is this user's, wholly: not a program of another user's
// that has only the rights of this one.
func Mine(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	ids := strings.Fields(line) // real, effective, saved, of the file system
	me := strconv.Itoa(os.Geteuid())
	return len(ids) == 4 && !slices.ContainsFunc(ids, func(id string) bool { return id != me })
}

// Parent returns the process's parent; 0: it is gone, or has none that can be seen.
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
func Local(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(text), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	return ok && len(strings.Fields(line)) == 1
}

// Runs says whether a process is this user's and runs the program of that name, which
// may have been replaced since.
func Runs(pid int, name string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && Mine(pid) && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == name
}

// All returns the ids of all processes that can be seen.
func All() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
