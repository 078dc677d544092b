//go:build unix

package certificate

import (
	"os"
	"syscall"
)

// inode returns the number of a file in its file system; 0: it has none.
func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
