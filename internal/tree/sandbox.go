package tree

import (
	"context"
	"errors"
	"time"
)

// SandboxLimits bound the number of files and the depth of a folder that one sandbox writes. A folder beyond them
// counts as over the disk limit. No absolute path is that deep: a path has at most 4096 characters.
var SandboxLimits = Limits{Entries: 1_500_000, Depth: 4096}

const (
	// SandboxTimeout is how long measuring such a folder may take: that many files take a few minutes on a slow
	// disk. A folder that takes longer counts as over the disk limit.
	SandboxTimeout = 10 * time.Minute
	// SandboxSlack is how many bytes such a folder may be over its limit, as files grow between two measurements.
	SandboxSlack = 64 << 20
)

// IsSandboxFault reports whether a sandbox can have caused an error of Measure by what it put into the folder. A
// folder that may not be read is not among these: it depends on the runtime whether a sandbox can make one.
func IsSandboxFault(err error) bool {
	for _, e := range []error{ErrEntries, ErrDepth, ErrMoved, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
