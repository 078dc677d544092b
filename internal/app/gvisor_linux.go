//go:build !mac

package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/runtime/gvisor"
	"sandlot/internal/sandbox"
)

func newGVisor(c *config.Config, log *slog.Logger, rootless bool) (sandbox.Runtime, error) {
	runsc, err := findProgram(c.Runtime.RunscPath, "sandlot-runsc", "runsc")
	if err != nil {
		return nil, err
	}
	agent, beside, err := findAgent(c.Runtime.AgentPath)
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Config{Runsc: runsc, Agent: agent, AgentBeside: beside, StateDir: c.Server.StateDir,
		Log: log, HostNetwork: egress.Mode(c.Network.Mode) == egress.Open, Preboot: c.Runtime.Snapshots,
		Rootless: rootless, Platform: c.Runtime.Platform})
}

// TryPlatforms tries each platform of gVisor, in a state folder of its own.
func TryPlatforms(ctx context.Context, c *config.Config, log *slog.Logger) (all []Platform, err error) {
	settings := *c
	if settings.Server.StateDir, err = os.MkdirTemp("", "sandlot-trial-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(settings.Server.StateDir)) }()
	if settings.Server.StateDir, err = filepath.EvalSymlinks(settings.Server.StateDir); err != nil {
		return nil, err
	}
	rt, err := newGVisor(&settings, log, false)
	if err != nil {
		return nil, err
	}
	for _, t := range rt.(*gvisor.Runtime).TryAll(ctx) {
		all = append(all, Platform{Name: t.Platform, Err: t.Err, Start: t.Start, Call: t.Call, Process: t.Process})
	}
	return all, errors.Join(rt.Close(), ctx.Err())
}

// gvisorStateDirs returns the state folders of gVisor's sandboxes that run.
func gvisorStateDirs() []string { return gvisor.StateDirs() }

// gvisorSandboxes returns gVisor's running sandboxes of a state folder.
func gvisorSandboxes(dir string) (all []Sandbox, err error) {
	processes, err := gvisor.Inspect(dir)
	for _, p := range processes {
		all = append(all, Sandbox{ID: p.ID, Template: p.Template, Runtime: "gvisor", PID: p.PID, Since: p.Since,
			MemoryBytes: p.MemoryBytes})
	}
	return all, err
}

// gvisorLost returns gVisor's running sandboxes whose records are deleted, by state folder.
func gvisorLost() map[string][]Sandbox {
	found := map[string][]Sandbox{}
	for dir, all := range gvisor.Lost() {
		for _, p := range all {
			found[dir] = append(found[dir], Sandbox{ID: p.ID, Runtime: "gvisor", PID: p.PID, Since: p.Since,
				MemoryBytes: p.MemoryBytes, Lost: true})
		}
	}
	return found
}

// endGVisorLost ends those of one state folder, and returns how many there were.
func endGVisorLost(ctx context.Context, dir string) (int, error) { return gvisor.EndLost(ctx, dir) }
