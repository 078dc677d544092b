package workspace

import (
	"errors"
	"math"

	"golang.org/x/sys/windows"
)

// freeBytes returns how many bytes the disk of a folder has left.
func freeBytes(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free, total uint64
	err = windows.GetDiskFreeSpaceEx(name, &free, &total, nil)
	return int64(min(free, math.MaxInt64)), err
}

// owner returns an error: files of Windows belong to no user of a sandbox.
func owner(path string) (uid, gid int, err error) {
	return 0, 0, errors.New("on Windows, a folder of the server cannot belong to a user of a sandbox; keep the sandboxes' " +
		"files with the daemon (docker.files: separate): " + path)
}
