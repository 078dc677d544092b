package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Frame types of an interactive process. Towards the process: Stdin (empty:
// end of input), Resize (rows and cols, two bytes each), Signal (one byte).
// From it: Stdout, Stderr, Exit (exit code, four bytes, then an optional
// reason as text), after which the stream ends.
const (
	FrameStdin  byte = 0
	FrameStdout byte = 1
	FrameStderr byte = 2
	FrameResize byte = 3
	FrameSignal byte = 4
	FrameExit   byte = 5
)

// WriteFrame writes one frame: type, length, payload. Payloads longer than
// MaxFrame are an error.
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

// ReadFrame reads one frame into buf, which must have room for MaxFrame bytes,
// and returns its type and the part of buf that holds its payload.
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
