package filelock

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// Open opens a file that is to be locked, to read and write, and makes it where it is missing. It follows no link at
// the path's end. The open file can be renamed and removed, which os.OpenFile does not allow. Its access rights are
// those of its folder.
func Open(path string, _ os.FileMode) (*os.File, error) {
	failed := func(err error) (*os.File, error) { return nil, &os.PathError{Op: "open", Path: path, Err: err} }
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return failed(err)
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_ALWAYS,
		windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return failed(err)
	}
	var info windows.ByHandleFileInformation
	if err = windows.GetFileInformationByHandle(h, &info); err == nil &&
		info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		err = errors.New("it is a link")
	}
	if err != nil {
		windows.CloseHandle(h)
		return failed(err)
	}
	return os.NewFile(uintptr(h), path), nil
}

// Try locks a file, alone or with others that do not ask for it alone. It does not wait: false means that another
// process, or another open file of this one, has it. Locks of Windows are of bytes, which others then cannot read: the
// locked byte is one that no file has.
func Try(f *os.File, alone bool) (bool, error) {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if alone {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	at := windows.Overlapped{Offset: math.MaxUint32, OffsetHigh: math.MaxInt32}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}
