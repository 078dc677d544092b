package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/windows"
)

// Read returns the first limit bytes of a file that somebody else may have put there: it follows no link at the path's
// end, and reads nothing but files of a disk, so that it waits for nobody. The file can be replaced meanwhile.
func Read(path string, limit int64) ([]byte, error) {
	failed := func(err error) ([]byte, error) { return nil, &os.PathError{Op: "open", Path: path, Err: err} }
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return failed(err)
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return failed(err)
	}
	f := os.NewFile(uintptr(h), path)
	defer f.Close()
	kind, err := windows.GetFileType(h)
	if err != nil {
		return failed(err)
	}
	if kind != windows.FILE_TYPE_DISK {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return failed(err)
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		return failed(errors.New("it is a link"))
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
