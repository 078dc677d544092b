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

// pooledReader reads a connection, and takes a buffer from the pool only while there are bytes to
// read: an idle connection costs two goroutines and little else. For a connection without a
// descriptor (one to a proxy over TLS), and on Windows, it keeps a small buffer of its own.
//
// splice(2) would take a third less processor time, but would report how many bytes moved
// only at the end, and limits and idle timeouts need to know earlier.
type pooledReader struct {
	conn     net.Conn
	raw      syscall.RawConn
	tryFunc  func(fd uintptr) bool
	smallBuf []byte

	buf *buffer
	n   int
	err error
}

func newPooledReader(c net.Conn) *pooledReader {
	s := &pooledReader{conn: c}
	switch c := c.(type) {
	case *net.TCPConn:
		s.raw = readable(c)
	case *net.UnixConn:
		s.raw = readable(c)
	}
	s.tryFunc = s.tryRead
	return s
}

// next waits for bytes and returns them. They are valid until the caller calls done, which
// it must do after each call.
func (s *pooledReader) next() ([]byte, error) {
	if s.raw == nil {
		if s.smallBuf == nil {
			s.smallBuf = make([]byte, 8<<10)
		}
		n, err := s.conn.Read(s.smallBuf)
		if n > 0 {
			err = nil
		}
		return s.smallBuf[:n], err
	}
	if err := s.raw.Read(s.tryFunc); err != nil {
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

// tryRead is called by raw.Read when the descriptor may be readable. It returns false if
// there was nothing to read, and is then called again later.
func (s *pooledReader) tryRead(fd uintptr) bool {
	s.buf = buffers.Get().(*buffer)
	if s.n, s.err = readNow(fd, s.buf[:]); s.err == syscall.EAGAIN {
		s.release()
		return false
	}
	return true
}

// release gives the buffer back to the pool.
func (s *pooledReader) release() {
	if s.buf != nil {
		buffers.Put(s.buf)
		s.buf = nil
	}
}

// flow copies bytes between the sandbox and the network for one connection.
type flow struct {
	in, out net.Conn // the sandbox's side, the network's side
	// count counts bytes that were received, and reports whether they may be passed on.
	count func(n int, up bool) bool
	// inspect, if not nil, gets the first bytes from the sandbox, and may read more. It
	// returns all of them; an error ends the flow.
	inspect func(first []byte) ([]byte, error)
	// cut closes both connections.
	cut func(why string)

	traffic   Meter
	began     time.Time
	lastMoved atomic.Int64 // when bytes moved last, as a duration since begun
}

// run copies the bytes both ways until both sides have ended.
func (f *flow) run(idle time.Duration) {
	f.began = time.Now()
	stop := f.cutWhenIdle(idle)
	defer stop()
	var down sync.WaitGroup
	down.Go(func() { f.copy(f.in, f.out, false) })
	f.copy(f.out, f.in, true)
	down.Wait()
}

// cutWhenIdle cuts the flow when no bytes have moved in either direction for the duration idle. That
// includes a side that sends, when the other one does not read.
func (f *flow) cutWhenIdle(idle time.Duration) (stop func()) {
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
		idleFor := time.Since(f.began) - time.Duration(f.lastMoved.Load())
		if idleFor >= idle {
			f.cut("idle")
			return
		}
		timer.Reset(idle - idleFor)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		timer = nil
	}
}

func (f *flow) recordMoved(n int, up bool) bool {
	f.lastMoved.Store(int64(time.Since(f.began)))
	f.traffic.add(n, up)
	return f.count(n, up)
}

// copy copies the bytes of one direction, and then closes dst for writing.
func (f *flow) copy(dst, src net.Conn, up bool) {
	s := newPooledReader(src)
	first := up && f.inspect != nil
	for {
		b, err := s.next()
		if err == nil {
			err = f.forward(dst, b, up, first)
		}
		s.release()
		first = false
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			closeWrite(dst)
			return
		case errors.Is(err, errWriteFailed):
			// dst may still send: the other direction goes on.
			closeRead(src)
			return
		default:
			f.cut("reset")
			return
		}
	}
}

var (
	errWriteFailed = errors.New("the other side cannot be written to")
	errCut         = errors.New("cut")
)

// forward counts the bytes b and writes them to dst. The first ones go through inspect.
func (f *flow) forward(dst net.Conn, b []byte, up, first bool) error {
	if !f.recordMoved(len(b), up) {
		return errCut
	}
	if first {
		inspected := len(b)
		var err error
		if b, err = f.inspect(b); err != nil {
			return err
		}
		if !f.recordMoved(len(b)-inspected, up) {
			return errCut
		}
	}
	if _, err := dst.Write(b); err != nil {
		return errWriteFailed
	}
	f.lastMoved.Store(int64(time.Since(f.began)))
	return nil
}

// closeWrite closes c for writing. A connection that cannot be closed in one direction is
// closed entirely.
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
