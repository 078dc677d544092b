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

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/specfile"
)

// runscName is the file name of Sandlot's runsc, unless a setting has another.
const runscName = "sandlot-runsc"

// Lost returns the living sandboxes whose records are gone, for example because their state
// folder was deleted, by the state folder in their command lines. It finds only processes
// of the user who calls it that run runsc: another user cannot fake these two properties.
func Lost() map[string][]Process {
	found := map[string][]Process{}
	for _, pid := range proc.PIDs() {
		dir, id := parseBootCommand(proc.Args(pid))
		if dir == "" || !proc.RunsProgram(pid, runscName) || !proc.InOwnPIDNamespace(proc.Parent(pid)) {
			continue // in a container, the same path means another state folder
		}
		r := &Runtime{Config: Config{StateDir: dir}}
		if _, err := os.Lstat(filepath.Join(r.sandboxDir(id), specfile.Name)); !errors.Is(err, os.ErrNotExist) ||
			!r.socketDeleted(id) {
			continue
		}
		if started, err := proc.StartTicks(pid); err == nil {
			rec := record{Record: specfile.Record{ID: id}, PID: pid, Started: started}
			found[dir] = append(found[dir], r.inspect(rec))
		}
	}
	return found
}

// socketDeleted says whether the kernel marks the folder of the agent's socket as deleted
// in the gofer's mounts. That the folder cannot be seen from here is not enough: it may
// belong to a living server in another mount namespace.
func (r *Runtime) socketDeleted(id string) bool {
	for _, pid := range proc.PIDs() {
		args := proc.Args(pid)
		if !r.isSandboxCommand(args, id) || !slices.Contains(args, "gofer") || !proc.RunsProgram(pid, runscName) {
			continue
		}
		folders := map[string]string{} // the mounted folders, by mount point in the sandbox
		for _, m := range proc.Mounts(pid) {
			folders[strings.TrimPrefix(m.Target, hostfile.GoferRoot)] = m.Root
		}
		if len(folders) == 0 {
			continue
		}
		socket, found := folders[wire.SocketDir]
		if !found { // its mount point was deleted too, with the root file system
			socket = cmp.Or(folders["/"], folders[""])
		}
		return strings.HasSuffix(socket, "//deleted")
	}
	return false
}

// EndLost ends the sandboxes of a state folder whose records are gone, and returns how many there were.
func EndLost(ctx context.Context, stateDir string) (ended int, err error) {
	r := &Runtime{Config: Config{StateDir: stateDir}}
	groups := cgroup.Find(stateDir)
	for _, p := range Lost()[stateDir] {
		e := killProcess(p.PID, p.started)
		if e == nil {
			e = r.killProcesses(ctx, p.ID)
		}
		if e == nil && groups.Has(p.ID) {
			e = groups.Remove(ctx, p.ID)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("sandbox %s: %w", p.ID, e))
			continue
		}
		ended++
	}
	return ended, err
}

// killProcess kills the process with that id and start time.
func killProcess(pid int, started uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, err := proc.StartTicks(pid); err != nil || now != started {
		return nil // another process has the id by now
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
