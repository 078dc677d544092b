package interp

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// page is memory that the agent shares with a driver to which the host gives
// pieces of code itself. In it both agree, without a system call, on who reads
// what a piece has written and who answers for it. What stands in it is as
// little to be believed as everything else that a driver says: a wrong word
// misleads the owner of the sandbox alone.
type page struct {
	file  *os.File
	words *[pageWords]atomic.Uint32
}

// The page's words. The driver writes pageState and pageBegun, the agent the others.
const (
	// pageState is what the driver does with a piece of the host's.
	pageState = iota
	// pageAttend: the agent wants to take charge of the piece that runs, and
	// pageTaken: it has. One that wants without having is about to decide.
	pageAttend
	pageTaken
	// pageTapOut, pageTapErr: the agent reads that stream now.
	pageTapOut
	pageTapErr
	// pageCall: the agent wants to be called at the end of each piece.
	pageCall
	// pageBegun is the end of the id of the last piece that the driver began. It
	// is the driver's, too.
	pageBegun
	// pageKeptOut, pageKeptErr: the agent keeps something of that stream for the
	// next piece.
	pageKeptOut
	pageKeptErr
	// pageSignals is how many SIGINT the agent has sent in this life of the process.
	pageSignals
	pageWords
)

// States of a driver.
const (
	stateIdle      = iota // the agent reads what comes
	stateRunning          // nobody reads, until the end or until the agent attends
	stateFinishing        // it is too late to attend
)

const pageSize = 4096

func newPage() (*page, error) {
	fd, err := unix.MemfdCreate("interpreter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared memory: %w", err)
	}
	p := &page{file: os.NewFile(uintptr(fd), "interpreter")}
	if err := unix.Ftruncate(fd, pageSize); err != nil {
		p.file.Close()
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.file.Close()
		return nil, err
	}
	p.words = (*[pageWords]atomic.Uint32)(unsafe.Pointer(&mem[0]))
	// Readers of streams may look at it until they are gone.
	runtime.AddCleanup(p, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return p, nil
}

// reset is for a new life of the process.
func (p *page) reset() {
	for i := range p.words {
		if i != pageCall {
			p.words[i].Store(0)
		}
	}
}

// take gives the agent charge of a piece, also of one that the driver has not
// begun yet. It fails when the piece is over. The driver looks at pageAttend
// after it has written its state, and the agent at the state after it has
// written pageAttend, so at least one of them sees the other; the agent decides.
func (p *page) take(id int64) bool {
	p.words[pageAttend].Store(1)
	if p.words[pageBegun].Load() == uint32(id) && p.words[pageState].Load() != stateRunning {
		p.words[pageAttend].Store(0)
		return false
	}
	p.words[pageTaken].Store(1)
	return true
}

// idle says that the driver runs no piece of the host's.
func (p *page) idle() bool { return p.words[pageState].Load() == stateIdle }

// keep says whether the agent keeps something of a stream for the next piece.
func (p *page) keep(tap int, yes bool) {
	word, n := pageKeptOut, uint32(0)
	if tap == pageTapErr {
		word = pageKeptErr
	}
	if yes {
		n = 1
	}
	p.words[word].Store(n)
}

// give is the end of take.
func (p *page) give() {
	p.words[pageTaken].Store(0)
	p.words[pageAttend].Store(0)
}

// enter says whether the agent may read a stream between pieces; leave ends it.
func (p *page) enter(tap int) bool {
	p.words[tap].Store(1)
	if p.words[pageState].Load() == stateIdle {
		return true
	}
	p.words[tap].Store(0)
	return false
}

func (p *page) leave(tap int) { p.words[tap].Store(0) }
