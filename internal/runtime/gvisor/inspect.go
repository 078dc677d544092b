package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// Process is a living sandbox of this machine, as other programs than its server can see it.
type Process struct {
	ID          string
	Template    string
	PID         int
	Since       time.Time
	MemoryBytes int64

	started uint64 // start time of the process
}

// Inspect lists the living sandboxes of a state folder, whether or not a server runs, and
// changes nothing. It reads only files that the host wrote. If the folder does not belong
// to root, only processes of its owner count.
func Inspect(stateDir string) ([]Process, error) {
	r := &Runtime{Config: Config{StateDir: stateDir}}
	folder, err := os.Lstat(stateDir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.sandboxesDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var alive []Process
	for _, e := range entries {
		rec, err := r.readRecord(e.Name())
		if err == nil && rec.PID > 0 && r.isRunning(rec, folder) {
			alive = append(alive, r.inspect(rec))
		}
	}
	return alive, nil
}

// inspect returns the Process of a living sandbox. rec is its record, or has just the id,
// the process and its start time.
func (r *Runtime) inspect(rec record) Process {
	b := newBox(r, sandbox.Spec{ID: rec.ID, Template: &image.Template{}})
	if groups := cgroup.Find(r.StateDir); groups.Has(rec.ID) {
		b.cgroups = groups
	}
	memory, _ := b.hostUsage(rec.PID)
	return Process{ID: rec.ID, Template: rec.Template, PID: rec.PID, Since: proc.TicksToTime(rec.Started),
		MemoryBytes: memory, started: rec.Started}
}

// readRecord reads the record of a sandbox.
func (r *Runtime) readRecord(id string) (rec record, err error) {
	if !validID.MatchString(id) {
		return rec, errors.New("not an id")
	}
	err = specfile.Read(r.sandboxDir(id), &rec)
	if err == nil && rec.ID != id {
		err = specfile.ErrBroken
	}
	return rec, err
}

// isRunning says whether the process of a record still runs, and belongs to the owner of
// the state folder.
func (r *Runtime) isRunning(rec record, folder os.FileInfo) bool {
	if now, err := proc.StartTicks(rec.PID); err != nil || now != rec.Started ||
		!r.isSandboxCommand(proc.Args(rec.PID), rec.ID) {
		return false
	}
	owner := folder.Sys().(*syscall.Stat_t).Uid
	st, err := os.Stat(filepath.Join("/proc", strconv.Itoa(rec.PID)))
	return err == nil && (owner == 0 || st.Sys().(*syscall.Stat_t).Uid == owner)
}

// StateDirs returns the state folders in the command lines of running sandboxes, as far as
// this user may see them. That proves nothing: any user can start a program with any
// folder in its command line.
func StateDirs() []string {
	var dirs []string
	for _, pid := range proc.PIDs() {
		if dir, _ := parseBootCommand(proc.Args(pid)); dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
