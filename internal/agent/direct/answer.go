package direct

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"
	"unicode/utf8"

	"sandlot/internal/agent/wire"
)

// Answer is what a driver says of a cell, and what the cell has written.
type Answer struct {
	wire.Reply
	Stdout, Stderr []byte
}

// MaxAnswer bounds a driver's answer without what the cell wrote, in bytes: more than
// the driver's own bound.
const MaxAnswer = 512 << 10

// answer reads what a driver says of a cell; nil when it leaves that to the agent.
func (w *Way) answer(id int64, limit int) (*Answer, error) {
	w.conn.SetReadDeadline(time.Now().Add(SendLimit))
	line, err := w.r.ReadSlice('\n')
	if err != nil {
		return nil, broken(err)
	}
	var size, stdout, stderr int
	if n, err := fmt.Sscanf(string(line), "%d %d %d\n", &size, &stdout, &stderr); err != nil || n != 3 ||
		size < 0 || size > MaxAnswer || stdout < 0 || stdout > limit || stderr < 0 || stderr > limit {
		return nil, ErrProtocol
	}
	if size == 0 {
		return nil, nil
	}
	data := make([]byte, size+stdout+stderr)
	if _, err := io.ReadFull(w.r, data); err != nil {
		return nil, broken(err)
	}
	a := &Answer{Stdout: data[size : size+stdout : size+stdout], Stderr: data[size+stdout:]}
	if json.Unmarshal(data[:size], &a.Reply) != nil || a.ID != id || a.Result != nil && len(*a.Result) > limit {
		return nil, ErrProtocol
	}
	for _, file := range a.Raw {
		if file != "" && (path.Dir(file) != wire.OutputDir || !utf8.ValidString(file)) {
			return nil, ErrProtocol
		}
	}
	return a, nil
}

func broken(err error) error {
	if errors.Is(err, bufio.ErrBufferFull) {
		return ErrProtocol
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}
