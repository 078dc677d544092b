//go:build unix

package workspace

import (
	"os"

	"golang.org/x/sys/unix"
)

// freeBytes returns how many bytes the disk of a folder has left.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// owner returns the user and the group to which a file belongs. It follows no link.
func owner(path string) (uid, gid int, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return int(st.Uid), int(st.Gid), nil
}
