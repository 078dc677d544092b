package wire

import (
	"encoding/binary"
	"net"
)

// Coalesce returns a connection for yamux. It sends the header and the body of a frame, which
// yamux writes separately, in one write: that halves the system calls and wake-ups on both sides.
// Only the sender goroutine of yamux may write to it.
//
// A write of exactly 12 bytes whose type is data and whose length is not 0 is such a header, and the next
// write is its body: yamux has one sender for each connection. The format of frames is yamux's own, so a
// version of yamux that changes it needs a review of this file.
func Coalesce(c net.Conn) net.Conn { return &coalescing{Conn: c} }

// coalescing is a connection with a coalescing writer.
type coalescing struct {
	net.Conn
	header []byte // of a frame whose body is the next write
}

const (
	headerLen = 12 // of a yamux frame: version, type, flags (2), stream (4), length (4)
	typeData  = 0
)

func (w *coalescing) Write(p []byte) (int, error) {
	if len(w.header) == 0 {
		if len(p) == headerLen && p[1] == typeData && binary.BigEndian.Uint32(p[8:]) > 0 {
			w.header = append(w.header, p...)
			return len(p), nil
		}
		return w.Conn.Write(p)
	}
	frame := append(w.header, p...)
	n, err := w.Conn.Write(frame)
	n = max(0, n-len(w.header))
	w.header = frame[:0]
	if cap(w.header) > 64<<10 {
		w.header = nil
	}
	return n, err
}
