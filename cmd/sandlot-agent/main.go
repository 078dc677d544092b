// Sandlot-agent is the first process of every sandbox.
package main

import (
	"os"

	"sandlot/internal/guest"
)

func main() { os.Exit(guest.Main()) }
