package process

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// gatherer decides when output gathers. When a program writes many short pieces without a pause, such as lines, some
// gather before the next read: in gVisor a write that wakes a reader takes several times as long as one that does not.
type gatherer struct {
	short int // how many reads in a row were short and came at once
}

const (
	shortRead   = 512                  // bytes
	atOnce      = 5 * time.Millisecond // a program that has written nothing for so long has paused
	manyShort   = 16
	gatherDelay = 3 * time.Millisecond
)

// gathers reports whether the next read is to wait for gatherDelay.
func (g *gatherer) gathers() bool { return g.short >= manyShort }

// note counts a read of n bytes into a buffer of that size. Took is how long it has waited for them.
func (g *gatherer) note(n, size int, took time.Duration) {
	switch {
	case took >= atOnce || n == size: // the program has paused, or writes faster than pieces gather
		g.short = 0
	case n < shortRead:
		g.short++
	case !g.gathers():
		g.short = 0
	}
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

// SetReadDeadline ends the reading as soon as what is in the pipe is read.
func (p *polledPipe) SetReadDeadline(time.Time) error {
	_, err := unix.Write(p.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return os.NewSyscallError("write", err)
}

// Close closes the read end. It is called once, after the last read.
func (p *polledPipe) Close() error { return errors.Join(unix.Close(p.fd), unix.Close(p.stop)) }
