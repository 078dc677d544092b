package direct

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The indexes of the shared words. The driver has the same order (drivers/python.py).
const (
	// state has in its upper half the number of the last cell that the driver has begun: the
	// last 16 bits of the cell's id. Its lower half is idle, running or finishing. The driver
	// writes this word, and the agent all others.
	state = iota
	// requested: the agent wants to supervise the cell that runs. supervised: it does. While
	// only requested is set, the agent is about to decide.
	requested
	supervised
	// readingStdout, readingStderr: the agent reads that stream now, between cells.
	readingStdout
	readingStderr
	// handover: the driver is to hand over the end of each cell.
	handover
	// bufferedStdout, bufferedStderr: the agent has output of that stream for the next cell.
	bufferedStdout
	bufferedStderr
	// signalsSent is how many SIGINT the agent has sent to this process.
	signalsSent
	wordCount
)

// The states of a driver.
const (
	idle      = iota // the agent reads the output
	running          // nobody reads the output, unless the agent supervises the cell
	finishing        // too late for the agent to supervise the cell
)

// Stream is an output stream of an interpreter.
type Stream int

// The output streams.
const (
	Stdout Stream = iota
	Stderr
)

// Shared is the memory that the agent shares with a driver. Each unexported method is one step
// of the protocol: it reads or writes one word, atomically.
type Shared struct {
	file  *os.File
	words *[wordCount]atomic.Uint32
}

// memorySize is in bytes: a page.
const memorySize = 4096

// New creates the memory.
func New() (*Shared, error) {
	fd, err := unix.MemfdCreate("interpreter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared memory: %w", err)
	}
	s := &Shared{file: os.NewFile(uintptr(fd), "interpreter")}
	if err := unix.Ftruncate(fd, memorySize); err != nil {
		s.file.Close()
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		s.file.Close()
		return nil, err
	}
	s.words = (*[wordCount]atomic.Uint32)(unsafe.Pointer(&mem[0]))
	// The goroutines that read the streams use the memory until they return, so it is unmapped
	// when nothing refers to s any more.
	runtime.AddCleanup(s, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return s, nil
}

// Fd returns the descriptor of the memory, for the driver.
func (s *Shared) Fd() uintptr { return s.file.Fd() }

// Reset prepares the memory for a new process.
func (s *Shared) Reset() {
	for i := range s.words {
		if i != handover {
			s.words[i].Store(0)
		}
	}
}

// Supervise makes the agent supervise a cell, which the driver need not have begun yet. It
// returns false when the cell is over. The driver reads requested after it has written its
// state, and the agent reads the state after it has written requested, so at least one of them
// sees what the other has written. The agent decides.
func (s *Shared) Supervise(id int64) bool {
	s.request()
	if s.isOver(id) {
		s.withdraw()
		return false
	}
	s.adopt()
	return true
}

// Release ends what Supervise began.
func (s *Shared) Release() {
	s.release()
	s.withdraw()
}

func (s *Shared) request()  { s.words[requested].Store(1) }
func (s *Shared) withdraw() { s.words[requested].Store(0) }
func (s *Shared) adopt()    { s.words[supervised].Store(1) }
func (s *Shared) release()  { s.words[supervised].Store(0) }

// isOver reports whether it is too late to supervise a cell. The cells of a connection are
// numbered, in the last 16 bits of their ids. The cell after the last one that began has not
// begun yet. Any other cell but the last one is over: the request to supervise it came late.
func (s *Shared) isOver(id int64) bool {
	current := s.words[state].Load()
	switch last := uint16(current >> 16); uint16(id) {
	case last:
		return uint16(current) != running
	case last + 1:
		return false
	}
	return true
}

// Idle reports whether the driver runs no cell of the host.
func (s *Shared) Idle() bool { return uint16(s.words[state].Load()) == idle }

// Begun reports whether the driver has begun a cell of the host.
func (s *Shared) Begun() bool { return s.words[state].Load()>>16 != 0 }

// SetBuffered sets whether the agent has output of a stream for the next cell.
func (s *Shared) SetBuffered(stream Stream, on bool) {
	s.words[bufferedStdout+int(stream)].Store(bit(on))
}

// SetHandover sets whether the driver is to hand over the end of each cell.
func (s *Shared) SetHandover(on bool) { s.words[handover].Store(bit(on)) }

// SetSignalsSent sets how many SIGINT the agent has sent to this process. It is called before the
// signal is sent.
func (s *Shared) SetSignalsSent(n int) { s.words[signalsSent].Store(uint32(n)) }

func bit(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// BeginRead reports whether the agent may read a stream between cells now. When it may, it
// calls EndRead after that.
func (s *Shared) BeginRead(stream Stream) bool {
	s.beginReading(stream)
	if s.Idle() {
		return true
	}
	s.EndRead(stream)
	return false
}

func (s *Shared) beginReading(stream Stream) { s.words[readingStdout+int(stream)].Store(1) }

// EndRead ends what BeginRead began.
func (s *Shared) EndRead(stream Stream) { s.words[readingStdout+int(stream)].Store(0) }
