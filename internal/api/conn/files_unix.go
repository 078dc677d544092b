//go:build unix

package conn

import (
	"math"
	"syscall"
)

// maxFiles returns how many files this process may have open.
func maxFiles() uint64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return math.MaxUint64
	}
	return uint64(files.Cur)
}
