package process

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// late reads what is in a pipe when the time for reading is over: on a busy machine a program may have ended before
// anything that it has written was read.
type late struct {
	bytes int // that were read; maxLate: the pipe was empty then
}

// maxLate is how much is read late: as much as is in a pipe at most, unless a program has made it larger.
const maxLate = 64 << 10

// read reads without waiting. It returns os.ErrDeadlineExceeded when the pipe is empty, and from then on.
func (l *late) read(fd int, b []byte) (int, error) {
	b = b[:min(len(b), maxLate-l.bytes)]
	for len(b) > 0 {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // a terminal may be one whose reads wait
		n, err := unix.Poll(polled, 0)
		if err == nil && n > 0 {
			n, err = unix.Read(fd, b)
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		l.bytes += n
		return n, nil
	}
	l.bytes = maxLate
	return 0, os.ErrDeadlineExceeded
}

// lateFile is the read end of a pipe, or a terminal, that Go's poller has.
type lateFile struct {
	*os.File
	late late
}

// newLatePipe makes a pipe, whose write end is for a program.
func newLatePipe() (readEnd, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &lateFile{File: r}, w, nil
}

// Read implements io.Reader. After SetReadDeadline it returns what is in the pipe, and then os.ErrDeadlineExceeded.
func (f *lateFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	raw, rawErr := f.SyscallConn()
	if rawErr != nil {
		return n, err
	}
	if rawErr = raw.Control(func(fd uintptr) { n, err = f.late.read(int(fd), b) }); rawErr != nil {
		return 0, rawErr
	}
	return n, err
}
