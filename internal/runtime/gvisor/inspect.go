package gvisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Process is a living sandbox of this machine, as it is seen from outside.
type Process struct {
	ID          string
	Template    string
	PID         int
	Since       time.Time
	MemoryBytes int64

	started uint64
}

// Inspect lists the living sandboxes of a state folder, whether or not it has a
// server, and touches none. It reads what the host wrote alone. Of a folder that
// is not root's, only processes of its owner count.
func Inspect(stateDir string) ([]Process, error) {
	r := &Runtime{Config: Config{StateDir: stateDir}}
	folder, err := os.Lstat(stateDir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.dir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	groups := findCgroups(stateDir)
	var alive []Process
	for _, e := range entries {
		rec, err := r.read(e.Name())
		if err != nil || rec.PID <= 0 || !r.isProcess(rec, folder) {
			continue
		}
		b := newBox(r, sandbox.Spec{ID: rec.ID, Template: &image.Template{}})
		if groups.has(rec.ID) {
			b.cgroups = groups
		}
		p := Process{ID: rec.ID, Template: rec.Template, PID: rec.PID, Since: Since(rec.Started)}
		p.MemoryBytes, _ = b.cost(rec.PID)
		alive = append(alive, p)
	}
	return alive, nil
}

// maxRecord bounds sandbox.json, in bytes.
const maxRecord = 1 << 20

// read reads the record of a sandbox, by no link.
func (r *Runtime) read(id string) (rec record, err error) {
	if !validID.MatchString(id) {
		return rec, errors.New("not an id")
	}
	f, err := os.OpenFile(filepath.Join(r.path(id), "sandbox.json"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return rec, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err == nil && rec.ID != id {
		err = errors.New("its record is broken")
	}
	return rec, err
}

// isProcess says whether the process of a record is still that sandbox's.
func (r *Runtime) isProcess(rec record, folder os.FileInfo) bool {
	if now, err := startTime(rec.PID); err != nil || now != rec.Started {
		return false
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(rec.PID), "cmdline"))
	if err != nil || !slices.Contains(strings.Split(string(line), "\x00"), "--root="+r.runscRoot()) ||
		!bytes.Contains(line, []byte(rec.ID)) {
		return false
	}
	owner := folder.Sys().(*syscall.Stat_t).Uid
	st, err := os.Stat(filepath.Join("/proc", strconv.Itoa(rec.PID)))
	return err == nil && (owner == 0 || st.Sys().(*syscall.Stat_t).Uid == owner)
}

// StateDirs returns the state folders that running sandboxes of this machine
// name, as far as this user may see their command lines. Whoever may start a
// program can name any folder: nothing in it is to be believed for that.
func StateDirs() []string {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var dirs []string
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for arg := range strings.SplitSeq(string(line), "\x00") {
			root, ok := strings.CutPrefix(arg, "--root=")
			if dir, isOurs := strings.CutSuffix(root, "/runsc"); ok && isOurs && filepath.IsAbs(dir) &&
				!slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// StartTime returns when a process started, in clock ticks since the machine did.
// Together with its id it tells the process from all others.
func StartTime(pid int) (uint64, error) { return startTime(pid) }

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

// ticksPerSecond is the kernel's USER_HZ.
const ticksPerSecond = 100

// Since is the time of day of a start time.
func Since(started uint64) time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(started)*(time.Second/ticksPerSecond) - time.Duration(up.Nano())).
		Truncate(time.Second)
}
