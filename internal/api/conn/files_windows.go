package conn

import "math"

// maxFiles returns how many files this process may have open: Windows has no limit that a server reaches.
func maxFiles() uint64 { return math.MaxUint64 }
