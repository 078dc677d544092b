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

// output reads one output stream of an interpreter's process until the process ends, and writes
// it to the output of the cell that runs. It reads under a lock, so that everything that was
// written before the end of a cell is in that cell's output.
type output struct {
	f      *os.File
	raw    syscall.RawConn
	shared *direct.Shared // nil: the driver does not read the stream
	stream direct.Stream
	late   atomic.Bool // a retry is pending

	mu      sync.Mutex
	sink    io.Writer // of the cell that runs; nil between cells
	between []byte    // output from between cells, for the next cell
	buf     []byte
}

const (
	maxBetween = 64 << 10 // more output than that between cells is discarded
	// maxFlush bounds what is read at the end of a cell, since a program that the cell has
	// started may never stop writing.
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

// readAvailable reads all output that is available. It returns false, as RawConn.Read wants,
// when it has to wait for more.
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

// A read for each line of a program would slow the program down, so after a read the agent
// waits for gather before the next, unless the buffer was full.
const (
	gather     = 3 * time.Millisecond
	bufferSize = 32 << 10 // half of a pipe by default
)

// retryInterval is when a stream is read again that was the driver's to read: the kernel does not
// report output again that the driver has left there.
const lookAgain = 50 * time.Millisecond

func (o *output) again() {
	if o.late.Swap(true) {
		return
	}
	time.AfterFunc(lookAgain, func() {
		o.late.Store(false)
		_ = o.raw.Control(func(fd uintptr) { o.step(fd) }) // fails when the file is closed
	})
}

// next reads once, unless the stream is the driver's to read now. Allowed is false then.
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

// poll reads the output that is available now. It is called when the stream was the driver's to
// read until now, as the kernel does not report the output of that time again.
func (o *output) poll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.take()
}

// readAll reads all output that is available, up to maxFlush. The caller holds mu.
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

// readOnce reads once. The caller holds mu.
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

// attach makes w get the output, first that from between the cells.
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

// flush detaches several outputs. For most cells there is nothing left to read, which one poll
// of all the outputs shows.
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

// detach reads the output that was written until now, and detaches the cell. It returns the
// output from between cells.
func (o *output) detach() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.take()
	o.sink = nil
	return o.between
}

func (o *output) close() { o.f.Close() }
