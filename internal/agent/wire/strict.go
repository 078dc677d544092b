package wire

import (
	"encoding/binary"
	"errors"
	"net"
	"time"
)

// Errors of a link on which the sandbox sends something that the protocol does not allow.
var (
	ErrUnsolicited = errors.New("wire: the sandbox opened a stream or sent a ping")
	ErrBadFrame    = errors.New("wire: the sandbox sends something that is not a frame, or more than a window at once")
	ErrFlood       = errors.New("wire: the sandbox floods the link with control frames")
)

// Strict returns a connection for the host's yamux whose Read fails when the sandbox opens a
// stream, sends a ping, or floods the link. Each stream that a sandbox opened would make the host
// buffer a window of data, and each ping would make it buffer an answer, which the sandbox need
// not read. Each frame without data costs time.
//
// Code that has replaced the agent knows its secret. Without these rules each stream that it opened held up
// to 4 MB of the host's memory for half a minute. What the sandbox has to ask for by itself, such as the
// network, has connections of its own. A sandbox that keeps breaking its link is given up after some brief
// links in a row (Client in package agent): its session would never work again, and the host would accept
// hostile links for ever.
func Strict(c net.Conn) net.Conn { return &strict{Conn: c, since: time.Now()} }

type strict struct {
	net.Conn
	header     [headerLen]byte
	headerRead int    // how many bytes of header are read
	bodyLeft   uint32 // bytes of the current frame's data that are not read yet
	// controlFrames is the number of frames without data after since.
	controlFrames int
	since         time.Time
	err           error
}

const (
	typePing   = 2
	typeGoAway = 3
	flagSYN    = 1

	// maxControl bounds the control frames in a second: an agent that keeps to the protocol sends
	// one for each stream that the host opens, and one for each half of a window.
	maxControl = 20_000
)

func (s *strict) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if s.bodyLeft > 0 {
			k := min(uint64(len(rest)), uint64(s.bodyLeft))
			s.bodyLeft -= uint32(k)
			rest = rest[k:]
			continue
		}
		k := copy(s.header[s.headerRead:], rest)
		s.headerRead += k
		rest = rest[k:]
		if s.headerRead < headerLen {
			break
		}
		s.headerRead = 0
		if s.err = s.checkHeader(); s.err != nil {
			return 0, s.err
		}
	}
	return n, err
}

// checkHeader checks a frame's header.
func (s *strict) checkHeader() error {
	length := binary.BigEndian.Uint32(s.header[8:])
	switch {
	case s.header[0] != 0 || s.header[1] > typeGoAway || s.header[1] == typeData && length > hostWindow:
		return ErrBadFrame
	case s.header[1] == typePing || binary.BigEndian.Uint16(s.header[2:])&flagSYN != 0:
		return ErrUnsolicited
	case s.header[1] == typeData && length > 0:
		s.bodyLeft = length
		return nil
	}
	if s.controlFrames++; s.controlFrames < maxControl {
		return nil
	}
	if time.Since(s.since) < time.Second {
		return ErrFlood
	}
	s.controlFrames, s.since = 0, time.Now()
	return nil
}
