package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/revision"
)

// lineReader reads standard input: each line is a message or a batch. It answers an invalid
// line with an error, and reads the next line.
type lineReader struct {
	io.Closer
	input   *bufio.Reader
	maxLine int64     // in bytes
	out     io.Writer // for the answers to invalid lines
	batches bool      // the client's revision of MCP has batches
	// newReservation returns a reservation for a line; nil: lines are not counted.
	newReservation func() *limit.Reservation
}

// inputLine is a valid line of the input.
type inputLine struct {
	messages    []jsonrpc.Message
	batch       bool
	reservation *limit.Reservation // for the line's bytes
}

// lineTimeout is how long the next bytes of an incomplete line may take, if the input supports
// deadlines.
const lineTimeout = time.Minute

func newLineReader(in io.ReadCloser, out io.Writer, maxLine int64) *lineReader {
	return &lineReader{Closer: in, input: bufio.NewReaderSize(in, 16<<10), maxLine: maxLine, out: out}
}

// next returns the next valid line, or the error that ended the input. A last line without a
// newline is returned before the error.
func (l *lineReader) next() (inputLine, error) {
	for {
		var reservation *limit.Reservation
		if l.newReservation != nil {
			reservation = l.newReservation()
		}
		line, err := l.readLine(reservation)
		if line = bytes.TrimSpace(line); len(line) > 0 {
			messages, errorAnswer := l.parse(line)
			if errorAnswer == nil {
				return inputLine{messages, line[0] == '[', reservation}, nil
			}
			if writeErr := l.writeMessage(errorAnswer); writeErr != nil {
				err = writeErr
			}
		}
		reservation.Release()
		if err != nil {
			return inputLine{}, err
		}
	}
}

// readLine reads a line. It answers a line that is too long, and discards the rest of it.
func (l *lineReader) readLine(reservation *limit.Reservation) ([]byte, error) {
	var line []byte
	if l.input.Buffered() == 0 { // between two lines there is no timeout
		l.setReadDeadline(time.Time{})
		if _, err := l.input.Peek(1); err != nil {
			return nil, err
		}
	}
	for {
		l.setReadDeadline(time.Now().Add(lineTimeout))
		part, err := l.input.ReadSlice('\n')
		if int64(len(line)+len(part)) > l.maxLine {
			return nil, l.skipLine(err, rpc.InvalidRequest("Request too large: at most "+mebibytes(l.maxLine)))
		}
		if limitErr := reservation.Add(int64(len(part))); limitErr != nil {
			reservation.Release()
			refusal := fault.From(limitErr)
			return nil, l.skipLine(err, rpc.ErrorResponse(nil, refusal.RPC(), refusal.Error(), refusal.Data()))
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// skipLine discards the rest of a line, and answers it; err is the error of the last read.
func (l *lineReader) skipLine(err error, answer any) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		l.setReadDeadline(time.Now().Add(lineTimeout))
		_, err = l.input.ReadSlice('\n')
	}
	if writeErr := l.writeMessage(answer); writeErr != nil {
		return writeErr
	}
	return err
}

func (l *lineReader) setReadDeadline(at time.Time) {
	if d, ok := l.Closer.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(at) // inputs without deadlines have no timeout
	}
}

// parse returns the messages of a line, or the answer to an invalid line.
func (l *lineReader) parse(line []byte) (messages []jsonrpc.Message, errorAnswer any) {
	if errorAnswer := rpc.ParseError(line); errorAnswer != nil {
		return nil, errorAnswer
	}
	all := []json.RawMessage{line}
	if line[0] == '[' {
		if !l.batches {
			return nil, rpc.InvalidRequest("Invalid request: batches are not part of this protocol; " +
				"send one message on each line")
		}
		all = nil // else Unmarshal would overwrite the bytes of line
		if json.Unmarshal(line, &all) != nil || len(all) == 0 || len(all) > rpc.MaxBatch {
			return nil, rpc.InvalidRequest(rpc.BatchSizeMessage)
		}
	}
	seen := map[jsonrpc.ID]bool{}
	for _, raw := range all {
		m, errorAnswer := rpc.Decode(raw)
		if errorAnswer != nil {
			return nil, errorAnswer
		}
		if q, ok := m.(*jsonrpc.Request); ok {
			if q.IsCall() && seen[q.ID] {
				return nil, rpc.ErrorResponse(rpc.IDOf(raw), jsonrpc.CodeInvalidRequest,
					"Invalid request: two requests of a batch have the same id", nil)
			}
			seen[q.ID] = true
			if q.Method == "initialize" {
				l.batches = wantsBatches(q.Params)
			}
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// wantsBatches reports whether a client requests a revision of MCP that has batches.
func wantsBatches(params json.RawMessage) bool {
	var p struct{ ProtocolVersion string }
	return json.Unmarshal(params, &p) == nil && p.ProtocolVersion != "" && revision.HasBatches(p.ProtocolVersion)
}

func (l *lineReader) writeMessage(m any) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = l.out.Write(append(b, '\n'))
	}
	return err
}

// messageWriter is standard output. Several goroutines write to it, a whole message at a time.
type messageWriter struct {
	io.Closer
	mu  sync.Mutex
	out io.Writer
}

// Write implements io.Writer.
func (w *messageWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(b)
}
