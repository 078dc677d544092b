package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/runtime/docker"
	"sandlot/internal/runtime/microsandbox"
	"sandlot/internal/sandbox"
)

// runtimes are the constructors of the runtimes, by the setting runtime. A new runtime is added here.
var runtimes = map[string]func(*config.Config, *slog.Logger) (sandbox.Runtime, error){
	"gvisor": func(c *config.Config, log *slog.Logger) (sandbox.Runtime, error) { return newGVisor(c, log, false) },
	"docker": func(c *config.Config, log *slog.Logger) (sandbox.Runtime, error) {
		if egress.Mode(c.Network.Mode) == egress.Open {
			return nil, fault.New(fault.Configuration, "network.mode=open: the runtime docker has no sandboxes "+
				"with the machine's network; use `allowlist` or `public`")
		}
		settings := daemon(c, c.Server.StateDir, log)
		var err error
		if settings.Agent, settings.AgentBeside, err = findAgent(c.Runtime.AgentPath); err != nil {
			return nil, err
		}
		rt, err := docker.New(settings)
		if err != nil {
			return nil, fault.Wrap(fault.Configuration, err, "%v", err)
		}
		return rt, nil
	},
	microsandbox.Name: func(c *config.Config, log *slog.Logger) (sandbox.Runtime, error) {
		settings := machines(c, c.Server.StateDir, log)
		var err error
		if settings.Agent, settings.AgentBeside, err = findAgent(c.Runtime.AgentPath); err != nil {
			return nil, err
		}
		rt, err := microsandbox.New(settings)
		if err != nil {
			return nil, fault.Wrap(fault.Configuration, err, "%v%s", err, c.RuntimeHint())
		}
		return rt, nil
	},
}

// machines returns the settings of the runtime microsandbox, without the path of the agent.
func machines(c *config.Config, stateDir string, log *slog.Logger) microsandbox.Config {
	return microsandbox.Config{Program: c.Microsandbox.Program, StateDir: stateDir, Log: log}
}

// A Candidate says which runtime is to be tried in place of the settings', and how.
type Candidate struct {
	Name     string
	Rootless bool   // gVisor as a server without root has it
	Host     string // of the runtime docker: docker.host; empty: as in the settings
	Runtime  string // docker.runtime
}

// open creates the runtime in a state folder.
func (r Candidate) open(c *config.Config, stateDir string, log *slog.Logger) (sandbox.Runtime, error) {
	settings := *c
	settings.Docker.Runtime, settings.Server.StateDir = r.Runtime, stateDir
	if r.Host != "" {
		settings.Docker.Host, settings.Docker.Context = r.Host, ""
	}
	if r.Rootless {
		return newGVisor(&settings, log, true)
	}
	return runtimes[r.Name](&settings, log)
}

// Try returns an error if the runtime makes no sandboxes here, and what it would not guarantee. It leaves nothing.
func (r Candidate) Try(ctx context.Context, c *config.Config, log *slog.Logger) (warning string, err error) {
	dir, remove := c.Server.StateDir, func() error { return nil }
	if r.Name == microsandbox.Name { // whose check boots a machine
		if dir, remove, err = temporaryState(); err != nil {
			return "", err
		}
	}
	rt, err := r.open(c, dir, log)
	if err != nil {
		return "", errors.Join(err, remove())
	}
	defer func() { err = errors.Join(err, closeTrial(rt, remove)) }()
	err = rt.Check(ctx)
	if d := rt.Capabilities().Doctor; d != nil && err == nil {
		warning = d.Warning()
	}
	return warning, err
}

// closeTrial closes the runtime of a trial, and removes its state folder, unless something is left that is found by it.
func closeTrial(rt sandbox.Runtime, remove func() error) error {
	if err := rt.Close(); err != nil {
		return err
	}
	return remove()
}

