package app

import (
	"log/slog"
	"os"
	"path/filepath"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/runtime/gvisor"
	"sandlot/internal/sandbox"
)

// runtimes are the constructors of the runtimes, by the setting runtime. A new runtime is added here.
var runtimes = map[string]func(*config.Config, *slog.Logger) (sandbox.Runtime, error){
	"gvisor": func(c *config.Config, log *slog.Logger) (sandbox.Runtime, error) {
		runsc, err := findProgram(c.Runtime.RunscPath, "sandlot-runsc", "runsc")
		if err != nil {
			return nil, err
		}
		agent, err := findProgram(c.Runtime.AgentPath, "sandlot-agent", "agent")
		if err != nil {
			return nil, err
		}
		return gvisor.New(gvisor.Config{Runsc: runsc, Agent: agent, StateDir: c.Server.StateDir, Log: log,
			HostNetwork: egress.Mode(c.Network.Mode) == egress.Open, Preboot: c.Runtime.Snapshots})
	},
}

// Runtime creates the runtime of the settings.
func Runtime(c *config.Config, log *slog.Logger) (sandbox.Runtime, error) {
	return runtimes[c.Runtime.Name](c, log)
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
