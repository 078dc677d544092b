package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
)

// program is what runsc is called where no setting names another.
const program = "sandlot-runsc"

// Lost returns the living sandboxes whose records are gone, such as with their state
// folder, by the state folder that they name. It finds those of the user who asks
// alone: whose process it is and which program it runs, nobody else can pretend.
func Lost() map[string][]Process {
	found := map[string][]Process{}
	for _, pid := range proc.All() {
		dir, id := sandboxOf(proc.Args(pid))
		if dir == "" || !proc.Runs(pid, program) || !proc.Local(proc.Parent(pid)) {
			continue // of a container it is another folder of that name
		}
		r := &Runtime{Config: Config{StateDir: dir}}
		if _, err := os.Lstat(filepath.Join(r.path(id), "sandbox.json")); !errors.Is(err, os.ErrNotExist) ||
			!deleted(dir, id) {
			continue
		}
		started, err := proc.Started(pid)
		if err != nil {
			continue
		}
		b := newBox(r, sandbox.Spec{ID: id, Template: &image.Template{}})
		if groups := findCgroups(dir); groups.has(id) {
			b.cgroups = groups
		}
		p := Process{ID: id, PID: pid, Since: proc.Since(started), started: started}
		p.MemoryBytes, _ = b.cost(pid)
		found[dir] = append(found[dir], p)
	}
	return found
}

// deleted says whether the kernel knows the folder of the agent's socket as deleted. A
// folder that is only not to be seen from here may be that of a living server in
// another mount namespace.
func deleted(stateDir, id string) bool {
	for _, pid := range proc.All() {
		args := proc.Args(pid)
		if len(args) == 0 || args[len(args)-1] != id || !slices.Contains(args, "gofer") ||
			!slices.Contains(args, "--root="+stateDir+"/runsc") || !proc.Runs(pid, program) {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			continue
		}
		folders := map[string]string{} // what is mounted, by where: proc_pid_mountinfo(5)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 4 {
				folders[strings.TrimPrefix(f[4], goferRoot)] = f[3]
			}
		}
		socket, there := folders[wire.SocketDir]
		if !there { // its place was deleted too, with the root file system
			socket = cmp.Or(folders["/"], folders[""])
		}
		return strings.HasSuffix(socket, "//deleted")
	}
	return false
}

// EndLost ends the sandboxes of a state folder whose records are gone, and returns how
// many there were.
func EndLost(ctx context.Context, stateDir string) (ended int, err error) {
	for _, p := range Lost()[stateDir] {
		r := &Runtime{Config: Config{StateDir: stateDir}}
		e := end(p.PID, p.started)
		if e == nil {
			e = r.exterminate(ctx, p.ID)
		}
		if groups := findCgroups(stateDir); e == nil && groups.has(p.ID) {
			e = groups.remove(ctx, p.ID)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("sandbox %s: %w", p.ID, e))
			continue
		}
		ended++
	}
	return ended, err
}

// end kills the process with that id and start time.
func end(pid int, started uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, err := proc.Started(pid); err != nil || now != started {
		return nil // that id is another's by now
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// sandboxOf reads the command line of a sandbox's own process: its state folder and
// its id, or nothing.
func sandboxOf(args []string) (stateDir, id string) {
	if len(args) < 3 || !slices.Contains(args, "boot") || !validID.MatchString(args[len(args)-1]) {
		return "", ""
	}
	for _, arg := range args {
		root, ok := strings.CutPrefix(arg, "--root=")
		if dir, isOurs := strings.CutSuffix(root, "/runsc"); ok && isOurs && filepath.IsAbs(dir) &&
			filepath.Clean(dir) == dir {
			return dir, args[len(args)-1]
		}
	}
	return "", ""
}

// booting is how much earlier than a sandbox's own process its file server may have
// started.
const booting = 2 * time.Minute

// isServer says whether a process is the file server of the sandbox whose own process
// started at that time. Whoever may start a program can give it any command line: what
// else is asked for, no other user's process has.
func (r *Runtime) isServer(pid int, id string, started uint64) bool {
	args := proc.Args(pid)
	if len(args) == 0 || args[len(args)-1] != id || !slices.Contains(args, "gofer") ||
		!slices.Contains(args, "--root="+r.runscRoot()) {
		return false
	}
	at, err := proc.Started(pid)
	return err == nil && at <= started && started-at < uint64(booting/time.Second)*proc.TicksPerSecond &&
		proc.Runs(pid, filepath.Base(r.Runsc))
}
