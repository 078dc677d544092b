package wire

import (
	"encoding/binary"
	"errors"
	"net"
)

// ErrForward is why a link ends on which the sandbox began something.
var ErrForward = errors.New("wire: the sandbox opened a stream or sent a ping")

// Strict returns a connection for the host's yamux on which the sandbox can
// only answer. Each stream that it opens would make the host hold a window's
// worth of what it sends, and each ping an answer until it reads that.
func Strict(c net.Conn) net.Conn { return &strict{Conn: c} }

type strict struct {
	net.Conn
	head [headerLen]byte
	have int    // bytes of head
	body uint32 // bytes that are left of the present frame
}

const (
	typePing = 2
	flagSYN  = 1
)

func (s *strict) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if s.body > 0 {
			k := min(uint64(len(rest)), uint64(s.body))
			s.body -= uint32(k)
			rest = rest[k:]
			continue
		}
		k := copy(s.head[s.have:], rest)
		s.have += k
		rest = rest[k:]
		if s.have < headerLen {
			break
		}
		s.have = 0
		if s.head[1] == typePing || binary.BigEndian.Uint16(s.head[2:])&flagSYN != 0 {
			return 0, ErrForward
		}
		if s.head[1] == typeData {
			s.body = binary.BigEndian.Uint32(s.head[8:])
		}
	}
	return n, err
}
