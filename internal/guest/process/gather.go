package process

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// gatherPipe is the read end of a pipe whose short pieces gather.
type gatherPipe struct {
	*polledPipe
	gather gatherReader
}

// newGatherPipe makes a pipe, whose write end is for a program.
func newGatherPipe() (readEnd, *os.File, error) {
	r, w, err := newPolledPipe()
	if err != nil {
		return nil, nil, err
	}
	return &gatherPipe{r, gatherReader{Reader: r}}, w, nil
}

// Read implements io.Reader.
func (g *gatherPipe) Read(b []byte) (int, error) { return g.gather.Read(b) }

// gatherReader reads a pipe. When a program writes many short pieces without a pause, such as lines, it lets some
// gather before it reads again: in gVisor a write that wakes a reader takes several times as long as one that does not.
type gatherReader struct {
	io.Reader
	short int // how many reads in a row were short and came at once
}

const (
	shortRead   = 512                  // bytes
	atOnce      = 5 * time.Millisecond // a program that has written nothing for so long has paused
	manyShort   = 16
	gatherDelay = 3 * time.Millisecond
)

// Read implements io.Reader.
func (g *gatherReader) Read(b []byte) (int, error) {
	gathers := g.short >= manyShort
	if gathers {
		time.Sleep(gatherDelay)
	}
	began := time.Now()
	n, err := g.Reader.Read(b)
	switch {
	case time.Since(began) >= atOnce || n == len(b): // it has paused, or writes faster than pieces gather
		g.short = 0
	case n < shortRead:
		g.short++
	case !gathers:
		g.short = 0
	}
	return n, err
}

// polledPipe is the read end of a pipe that Go's poller does not have: each piece would wake that, also while nobody
// reads. A read takes a thread meanwhile.
type polledPipe struct {
	fd   int // does not block
	stop int // an eventfd, which SetReadDeadline makes readable
	late late
}

func newPolledPipe() (*polledPipe, *os.File, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, nil, os.NewSyscallError("eventfd", err)
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		unix.Close(stop)
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	p, w := &polledPipe{fd: ends[0], stop: stop}, os.NewFile(uintptr(ends[1]), "|1")
	if err := unix.SetNonblock(p.fd, true); err != nil {
		return nil, nil, errors.Join(err, p.Close(), w.Close())
	}
	return p, w, nil
}

// Read implements io.Reader. After SetReadDeadline it returns what is in the pipe, and then os.ErrDeadlineExceeded.
func (p *polledPipe) Read(b []byte) (int, error) {
	polled := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(p.stop), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(polled, -1)
		if err == nil && polled[1].Revents != 0 {
			return p.late.read(p.fd, b)
		}
		if err == nil {
			n, err = unix.Read(p.fd, b)
		}
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// SetReadDeadline ends the read in progress and all later ones, as soon as they have what is in the pipe.
func (p *polledPipe) SetReadDeadline(time.Time) error {
	_, err := unix.Write(p.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return os.NewSyscallError("write", err)
}

// Close closes the read end. It is called once, when nobody reads.
func (p *polledPipe) Close() error { return errors.Join(unix.Close(p.fd), unix.Close(p.stop)) }
