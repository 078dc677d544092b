package gvisor

import (
	"io/fs"
	"syscall"
)

// blocks is what a file takes on the disk, in bytes.
func blocks(i fs.FileInfo) int64 {
	if st, ok := i.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return i.Size()
}
