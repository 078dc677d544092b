//go:build unix

package atomicfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Read returns the first limit bytes of a file that somebody else may have put there: it follows no link at the path's
// end, and reads nothing but regular files, so that it waits for nobody.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // reading a pipe waits for a writer that has it open, in spite of O_NONBLOCK
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
