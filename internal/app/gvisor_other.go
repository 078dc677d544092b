//go:build !linux || mac

package app

import (
	"context"
	"log/slog"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
)

func newGVisor(*config.Config, *slog.Logger, bool) (sandbox.Runtime, error) {
	return nil, fault.New(fault.Configuration, "runtime: gvisor needs Linux; set runtime: docker, and start Docker")
}

// There are no sandboxes of gVisor on this system.

func gvisorStateDirs() []string { return nil }

func gvisorSandboxes(string) ([]Sandbox, error) { return nil, nil }

func gvisorLost() map[string][]Sandbox { return map[string][]Sandbox{} }

func endGVisorLost(context.Context, string) (int, error) { return 0, nil }

func imageKeys(string) ([]imageKey, error) { return nil, nil }

func writeImageKey(string, imageKey) error { return nil }
