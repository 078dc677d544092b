// Sandlot-runsc is gVisor's runsc, at the version in go.mod. It is not part of the program
// sandlot because runsc executes itself two or three times for each boot, and a larger
// program would take longer to start each time.
package main

import (
	"os"
	"slices"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"sandlot/internal/runtime/graft"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "seal" {
		os.Exit(seal(os.Args[2:]))
	}
	useFilters(os.Args)
	switch {
	case slices.Contains(os.Args, "boot"):
		b := readBundle(os.Args)
		os.Args = b.withMachineFlags(os.Args)
		must(b.blockSpecialModes())
	case slices.Contains(os.Args, "gofer"):
		registerGofer()
		b := readBundle(os.Args)
		if !startedAgain(os.Args) {
			must(graft.Mount(b.Root.Path, graft.Of(b.Annotations)))
		}
		must(b.blockSpecialModes())
	}
	setVersion()
	subcommands.Register(new(wake), "")
	maincli.Main()
}
