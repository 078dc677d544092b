//go:build unix

package clientconfig

import (
	"os"
	"syscall"
)

// owner returns the ids of a file's user and group; -1: they are not known.
func owner(st os.FileInfo) (uid, gid int) {
	if stat, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid), int(stat.Gid)
	}
	return -1, -1
}
