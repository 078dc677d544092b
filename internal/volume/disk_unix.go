//go:build unix

package volume

import "golang.org/x/sys/unix"

func readDiskSpace(path string) diskSpace {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return diskSpace{}
	}
	return diskSpace{st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize)}
}
