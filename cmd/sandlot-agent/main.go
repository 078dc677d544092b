// Sandlot-agent is the agent, the first process of every sandbox. With the argument connect it
// carries the agent's connections over its standard input and output, with trial it checks the kernel of its sandbox,
// with as it runs a program as another user, with gocache it is the build cache of Go, with init the first process of a
// virtual machine.
// By the name mcp it is the command of the tool tree (package mcpcommand).
// See package guest.
package main

import (
	"os"
	"path/filepath"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest"
	"sandlot/internal/guest/gocache"
	"sandlot/internal/guest/machine"
	"sandlot/internal/guest/mcpcommand"
	"sandlot/internal/guest/trial"
)

func main() {
	if filepath.Base(os.Args[0]) == mcpcommand.Name {
		os.Exit(mcpcommand.Main(os.Args[1:]))
	}
	if len(os.Args) > 1 && os.Args[1] == wire.ConnectCommand {
		os.Exit(guest.Connect(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == wire.TrialCommand {
		os.Exit(trial.Run(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == wire.AsCommand {
		os.Exit(guest.As(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == wire.GoCacheCommand {
		os.Exit(gocache.Run(os.Args[2:]))
	}
	if code, ok := machine.Run(os.Args[1:]); ok {
		os.Exit(code)
	}
	os.Exit(guest.Main())
}
