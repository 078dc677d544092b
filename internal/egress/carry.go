package egress

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type buffer [32 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// source reads a connection, and holds a buffer only while there are bytes: a
// connection that waits costs two goroutines and little else. Where it cannot
// look into the connection (a proxy over TLS) it keeps a small buffer.
//
// Splicing would take a third less of the processor, but shows how much moved
// only when all has, and limits and idle times need to know before.
type source struct {
	conn net.Conn
	raw  syscall.RawConn
	try  func(fd uintptr) bool
	own  []byte

	buf *buffer
	n   int
	err error
}

func newSource(c net.Conn) *source {
	s := &source{conn: c}
	switch c := c.(type) {
	case *net.TCPConn:
		s.raw, _ = c.SyscallConn()
	case *net.UnixConn:
		s.raw, _ = c.SyscallConn()
	}
	s.try = s.tryRead
	return s
}

// next waits for bytes. They are valid until done is called, which must be.
func (s *source) next() ([]byte, error) {
	if s.raw == nil {
		if s.own == nil {
			s.own = make([]byte, 8<<10)
		}
		n, err := s.conn.Read(s.own)
		if n > 0 {
			err = nil
		}
		return s.own[:n], err
	}
	if err := s.raw.Read(s.try); err != nil {
		return nil, err
	}
	switch {
	case s.err != nil:
		return nil, os.NewSyscallError("read", s.err)
	case s.n == 0:
		return nil, io.EOF
	}
	return s.buf[:s.n], nil
}

// tryRead is called when there may be something to read, and says whether
// there was.
func (s *source) tryRead(fd uintptr) bool {
	s.buf = buffers.Get().(*buffer)
	for {
		s.n, s.err = syscall.Read(int(fd), s.buf[:])
		if s.err != syscall.EINTR {
			break
		}
	}
	if s.err == syscall.EAGAIN {
		s.done()
		return false
	}
	return true
}

func (s *source) done() {
	if s.buf != nil {
		buffers.Put(s.buf)
		s.buf = nil
	}
}

// flow carries the bytes of one connection that was allowed.
type flow struct {
	in, out net.Conn // the sandbox's side, the network's side
	// count counts bytes that came, and says whether more may.
	count func(n int, up bool) bool
	// inspect may look at the first bytes from the sandbox; it returns all that
	// it read, or an error for people.
	inspect func(first []byte) ([]byte, error)
	// cut ends both sides at once.
	cut func(why string)

	traffic Meter
	begun   time.Time
	last    atomic.Int64 // when something moved last, since begun
}

// carry copies the bytes both ways until both sides have ended.
func (f *flow) carry(idle time.Duration) {
	f.begun = time.Now()
	stop := f.watch(idle)
	defer stop()
	var down sync.WaitGroup
	down.Go(func() { f.copy(f.in, f.out, false) })
	f.copy(f.out, f.in, true)
	down.Wait()
}

// watch cuts the flow when nothing moved either way for that long: also when
// one side does not take what the other sends.
func (f *flow) watch(idle time.Duration) (stop func()) {
	var (
		mu    sync.Mutex
		timer *time.Timer // nil: stopped
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(idle, func() {
		mu.Lock()
		defer mu.Unlock()
		if timer == nil {
			return
		}
		quiet := time.Since(f.begun) - time.Duration(f.last.Load())
		if quiet >= idle {
			f.cut("idle")
			return
		}
		timer.Reset(idle - quiet)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		timer = nil
	}
}

func (f *flow) moved(n int, up bool) bool {
	f.last.Store(int64(time.Since(f.begun)))
	f.traffic.add(n, up)
	return f.count(n, up)
}

// copy copies the bytes of one direction, and then its end.
func (f *flow) copy(dst, src net.Conn, up bool) {
	s := newSource(src)
	first := up && f.inspect != nil
	for {
		b, err := s.next()
		if err == nil {
			err = f.pass(dst, b, up, first)
		}
		s.done()
		first = false
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			closeWrite(dst)
			return
		case errors.Is(err, errNotTaken):
			// What the other side still says may be wanted.
			closeRead(src)
			return
		default:
			f.cut("reset")
			return
		}
	}
}

var (
	errNotTaken = errors.New("the other side takes no more")
	errCut      = errors.New("cut")
)

func (f *flow) pass(dst net.Conn, b []byte, up, first bool) error {
	if !f.moved(len(b), up) {
		return errCut
	}
	if first {
		had := len(b)
		var err error
		if b, err = f.inspect(b); err != nil {
			return err
		}
		if !f.moved(len(b)-had, up) {
			return errCut
		}
	}
	if _, err := dst.Write(b); err != nil {
		return errNotTaken
	}
	f.last.Store(int64(time.Since(f.begun)))
	return nil
}

// closeWrite tells c's peer that no more comes. A connection that cannot end one direction
// ends whole.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

func closeRead(c net.Conn) {
	if h, ok := c.(interface{ CloseRead() error }); ok {
		h.CloseRead()
		return
	}
	c.Close()
}
