package volume

import "golang.org/x/sys/windows"

func readDiskSpace(path string) (s diskSpace) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil || windows.GetDiskFreeSpaceEx(name, &s.free, &s.total, nil) != nil {
		return diskSpace{}
	}
	return s
}
