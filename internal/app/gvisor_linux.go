//go:build !mac

package app

import (
	"context"
	"log/slog"

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
		Bare:     c.Runtime.Capabilities == "none",
		Rootless: rootless, Platform: c.Runtime.Platform})
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

// imageKeys returns the keys of gVisor's sealed frozen images of a state folder.
func imageKeys(dir string) (all []imageKey, err error) {
	keys, err := gvisor.ImageKeys(dir)
	for _, k := range keys {
		all = append(all, imageKey{k.Image, k.Bundle, k.Sealed})
	}
	return all, err
}

// writeImageKey replaces the key of an image, or, without one, removes the image.
func writeImageKey(dir string, k imageKey) error {
	return gvisor.WriteImageKey(dir, gvisor.ImageKey{Image: k.image, Bundle: k.context, Sealed: k.sealed})
}
