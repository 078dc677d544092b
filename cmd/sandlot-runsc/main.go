// Sandlot-runsc is gVisor's runsc at the version of go.mod. It is a program of
// its own because gVisor executes itself again two or three times for each
// boot, and everything linked into it is paid for each time.
package main

import (
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"
)

func main() {
	useFilters(os.Args)
	maincli.Main()
}
