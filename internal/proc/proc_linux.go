package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TicksPerSecond is the kernel's USER_HZ, the unit of start times.
const TicksPerSecond = 100

// stat returns the fields of /proc/PID/stat that come after the command: element 0 is the
// state, the third field in proc_pid_stat(5).
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

// State returns the letter of a process's state. For a process that does not exist it is that
// of a zombie, 'Z'.
func State(pid int) byte {
	f, err := stat(pid)
	if err != nil {
		return 'Z'
	}
	return f[0][0]
}

// StartTicks returns when a process started, in clock ticks since the machine's boot. A process
// id and a start time together identify a process. A zombie counts as ended: the error is
// os.ErrProcessDone.
func StartTicks(pid int) (uint64, error) {
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// flagExiting is the kernel's PF_EXITING.
const flagExiting = 0x4

// IsEnding reports whether the process with that id and start time has ended, is exiting or was killed. A
// killed process runs no more code, an exiting one neither; the kernel is closing its files.
func IsEnding(pid int, started uint64) bool {
	f, err := stat(pid)
	if err != nil || f[0] == "Z" || f[0] == "X" || f[19] != strconv.FormatUint(started, 10) {
		return true
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return err == nil && flags&flagExiting != 0 || isKilled(pid)
}

// isKilled reports whether SIGKILL waits for a process: no processor has run it since.
func isKilled(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for l := range strings.Lines(string(text)) {
		name, set, _ := strings.Cut(l, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		signals, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
		if err == nil && signals&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// TicksToTime converts a start time in clock ticks to a time.
func TicksToTime(started uint64) time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	running := time.Duration(up.Nano()) - time.Duration(started)*(time.Second/TicksPerSecond)
	return time.Now().Add(-running).Truncate(time.Second)
}

// CPUTime returns how much processor time a process has used; 0 if it does not exist.
func CPUTime(pid int) time.Duration {
	f, err := stat(pid)
	if err != nil {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / TicksPerSecond
}

// BytesWritten returns how many bytes a process has written by system calls, to files, pipes and
// sockets alike; 0 if the process does not exist, or this user may not read that number.
func BytesWritten(pid int) int64 { return ioCounter(pid, "wchar: ") }

// BytesWrittenToDisk returns how many bytes a process has caused to be written to disks; 0 as for
// BytesWritten.
func BytesWrittenToDisk(pid int) int64 { return ioCounter(pid, "write_bytes: ") }

// ioCounter returns the number in the line of /proc/PID/io (proc_pid_io(5)) that begins with
// name.
func ioCounter(pid int, name string) int64 {
	n, _ := strconv.ParseInt(fileLine(pid, "io", name), 10, 64)
	return n
}

// fileLine returns the rest of the line that begins with name in the file /proc/PID/file, or "".
func fileLine(pid int, file, name string) string {
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

// Args returns a process's command line, or nil.
func Args(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// IsOwn reports whether all user ids of a process are this user's. A set-user-ID program of this
// user that another user has started is not.
func IsOwn(pid int) bool {
	ids := strings.Fields(fileLine(pid, "status", "Uid:")) // real, effective, saved, file system
	own := strconv.Itoa(os.Geteuid())
	return len(ids) == 4 && !slices.ContainsFunc(ids, func(id string) bool { return id != own })
}

// Parent returns the id of a process's parent, or 0 if the process does not exist or its
// parent is not visible.
func Parent(pid int) int {
	f, err := stat(pid)
	if err != nil {
		return 0
	}
	parent, _ := strconv.Atoi(f[1])
	return parent
}

// InOwnPIDNamespace reports whether a process is in this process's PID namespace, and not in one below it,
// such as a container's.
func InOwnPIDNamespace(pid int) bool {
	return len(strings.Fields(fileLine(pid, "status", "NSpid:"))) == 1
}

// Mount is a mount in a process's mount namespace (proc_pid_mountinfo(5)).
type Mount struct {
	ID       uint64
	Parent   uint64 // the mount in which its mount point is
	Root     string // the folder in its file system that is mounted
	Target   string // the mount point
	ReadOnly bool
}

// Mounts returns the mounts that a process sees; none if it does not exist.
func Mounts(pid int) (mounts []Mount) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil
	}
	for l := range strings.Lines(string(text)) {
		f := strings.Fields(l)
		if len(f) < 6 {
			continue
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		parent, parentErr := strconv.ParseUint(f[1], 10, 64)
		if err == nil && parentErr == nil {
			mounts = append(mounts, Mount{id, parent, f[3], unescape.Replace(f[4]),
				slices.Contains(strings.Split(f[5], ","), "ro")})
		}
	}
	return mounts
}

// unescape undoes what the kernel does to paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// RunsProgram reports whether a process belongs to this user and runs a program with that file name,
// whose file may have been replaced since it started.
func RunsProgram(pid int, name string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && IsOwn(pid) && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == name
}

// Owner returns the user of a process.
func Owner(pid int) (uid int, err error) {
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return 0, err
	}
	return int(st.Sys().(*syscall.Stat_t).Uid), nil
}

// PIDs returns the ids of all visible processes.
func PIDs() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
