//go:build !windows

package image

import (
	"os"
	"syscall"
)

// device returns the number of the file system that a path is on; 0: there is nothing at the path.
func device(path string) uint64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return uint64(st.Sys().(*syscall.Stat_t).Dev)
}
