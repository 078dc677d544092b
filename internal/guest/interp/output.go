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
	file     *os.File
	raw      syscall.RawConn
	shared   *direct.Shared // nil: the driver does not read the stream
	stream   direct.Stream
	retrying atomic.Bool // a retry is pending

	mu           sync.Mutex
	sink         *clearing // of the cell that runs; nil between cells
	betweenCells []byte    // output from between cells, for the next cell
	buf          []byte
}

const (
	maxBetweenCells = 64 << 10 // more output than that between cells is discarded
	// maxFlush bounds what is read at the end of a cell, since a program that the cell has
	// started may never stop writing.
	maxFlush = 4 << 20
)

func newOutput(f *os.File, shared *direct.Shared, stream direct.Stream) *output {
	o := &output{file: f, shared: shared, stream: stream, buf: make([]byte, bufferSize)}
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
		o.raw.Read(o.readAvailable)
	}
}

// readAvailable reads all output that is available. It returns false, as RawConn.Read wants,
// when it has to wait for more.
func (o *output) readAvailable(fd uintptr) bool {
	for {
		n, err, allowed := o.next(fd)
		switch {
		case !allowed:
			o.retryLater()
			return false
		case errors.Is(err, unix.EAGAIN):
			return false
		case n <= 0:
			return true
		case n < bufferSize:
			time.Sleep(gatherInterval)
		}
	}
}

// A read for each line of a program would slow the program down, so after a read the agent
// waits for gather before the next, unless the buffer was full.
const (
	gatherInterval = 3 * time.Millisecond
	bufferSize     = 32 << 10 // half of a pipe by default
)

// retryInterval is when a stream is read again that was the driver's to read: the kernel does not
// report output again that the driver has left there.
const retryInterval = 50 * time.Millisecond

func (o *output) retryLater() {
	if o.retrying.Swap(true) {
		return
	}
	time.AfterFunc(retryInterval, func() {
		o.retrying.Store(false)
		_ = o.raw.Control(func(fd uintptr) { o.readAvailable(fd) }) // fails when the file is closed
	})
}

// next reads once, unless the stream is the driver's to read now. Allowed is false then.
func (o *output) next(fd uintptr) (n int, err error, allowed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sink == nil && o.shared != nil {
		if !o.shared.BeginRead(o.stream) {
			return 0, nil, false
		}
		defer o.shared.EndRead(o.stream)
	}
	n, err = o.readOnce(fd)
	return n, err, true
}

// poll reads the output that is available now. It is called when the stream was the driver's to
// read until now, as the kernel does not report the output of that time again.
func (o *output) poll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readAll()
}

// readAll reads all output that is available, up to maxFlush. The caller holds mu.
func (o *output) readAll() {
	o.raw.Control(func(fd uintptr) {
		for total := 0; total < maxFlush; {
			n, err := o.readOnce(fd)
			if n <= 0 || err != nil {
				return
			}
			total += n
		}
	})
}

// readOnce reads once. The caller holds mu.
func (o *output) readOnce(fd uintptr) (int, error) {
	n, err := unix.Read(int(fd), o.buf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(int(fd), o.buf)
	}
	if n > 0 {
		if o.sink != nil {
			o.sink.Write(o.buf[:n])
		} else if room := maxBetweenCells - len(o.betweenCells); room > 0 {
			o.betweenCells = append(o.betweenCells, o.buf[:min(n, room)]...)
			if o.shared != nil {
				o.shared.SetBuffered(o.stream, true)
			}
		}
	}
	return n, err
}

// attach makes w get the output, first that from between the cells.
func (o *output) attach(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sink = &clearing{to: w}
	if len(o.betweenCells) > 0 {
		o.sink.Write(o.betweenCells)
		o.betweenCells = nil
		if o.shared != nil {
			o.shared.SetBuffered(o.stream, false)
		}
	}
}

// release takes the cell away. The caller holds mu.
func (o *output) release() {
	if o.sink != nil {
		o.sink.end()
	}
	o.sink = nil
}

// detachAll detaches several outputs. For most cells there is nothing left to read, which one poll
// of all the outputs shows.
func detachAll(outputs ...*output) {
	polled := make([]unix.PollFd, len(outputs))
	for i, o := range outputs {
		polled[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
		o.raw.Control(func(fd uintptr) { polled[i].Fd = int32(fd) })
	}
	_, err := unix.Poll(polled, 0)
	for i, o := range outputs {
		if err != nil || polled[i].Revents != 0 {
			o.detach()
			continue
		}
		o.mu.Lock() // the reader may be in the middle of a read
		o.release()
		o.mu.Unlock()
	}
}

// detach reads the output that was written until now, and detaches the cell. It returns the
// output from between cells.
func (o *output) detach() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readAll()
	o.release()
	return o.betweenCells
}

func (o *output) close() { o.file.Close() }
