// Sandlot-agent is the agent, the first process of every sandbox. See package guest.
package main

import (
	"os"

	"sandlot/internal/guest"
)

func main() { os.Exit(guest.Main()) }
