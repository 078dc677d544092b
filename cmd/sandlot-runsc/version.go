package main

import (
	"runtime/debug"
	_ "unsafe" // for the link
)

//go:linkname gvisorVersion gvisor.dev/gvisor/runsc/version.version
var gvisorVersion string

// gvisorModule is the module whose version go.mod has.
const gvisorModule = "gvisor.dev/gvisor"

// setVersion gives gVisor its own version, which its Go module lacks. A checkpoint contains it, and only the same
// version restores the checkpoint. It is read from this program, so that every way to build it sets it.
func setVersion() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, m := range info.Deps {
		if m.Path != gvisorModule {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		gvisorVersion = m.Version
	}
}
