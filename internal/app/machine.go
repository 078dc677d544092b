package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/atomicfile"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker"
	"sandlot/internal/runtime/microsandbox"
	"sandlot/internal/sandbox"
	"sandlot/internal/store"
)

// StateFolder is a state folder of this machine, with its running server and sandboxes.
type StateFolder struct {
	Path      string    `json:"path"`
	UID       int       `json:"uid"`            // of the folder's owner
	Deleted   bool      `json:"gone,omitempty"` // the folder was deleted while sandboxes were running
	Server    *Server   `json:"server"`
	Sandboxes []Sandbox `json:"sandboxes"`
	// Asleep are the sessions that sleep, or are paused; none if the database belongs to another user.
	Asleep []store.Sleeping `json:"asleep"`
}

// Resting counts the sessions that sleep, and those that are paused.
func (f *StateFolder) Resting() (asleep, paused int) {
	for _, s := range f.Asleep {
		if s.Paused {
			paused++
		}
	}
	return len(f.Asleep) - paused, paused
}

// Server is the running server of a state folder.
type Server struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`

	startTicks uint64 // as in proc.Started: tells the process from a later one with the same id
}

// Sandbox is a running sandbox of a state folder. Session and Owner are empty for a sandbox of the pool,
// and if the database belongs to another user.
type Sandbox struct {
	ID          string    `json:"id"`
	Session     string    `json:"session"`
	Owner       string    `json:"owner"`
	Template    string    `json:"template"`
	Runtime     string    `json:"runtime"`
	PID         int       `json:"pid"` // 0: its processes are not on this machine
	Since       time.Time `json:"since"`
	MemoryBytes int64     `json:"memory_bytes"`
	HasServer   bool      `json:"held"` // the state folder has a running server
	// Lost: the sandbox's record was deleted, so no server adopts it.
	Lost bool `json:"lost,omitempty"`
}

// RunningStateFolders returns the state folders of this machine that have a running server or sandbox, or a session
// that sleeps. It finds those whose processes this user may see, and looks into the folder of the settings. Without
// settings, nil, it does not look for containers.
func RunningStateFolders(ctx context.Context, c *config.Config, log *slog.Logger) []StateFolder {
	var found []StateFolder
	candidates := append(gvisorStateDirs(), lockedDirs()...)
	if c != nil {
		candidates = append([]string{c.Server.StateDir}, candidates...)
	}
	if hasDocker(c) {
		dirs, err := docker.StateDirs(ctx, daemon(c, c.Server.StateDir, log))
		if err != nil {
			log.ErrorContext(ctx, "the Docker daemon does not say which sandboxes run", "error", err)
		}
		candidates = append(candidates, dirs...)
	}
	for _, dir := range candidates {
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil || slices.ContainsFunc(found, func(f StateFolder) bool { return f.Path == resolved }) {
			continue
		}
		if f, err := InspectStateFolder(ctx, c, log, resolved); err == nil {
			found = append(found, f)
		}
	}
	for dir, lost := range lostSandboxes(ctx, c, log) {
		if !slices.ContainsFunc(found, func(f StateFolder) bool { return f.Path == dir }) {
			f := StateFolder{Path: dir, UID: os.Geteuid(), Deleted: true}
			f.addLost(lost)
			found = append(found, f)
		}
	}
	return slices.DeleteFunc(found, func(f StateFolder) bool {
		return f.Server == nil && len(f.Sandboxes)+len(f.Asleep) == 0
	})
}

// ResolveStateFolder returns the path of a state folder without links, and whether the folder is this user's own.
func ResolveStateFolder(dir string) (path string, own bool, err error) {
	if path, err = filepath.Abs(dir); err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", false, err
	}
	st, err := os.Stat(path)
	return path, err == nil && fileOwner(st) == os.Getuid(), err
}

// InspectStateFolder returns the state of one state folder. Sandboxes on Docker are those of the settings' daemon;
// without settings, nil, there are none.
func InspectStateFolder(ctx context.Context, c *config.Config, log *slog.Logger, dir string) (StateFolder, error) {
	dir, err := filepath.Abs(dir) // sandboxes know the folder by its absolute path
	if err != nil {
		return StateFolder{}, err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return StateFolder{}, err
	}
	if !st.IsDir() {
		return StateFolder{}, fmt.Errorf("%s is not a folder", dir)
	}
	f := StateFolder{Path: dir, UID: fileOwner(st), Sandboxes: []Sandbox{}, Asleep: []store.Sleeping{}}
	own, err := gvisorSandboxes(dir)
	if err != nil {
		return f, err
	}
	f.Server = runningServer(dir, f.UID)
	sessions := map[string][2]string{}
	if f.UID == os.Getuid() { // a database that another user created is not trusted
		if sessions, err = store.Sandboxes(ctx, databaseOf(c, dir)); err == nil {
			var asleep []store.Sleeping
			asleep, err = store.Asleep(ctx, databaseOf(c, dir))
			f.Asleep = append(f.Asleep, asleep...)
		}
		if err != nil {
			log.DebugContext(ctx, "the sessions of a state folder cannot be read", "folder", dir, "error", err)
		}
	}
	for _, s := range own {
		s.Session, s.Owner, s.HasServer = sessions[s.ID][0], sessions[s.ID][1], f.Server != nil
		f.Sandboxes = append(f.Sandboxes, s)
	}
	if c != nil {
		f.addContainers(ctx, daemon(c, dir, log), sessions)
		f.addMachines(ctx, machines(c, dir, log), sessions)
	}
	f.addLost(lostSandboxes(ctx, c, log)[dir])
	return f, nil
}

// databaseOf returns where the database of a state folder is. Other settings than those of the folder do not say it.
func databaseOf(c *config.Config, dir string) string {
	if c != nil {
		if own, err := filepath.EvalSymlinks(c.Server.StateDir); err == nil && own == dir {
			return c.Server.Database()
		}
	}
	return dir
}

// addContainers adds the sandboxes on Docker. Sessions has the session and the owner of each.
func (f *StateFolder) addContainers(ctx context.Context, d docker.Config, sessions map[string][2]string) {
	containers, err := docker.Inspect(ctx, d)
	if err != nil {
		d.Log.ErrorContext(ctx, "the Docker daemon does not say which sandboxes of a state folder run", "folder",
			f.Path, "error", err)
	}
	for _, p := range containers {
		s := sessions[p.ID]
		f.Sandboxes = append(f.Sandboxes, Sandbox{ID: p.ID, Session: s[0], Owner: s[1], Template: p.Template,
			Runtime: "docker", PID: p.PID, Since: p.Since, MemoryBytes: p.MemoryBytes, HasServer: f.Server != nil})
	}
}

// addMachines adds the sandboxes that are machines of microsandbox.
func (f *StateFolder) addMachines(ctx context.Context, m microsandbox.Config, sessions map[string][2]string) {
	all, err := microsandbox.Inspect(ctx, m)
	if err != nil {
		m.Log.ErrorContext(ctx, "msb does not say which sandboxes of a state folder run", "folder", f.Path, "error", err)
	}
	for _, p := range all {
		s := sessions[p.ID]
		f.Sandboxes = append(f.Sandboxes, Sandbox{ID: p.ID, Session: s[0], Owner: s[1], Template: p.Template,
			Runtime: microsandbox.Name, Since: p.Since, MemoryBytes: p.MemoryBytes, HasServer: f.Server != nil})
	}
}

// lostSandboxes returns the sandboxes whose records are deleted, by state folder.
func lostSandboxes(ctx context.Context, c *config.Config, log *slog.Logger) map[string][]Sandbox {
	found := gvisorLost()
	if !hasDocker(c) {
		return found
	}
	containers, err := docker.Lost(ctx, daemon(c, c.Server.StateDir, log))
	if err != nil {
		log.ErrorContext(ctx, "the Docker daemon does not say which sandboxes have lost their records", "error", err)
	}
	for dir, all := range containers {
		for _, p := range all {
			found[dir] = append(found[dir], Sandbox{ID: p.ID, Template: p.Template, Runtime: "docker", PID: p.PID,
				Since: p.Since, MemoryBytes: p.MemoryBytes, Lost: true})
		}
	}
	return found
}

// hasDocker reports whether sandboxes may be on Docker with these settings; nil: there are none.
func hasDocker(c *config.Config) bool { return c != nil && slices.Contains(c.Runtime.Names, "docker") }

// addLost adds sandboxes whose records are deleted, and sorts all sandboxes by start.
func (f *StateFolder) addLost(lost []Sandbox) {
	for _, s := range lost { // the daemon knows one whose folder alone was deleted
		f.Sandboxes = append(slices.DeleteFunc(f.Sandboxes, func(x Sandbox) bool { return x.ID == s.ID }), s)
	}
	slices.SortFunc(f.Sandboxes, func(x, y Sandbox) int { return x.Since.Compare(y.Since) })
}

// runningServer returns the server whose process is named in the lock file of a state folder, if it runs. The
// process must belong to owner, the folder's owner, unless that is root: the file could name any.
func runningServer(dir string, owner int) *Server {
	text, err := atomicfile.Read(filepath.Join(dir, "lock"), 100)
	if err != nil {
		return nil
	}
	s := new(Server)
	if _, err := fmt.Fscan(bytes.NewReader(text), &s.PID, &s.startTicks); err != nil || s.PID <= 1 {
		return nil
	}
	if uid, err := proc.Owner(s.PID); err != nil || owner != 0 && uid != owner {
		return nil
	}
	if now, err := proc.StartTicks(s.PID); err != nil || now != s.startTicks {
		return nil
	}
	s.Since = proc.TicksToTime(s.startTicks)
	return s
}

// StopServer stops the server of a state folder, if there is one, and waits for its end. It returns
// whether there was one.
func StopServer(ctx context.Context, f StateFolder) (bool, error) {
	if f.Server == nil {
		return false, nil
	}
	if found, ended, err := stopProcess(ctx, f.Server); ended || !found || err != nil {
		return found, err
	}
	return true, fault.New(fault.Configuration,
		"the server, process %d, has not ended yet; running calls have %s to end. `kill -9 %d` ends it at once, and "+
			"loses no session", f.Server.PID, Grace, f.Server.PID)
}

// Grace is how long running calls may take to end when the server stops.
const Grace = 30 * time.Second

// EndSandboxes ends all sandboxes of the settings' state folder, which must not have a running server,
// and returns how many were running. Sessions and their files are kept.
func EndSandboxes(ctx context.Context, c *config.Config, log *slog.Logger) (ended int, err error) {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	all, err := Runtimes(c, log)
	if err != nil {
		return 0, err
	}
	former, formerErr := formerRuntimes(ctx, c, log)
	all = append(all, former...)
	defer func() { err = errors.Join(err, formerErr, closeAll(all)) }()
	for _, rt := range all {
		ids, rtErr := rt.Leftovers(ctx)
		if rtErr == nil {
			var n int
			n, rtErr = stopAll(ctx, rt, ids)
			ended += n
		}
		err = errors.Join(err, rtErr)
	}
	lost, lostErr := endLost(ctx, c, log, c.Server.StateDir)
	return ended + lost, errors.Join(err, lostErr)
}

// EndLost ends the sandboxes whose state folder was deleted while they were running, and returns how many
// there were. dir is the folder's former path.
func EndLost(ctx context.Context, c *config.Config, log *slog.Logger, dir string) (int, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		dir = filepath.Join(parent, filepath.Base(dir))
	}
	return endLost(ctx, c, log, dir)
}

func endLost(ctx context.Context, c *config.Config, log *slog.Logger, dir string) (int, error) {
	ended, err := endGVisorLost(ctx, dir)
	if !hasDocker(c) {
		return ended, err
	}
	containers, dockerErr := docker.EndLost(ctx, daemon(c, dir, log))
	return ended + containers, errors.Join(err, dockerErr)
}

// stopAll ends sandboxes, a few at a time, until ctx ends.
func stopAll(ctx context.Context, rt sandbox.Runtime, ids []string) (ended int, err error) {
	var mu sync.Mutex
	var work errgroup.Group
	work.SetLimit(4)
	for _, id := range ids {
		work.Go(func() error {
			if ctx.Err() != nil {
				return nil // reported once, below
			}
			box, boxErr := rt.Recover(ctx, id)
			if sandbox.Removed(boxErr) {
				return nil // it was not running; Recover has removed its remains
			}
			if boxErr == nil {
				boxErr = box.Stop(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			if boxErr == nil {
				ended++
			} else if ctx.Err() == nil {
				err = errors.Join(err, boxErr)
			}
			return nil
		})
	}
	_ = work.Wait()
	return ended, errors.Join(err, ctx.Err())
}
