package direct

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The shared words, in the order in which the driver has them too (drivers/python.py).
const (
	// state is which cell of the host's the driver has begun last, by the last 16 bits
	// of its id, in the upper half; and what the driver does with it, in the lower one:
	// idle, running or finishing. The driver writes it.
	state = iota
	// asked: the agent wants to supervise the cell that runs, and supervised: it
	// does. An agent that has asked and does not supervise is about to decide.
	asked
	supervised
	// readsOut, readsErr: the agent reads that stream now, between cells.
	readsOut
	readsErr
	// notify: the agent wants to be told of the end of each cell.
	notify
	// keepsOut, keepsErr: the agent keeps something of that stream for the next cell.
	keepsOut
	keepsErr
	// signals is how many SIGINT the agent has sent in this life of the process.
	signals
	words
)

// The states of a driver.
const (
	idle      = iota // the agent reads what comes
	running          // nobody reads, until the end or until the agent supervises
	finishing        // it is too late to supervise
)

// Stream is one of the two output streams of an interpreter.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Shared is the memory that the agent shares with a driver. Each of its methods that
// begin with a small letter is one step of the protocol: what it reads or writes, it
// reads or writes at once.
type Shared struct {
	file  *os.File
	words *[words]atomic.Uint32
}

const size = 4096

// New makes the memory.
func New() (*Shared, error) {
	fd, err := unix.MemfdCreate("interpreter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared memory: %w", err)
	}
	s := &Shared{file: os.NewFile(uintptr(fd), "interpreter")}
	if err := unix.Ftruncate(fd, size); err != nil {
		s.file.Close()
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		s.file.Close()
		return nil, err
	}
	s.words = (*[words]atomic.Uint32)(unsafe.Pointer(&mem[0]))
	// Readers of streams may look at it until they are gone.
	runtime.AddCleanup(s, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return s, nil
}

// Fd is the descriptor of the memory, for the driver.
func (s *Shared) Fd() uintptr { return s.file.Fd() }

// Reset is for a new life of the driver's process.
func (s *Shared) Reset() {
	for i := range s.words {
		if i != notify {
			s.words[i].Store(0)
		}
	}
}

// Supervise makes the agent supervise a cell, also one that the driver has not begun
// yet. It fails when the cell is over. The driver looks whether the agent has asked
// after it has written its state, and the agent at the state after it has asked, so at
// least one of them sees the other; the agent decides.
func (s *Shared) Supervise(id int64) bool {
	s.ask()
	if s.over(id) {
		s.withdraw()
		return false
	}
	s.adopt()
	return true
}

// Release is the end of Supervise.
func (s *Shared) Release() {
	s.dismiss()
	s.withdraw()
}

func (s *Shared) ask()      { s.words[asked].Store(1) }
func (s *Shared) withdraw() { s.words[asked].Store(0) }
func (s *Shared) adopt()    { s.words[supervised].Store(1) }
func (s *Shared) dismiss()  { s.words[supervised].Store(0) }

// over says whether it is too late to supervise a cell. Cells of one connection are
// numbered in the last 16 bits of their ids, from 1 on: the one after the last that began
// has not begun, and any other but the last is over, and whoever asks for it comes late.
func (s *Shared) over(id int64) bool {
	now := s.words[state].Load()
	switch last := uint16(now >> 16); uint16(id) {
	case last:
		return uint16(now) != running
	case last + 1:
		return false
	}
	return true
}

// Idle says that the driver runs no cell of the host's.
func (s *Shared) Idle() bool { return uint16(s.words[state].Load()) == idle }

// Keep says whether the agent keeps something of a stream for the next cell.
func (s *Shared) Keep(stream Stream, yes bool) { s.words[keepsOut+int(stream)].Store(bit(yes)) }

// Notify says whether the agent wants to be told of the end of each cell.
func (s *Shared) Notify(yes bool) { s.words[notify].Store(bit(yes)) }

// Signals says how many SIGINT the agent has sent in this life of the process. It is
// called before the signal is sent.
func (s *Shared) Signals(n int) { s.words[signals].Store(uint32(n)) }

func bit(yes bool) uint32 {
	if yes {
		return 1
	}
	return 0
}

// BeginRead says whether the agent may read a stream between cells; EndRead ends it.
func (s *Shared) BeginRead(stream Stream) bool {
	s.reads(stream)
	if s.Idle() {
		return true
	}
	s.EndRead(stream)
	return false
}

func (s *Shared) reads(stream Stream) { s.words[readsOut+int(stream)].Store(1) }

// EndRead is the end of BeginRead.
func (s *Shared) EndRead(stream Stream) { s.words[readsOut+int(stream)].Store(0) }
