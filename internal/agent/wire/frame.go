package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kinds of frames of an interactive process. The host sends Stdin (without data: end of
// input), Resize (rows and columns, two bytes each) and Signal (one byte). The agent sends
// Stdout and Stderr, and at the end Exit (the exit code in four bytes, then an optional reason
// as text).
const (
	FrameStdin  byte = 0
	FrameStdout byte = 1
	FrameStderr byte = 2
	FrameResize byte = 3
	FrameSignal byte = 4
	FrameExit   byte = 5
)

// WriteFrame writes one frame: kind, length and payload. It returns an error when the payload is
// longer than MaxFrame.
func WriteFrame(w io.Writer, kind byte, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("wire: frame of %d bytes is over %d", len(payload), MaxFrame)
	}
	b := make([]byte, 5, 5+len(payload))
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

// ReadFrame reads one frame into buf, which must have room for MaxFrame bytes, and returns its
// kind and the part of buf with its payload.
func ReadFrame(r io.Reader, buf []byte) (kind byte, payload []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxFrame || int(n) > len(buf) {
		return 0, nil, fmt.Errorf("wire: frame of %d bytes is over %d", n, MaxFrame)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return 0, nil, err
	}
	return h[0], buf[:n], nil
}
