package process

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pair reads the two output pipes of a command in one goroutine. So what the command writes to both arrives in the order
// of the writes, as far as two pipes have one: of what has gathered in both at once, the kernel tells which pipe got
// something first.
type pair struct {
	pipes [2]*polledPipe
	sinks [2]io.Writer
	poll  int          // of epoll
	last  [2]time.Time // when the pipes were read
	gatherer
}

// newPair makes two pipes whose output goes to sinks, and returns the write ends, for a program.
func newPair(sinks [2]io.Writer) (p *pair, ends [2]*os.File, err error) {
	p = &pair{sinks: sinks, poll: -1}
	for i := range p.pipes {
		if p.pipes[i], ends[i], err = newPolledPipe(); err != nil {
			break
		}
	}
	if err == nil {
		p.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	for i, r := range p.pipes {
		if err == nil {
			err = errors.Join(p.watch(r.fd, i, unix.EPOLLIN|unix.EPOLLET), p.watch(r.stop, stopped, unix.EPOLLIN))
		}
	}
	if err == nil {
		return p, ends, nil
	}
	for i, r := range p.pipes {
		if r != nil {
			err = errors.Join(err, r.Close(), ends[i].Close())
		}
	}
	if p.poll >= 0 {
		unix.Close(p.poll)
	}
	return nil, ends, err
}

// stopped is in place of a pipe's number when the reading is to end.
const stopped = 2

// watch makes epoll tell of a descriptor. A pipe is told of when something comes (EPOLLET), in the order of what comes.
func (p *pair) watch(fd, number int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.poll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: events, Fd: int32(number)}))
}

// copy copies the output until both pipes have ended, or SetReadDeadline was called for one of them and all is read that
// is there.
func (p *pair) copy() {
	defer unix.Close(p.poll)
	var events [4]unix.EpollEvent
	buf := make([]byte, 32<<10)
	for open := 2; open > 0; {
		if p.gathers() && !p.mixes() {
			time.Sleep(gatherDelay)
		}
		began := time.Now()
		n, err := unix.EpollWait(p.poll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] { // the first one was ready first
			if e.Fd == stopped {
				p.drain(buf)
				return
			}
			if p.read(int(e.Fd), buf, began, e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0) {
				_ = unix.EpollCtl(p.poll, unix.EPOLL_CTL_DEL, p.pipes[e.Fd].fd, nil)
				open--
			}
		}
	}
}

// read reads what a pipe has, and reports whether it has ended. HungUp means that nobody can write to it any more; else
// a read that does not fill the buffer has emptied it, and the kernel tells when there is more.
func (p *pair) read(i int, buf []byte, began time.Time, hungUp bool) (ended bool) {
	for {
		k, err := unix.Read(p.pipes[i].fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil || k <= 0:
			return true
		}
		p.last[i] = time.Now()
		p.note(k, len(buf), p.last[i].Sub(began))
		_, _ = p.sinks[i].Write(buf[:k]) // what does not take it does not stop the command
		if k < len(buf) && !hungUp {
			return false
		}
	}
}

// mixed is for how long the order of both pipes counts for more than the time that a write takes, after both were read.
const mixed = 100 * time.Millisecond

// mixes reports whether the command writes to both pipes.
func (p *pair) mixes() bool { return time.Since(p.last[0]) < mixed && time.Since(p.last[1]) < mixed }

// drain reads what is in both pipes.
func (p *pair) drain(buf []byte) {
	for i, r := range p.pipes {
		for {
			n, err := r.late.read(r.fd, buf)
			if err != nil {
				break
			}
			_, _ = p.sinks[i].Write(buf[:n])
		}
	}
}
