//go:build unix

package stack

import "golang.org/x/sys/unix"

// free returns how many bytes the disk of a folder has left.
func free(dir string) (n uint64, known bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return uint64(st.Bavail) * uint64(st.Bsize), true
}
