// Package revision names the revisions of MCP, and in what they differ. A revision is a
// date, so later revisions compare greater as strings; "" means an unknown revision, and
// compares less than all others.
package revision

import "slices"

const (
	// Stateless is the first revision without sessions: each request has all that the
	// server needs to answer it.
	Stateless = "2026-07-28"
	// Stateful is the last revision whose sessions begin with initialize.
	Stateful = "2025-11-25"
	// firstWithoutBatches is the first revision in which messages must not come as an array.
	firstWithoutBatches = "2025-06-18"
)

// AllStateful are the revisions whose sessions begin with initialize, the latest first.
var AllStateful = []string{Stateful, firstWithoutBatches, "2025-03-26", "2024-11-05"}

// IsStateless reports whether a revision has no sessions.
func IsStateless(version string) bool { return version >= Stateless }

// IsStateful reports whether a revision is one whose sessions begin with initialize.
func IsStateful(version string) bool { return slices.Contains(AllStateful, version) }

// HasBatches reports whether messages of a revision may come as an array.
func HasBatches(version string) bool { return version < firstWithoutBatches }
