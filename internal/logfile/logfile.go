// Package logfile writes the server's log to a file of bounded size, on systems that have no log for it.
package logfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
)

// maxSize is the size at which a file becomes the earlier one, in bytes.
const maxSize = 16 << 20

// File is a log. When it is full it is renamed to its name with ".1", and the file of that name is lost. It also gets
// what the runtime of Go prints when the process crashes.
type File struct {
	path  string
	limit int64

	mu   sync.Mutex
	f    *os.File // nil: closed, or no file could be opened
	size int64
}

// Open opens a log, or makes it, with the folders above it.
func Open(path string) (*File, error) { return open(path, maxSize) }

func open(path string, limit int64) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f := &File{path: path, limit: limit}
	return f, f.begin()
}

// begin opens the file.
func (f *File) begin() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := file.Stat()
	if err == nil {
		err = debug.SetCrashOutput(file, debug.CrashOptions{})
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.f, f.size = file, st.Size()
	return nil
}

// Write adds a line.
func (f *File) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f != nil && f.size > 0 && f.size+int64(len(line)) > f.limit {
		// Windows renames no open file.
		if err := f.close(); err != nil {
			return 0, err
		}
		if err := errors.Join(os.Rename(f.path, f.path+".1"), f.begin()); f.f == nil {
			return 0, err
		} // a file that cannot be renamed grows on
	}
	if f.f == nil {
		return 0, os.ErrClosed
	}
	n, err := f.f.Write(line)
	f.size += int64(n)
	return n, err
}

// close closes the file.
func (f *File) close() error {
	err := errors.Join(debug.SetCrashOutput(nil, debug.CrashOptions{}), f.f.Close())
	f.f = nil
	return err
}

// Close ends the log. It can be called twice.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	return f.close()
}
