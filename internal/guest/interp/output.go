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
)

// tap reads one output stream of an interpreter for as long as it lives, and
// gives each byte to the call that runs. All reading is done under one lock, so
// that what was written before a call's end is in that call's output.
type tap struct {
	f    *os.File
	raw  syscall.RawConn
	page *page       // nil: nobody else reads
	word int         // of the page, for this stream
	late atomic.Bool // it will look again

	mu      sync.Mutex
	sink    io.Writer // nil between calls
	between []byte    // what came between calls
	buf     []byte
}

const (
	maxBetween = 64 << 10
	// maxDrain bounds what is taken at the end of a call from a program that
	// never stops writing.
	maxDrain = 4 << 20
)

func newTap(f *os.File, shared *page, word int) *tap {
	t := &tap{f: f, page: shared, word: word, buf: make([]byte, whole)}
	// Fd would make the file blocking.
	raw, err := f.SyscallConn()
	if err != nil {
		return t
	}
	t.raw = raw
	go raw.Read(t.step)
	return t
}

// step takes what is there; false means: wait for more.
func (t *tap) step(fd uintptr) bool {
	for {
		n, err, mine := t.turn(fd)
		switch {
		case !mine:
			t.again()
			return false
		case errors.Is(err, unix.EAGAIN):
			return false
		case n <= 0:
			return true
		case n < whole:
			time.Sleep(gather)
		}
	}
}

// A program that writes line by line is not interrupted for each: what comes
// within gather is read together. Who has filled half of the pipe does not wait.
const (
	gather = 3 * time.Millisecond
	whole  = 32 << 10
)

// lookAgain is when a stream that was the driver's to read is looked at again:
// what the driver left there wakes nobody.
const lookAgain = 50 * time.Millisecond

func (t *tap) again() {
	if t.late.Swap(true) {
		return
	}
	time.AfterFunc(lookAgain, func() {
		t.late.Store(false)
		_ = t.raw.Control(func(fd uintptr) { t.step(fd) }) // but when it is closed
	})
}

// turn reads one piece, unless the driver does that itself.
func (t *tap) turn(fd uintptr) (n int, err error, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sink == nil && t.page != nil {
		if !t.page.enter(t.word) {
			return 0, nil, false
		}
		defer t.page.leave(t.word)
	}
	n, err = t.once(fd)
	return n, err, true
}

// kick takes what is there now: what came while the driver was to read it woke
// nobody.
func (t *tap) kick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.take()
}

// take reads what is there. The lock is held.
func (t *tap) take() {
	t.raw.Control(func(fd uintptr) {
		for taken := 0; taken < maxDrain; {
			n, err := t.once(fd)
			if n <= 0 || err != nil {
				return
			}
			taken += n
		}
	})
}

// once reads one piece. The lock is held.
func (t *tap) once(fd uintptr) (int, error) {
	n, err := unix.Read(int(fd), t.buf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(int(fd), t.buf)
	}
	if n > 0 {
		if t.sink != nil {
			t.sink.Write(t.buf[:n])
		} else if room := maxBetween - len(t.between); room > 0 {
			t.between = append(t.between, t.buf[:min(n, room)]...)
			if t.page != nil {
				t.page.keep(t.word, true)
			}
		}
	}
	return n, err
}

// attach gives the output to a call, first what came since the last one.
func (t *tap) attach(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.between) > 0 {
		w.Write(t.between)
		t.between = nil
		if t.page != nil {
			t.page.keep(t.word, false)
		}
	}
	t.sink = w
}

// drain detaches several taps at once. Most calls have written nothing more,
// which one look at all of them tells.
func drain(taps ...*tap) {
	ready := make([]unix.PollFd, len(taps))
	for i, t := range taps {
		ready[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
		t.raw.Control(func(fd uintptr) { ready[i].Fd = int32(fd) })
	}
	_, err := unix.Poll(ready, 0)
	for i, t := range taps {
		if err != nil || ready[i].Revents != 0 {
			t.detach()
			continue
		}
		t.mu.Lock() // the reader may be in the middle of a piece
		t.sink = nil
		t.mu.Unlock()
	}
}

// detach takes what was written until now, and keeps what comes after. It
// returns what was kept.
func (t *tap) detach() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.take()
	t.sink = nil
	return t.between
}

func (t *tap) close() { t.f.Close() }
