// Sandlot-agent is the agent, the first process of every sandbox. With the argument connect it
// carries the agent's connections over its standard input and output. See package guest.
package main

import (
	"os"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == wire.ConnectCommand {
		os.Exit(guest.Connect(os.Args[2:]))
	}
	os.Exit(guest.Main())
}
