package interp

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/guest/interp/direct"
)

// output reads one output stream of an interpreter for as long as it lives, and
// gives each byte to the call that runs. All reading is done under one lock, so
// that what was written before a call's end is in that call's output.
type output struct {
	f      *os.File
	raw    syscall.RawConn
	shared *direct.Shared // nil: nobody else reads
	stream direct.Stream
	late   atomic.Bool // it will look again

	mu      sync.Mutex
	sink    io.Writer // nil between calls
	between []byte    // what came between calls
	buf     []byte
}

const (
	maxBetween = 64 << 10
	// maxFlush bounds what is taken at the end of a call from a program that
	// never stops writing.
	maxFlush = 4 << 20
)

func newOutput(f *os.File, shared *direct.Shared, stream direct.Stream) *output {
	o := &output{f: f, shared: shared, stream: stream, buf: make([]byte, bufferSize)}
	// Fd would make the file blocking.
	raw, err := f.SyscallConn()
	if err != nil {
		return o
	}
	o.raw = raw
	return o
}

// read reads until the output is closed.
func (o *output) read() {
	if o.raw != nil {
		o.raw.Read(o.step)
	}
}

// step reads all that is there; false means: wait for more.
func (o *output) step(fd uintptr) bool {
	for {
		n, err, mine := o.next(fd)
		switch {
		case !mine:
			o.again()
			return false
		case errors.Is(err, unix.EAGAIN):
			return false
		case n <= 0:
			return true
		case n < bufferSize:
			time.Sleep(gather)
		}
	}
}

// A program that writes line by line is not interrupted for each line: the output of
// gather is read together, unless it fills the buffer.
const (
	gather     = 3 * time.Millisecond
	bufferSize = 32 << 10 // half of a pipe by default
)

// lookAgain is when a stream that was the driver's to read is looked at again:
// what the driver left there wakes nobody.
const lookAgain = 50 * time.Millisecond

func (o *output) again() {
	if o.late.Swap(true) {
		return
	}
	time.AfterFunc(lookAgain, func() {
		o.late.Store(false)
		_ = o.raw.Control(func(fd uintptr) { o.step(fd) }) // but when it is closed
	})
}

// next reads once, unless the driver reads the output itself.
func (o *output) next(fd uintptr) (n int, err error, mine bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sink == nil && o.shared != nil {
		if !o.shared.BeginRead(o.stream) {
			return 0, nil, false
		}
		defer o.shared.EndRead(o.stream)
	}
	n, err = o.once(fd)
	return n, err, true
}

// poll reads the output that is there now: output that came while it was the driver's
// to read has woken nobody.
func (o *output) poll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.take()
}

// take reads all that is there. The lock is held.
func (o *output) take() {
	o.raw.Control(func(fd uintptr) {
		for taken := 0; taken < maxFlush; {
			n, err := o.once(fd)
			if n <= 0 || err != nil {
				return
			}
			taken += n
		}
	})
}

// once reads once. The lock is held.
func (o *output) once(fd uintptr) (int, error) {
	n, err := unix.Read(int(fd), o.buf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(int(fd), o.buf)
	}
	if n > 0 {
		if o.sink != nil {
			o.sink.Write(o.buf[:n])
		} else if room := maxBetween - len(o.between); room > 0 {
			o.between = append(o.between, o.buf[:min(n, room)]...)
			if o.shared != nil {
				o.shared.Keep(o.stream, true)
			}
		}
	}
	return n, err
}

// attach gives the output to a call, first what came since the last one.
func (o *output) attach(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.between) > 0 {
		w.Write(o.between)
		o.between = nil
		if o.shared != nil {
			o.shared.Keep(o.stream, false)
		}
	}
	o.sink = w
}

// flush detaches several outputs at once. Most calls have written nothing more,
// which one look at all of them tells.
func flush(outputs ...*output) {
	ready := make([]unix.PollFd, len(outputs))
	for i, o := range outputs {
		ready[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
		o.raw.Control(func(fd uintptr) { ready[i].Fd = int32(fd) })
	}
	_, err := unix.Poll(ready, 0)
	for i, o := range outputs {
		if err != nil || ready[i].Revents != 0 {
			o.detach()
			continue
		}
		o.mu.Lock() // the reader may be in the middle of a read
		o.sink = nil
		o.mu.Unlock()
	}
}

// detach takes what was written until now, and keeps what comes after. It
// returns what was kept.
func (o *output) detach() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.take()
	o.sink = nil
	return o.between
}

func (o *output) close() { o.f.Close() }
