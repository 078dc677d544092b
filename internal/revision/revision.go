// Package revision names the revisions of MCP, and says in what they differ. A revision
// is a date, so that later ones are greater; "" is one that is not known, and older than
// all.
package revision

import "slices"

const (
	// Stateless is the first revision without sessions: each request carries what the
	// server has to know.
	Stateless = "2026-07-28"
	// Stateful is the last revision whose sessions begin with initialize.
	Stateful = "2025-11-25"
	// batchless is the first revision without arrays of messages.
	batchless = "2025-06-18"
)

// AllStateful are the revisions whose sessions begin with initialize, the last first.
var AllStateful = []string{Stateful, batchless, "2025-03-26", "2024-11-05"}

// IsStateless reports whether a revision has no sessions.
func IsStateless(version string) bool { return version >= Stateless }

// IsStateful reports whether a revision is one whose sessions begin with initialize.
func IsStateful(version string) bool { return slices.Contains(AllStateful, version) }

// HasBatches reports whether messages of a revision may come as an array.
func HasBatches(version string) bool { return version < batchless }
