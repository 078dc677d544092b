package main

import "time"

// The folders of what is made, in the folder of the repository.
const (
	dist = "dist"
	out  = "dist/release"
)

// tools are the programs that make a release with this one.
var tools = []string{"goreleaser", "cyclonedx-gomod"}

// maker makes a release in the current folder.
type maker struct {
	version string // without v
	commit  string
	date    time.Time // of the commit
	tools   string    // absolute
	targets string
	builder string
}