// temporaryState makes a state folder for a trial.
func temporaryState() (dir string, remove func() error, err error) {
	if dir, err = os.MkdirTemp("", "sandlot-trial-"); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// daemon returns the settings of the runtime docker, without the path of the agent.
func daemon(c *config.Config, stateDir string, log *slog.Logger) docker.Config {
	d := c.Docker
	return docker.Config{Host: d.Host, Context: d.Context, OCIRuntime: d.Runtime, WritableRoot: d.WritableRoot,
		Files: d.Files, HasFolders: len(c.Volumes) > 0, StateDir: stateDir, Log: log}
}

// formerRuntimes returns runtimes that are not among the settings', and have sandboxes of the state folder from a time
// when they were. Those that cannot be created have none that could be ended. The error is of those that do not say
// what they have.
func formerRuntimes(ctx context.Context, c *config.Config, log *slog.Logger) (former []sandbox.Runtime, all error) {
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		if name == c.Runtime.Name || slices.Contains(c.Runtime.Names, name) {
			continue
		}
		rt, err := runtimes[name](c, log)
		if err != nil {
			continue
		}
		ids, err := rt.Leftovers(ctx)
		if err != nil {
			all = errors.Join(all, fmt.Errorf("the runtime %s, which the settings no longer have: %w", name, err))
		}
		if len(ids) > 0 {
			former = append(former, rt)
		} else {
			rt.Close()
		}
	}
	return former, all
}

// Runtimes creates the runtimes of the settings. The first is the default one. When one cannot be created, none is
// left open.
func Runtimes(c *config.Config, log *slog.Logger) (all []sandbox.Runtime, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(all))
			all = nil
		}
	}()
	names := append([]string{c.Runtime.Name}, slices.DeleteFunc(slices.Clone(c.Runtime.Names),
		func(name string) bool { return name == c.Runtime.Name })...)
	for _, name := range names {
		rt, err := runtimes[name](c, log)
		if err != nil {
			return all, err
		}
		all = append(all, rt)
	}
	return all, nil
}

func closeAll(all []sandbox.Runtime) (err error) {
	for _, rt := range all {
		err = errors.Join(err, rt.Close())
	}
	return err
}

// runtimeList has the runtimes of a server, the default one first.
type runtimeList []sandbox.Runtime

// check returns an error if the default runtime makes no sandboxes. Without another one the server goes on, but for the
// templates of that one.
func (l runtimeList) check(ctx context.Context) error { return l[0].Check(ctx) }

// openRuntimes creates the runtimes of the settings, and lets them find out how they make sandboxes here.
func (m maker) openRuntimes(ctx context.Context) (runtimeList, error) {
	all, err := Runtimes(m.c, m.log)
	if err != nil {
		return nil, err
	}
	m.closing.add(func() error { return closeAll(all) })
	return all, choose(ctx, all)
}

// choose lets the runtimes that have to find out how they make sandboxes here do so.
func choose(ctx context.Context, all []sandbox.Runtime) error {
	for _, rt := range all {
		if d := rt.Capabilities().Doctor; d != nil {
			if err := d.Choose(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// reportRuntimes says in the log which runtimes make no sandboxes here, and what the others do not guarantee. The
// server does not wait for it: a daemon may take long to answer, and may be started later.
func (a *App) reportRuntimes(ctx context.Context) {
	for _, rt := range a.runtimes {
		if err := rt.Check(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("no sandboxes can be made yet", "runtime", rt.Name(), "advice", sandbox.Advice(err),
				"error", err)
			continue
		}
		if d := rt.Capabilities().Doctor; d != nil && d.Warning() != "" {
			a.log.Warn(d.Warning())
		}
	}
}

// seal makes a folder read-only or writable in the sandboxes of all runtimes that can do so.
func (l runtimeList) seal(ctx context.Context, source string, readOnly bool) (failed int) {
	for _, rt := range l {
		if f := rt.Capabilities().Files; f != nil {
			failed += f.Seal(ctx, source, readOnly)
		}
	}
	return failed
}

// sandboxes returns the sandboxes of all runtimes.
func (l runtimeList) sandboxes() (all []sandbox.Sandbox) {
	for _, rt := range l {
		all = append(all, rt.List()...)
	}
	return all
}

// findAgent returns the path of the agent's program by the setting, or else where it may be beside the running program.
func findAgent(path string) (set, beside string, err error) {
	found, err := findProgram(path, "sandlot-agent", "agent")
	if path != "" {
		return found, "", err
	}
	return "", found, nil // most often it is in the running program, and this is not needed
}

// findProgram returns the path of one of Sandlot's programs: by the setting or, if that is empty, in the
// folder of the running program.
func findProgram(path, name, setting string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		if self, err = filepath.EvalSymlinks(self); err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), name)
	}
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fault.Wrap(fault.Configuration, err,
			"the program %s is missing: %v; run `make build`, or set %s to its path", name, err, setting)
	}
	return path, nil
}
