//go:build !agents

package program

import "embed"

// agents has what `make build` has put into the folder: nothing in a fresh clone.
//
//go:embed agents
var agents embed.FS
