//go:build agents

package program

import "embed"

// agents has the agents for all processors: without one of them, the program does not build.
//
//go:embed agents/linux-amd64.zst agents/linux-arm64.zst agents/SHA256SUMS
var agents embed.FS
