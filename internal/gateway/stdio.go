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
type inlet struct {
	io.Closer
	from    *bufio.Reader
	most    int64     // in bytes
	out     io.Writer // for the answers to invalid lines
	batches bool      // the client's revision of MCP has batches
	// newReservation returns a reservation for a line; nil: lines are not counted.
	holds func() *limit.Held
}

// inputLine is a valid line of the input.
type parcel struct {
	messages []jsonrpc.Message
	batch    bool
	held     *limit.Held // for the line's bytes
}

// lineTimeout is how long the next bytes of an incomplete line may take, if the input supports
// deadlines.
const lineTime = time.Minute

func newInlet(in io.ReadCloser, out io.Writer, most int64) *inlet {
	return &inlet{Closer: in, from: bufio.NewReaderSize(in, 16<<10), most: most, out: out}
}

// next returns the next valid line, or the error that ended the input. A last line without a
// newline is returned before the error.
func (l *inlet) next() (parcel, error) {
	for {
		var held *limit.Held
		if l.holds != nil {
			held = l.holds()
		}
		line, err := l.readLine(held)
		if line = bytes.TrimSpace(line); len(line) > 0 {
			messages, wrong := l.read(line)
			if wrong == nil {
				return parcel{messages, line[0] == '[', held}, nil
			}
			if said := l.say(wrong); said != nil {
				err = said
			}
		}
		held.Release()
		if err != nil {
			return parcel{}, err
		}
	}
}

// readLine reads a line. It answers a line that is too long, and discards the rest of it.
func (l *inlet) readLine(held *limit.Held) ([]byte, error) {
	var line []byte
	if l.from.Buffered() == 0 { // between two lines there is no timeout
		l.deadline(time.Time{})
		if _, err := l.from.Peek(1); err != nil {
			return nil, err
		}
	}
	for {
		l.deadline(time.Now().Add(lineTime))
		part, err := l.from.ReadSlice('\n')
		if int64(len(line)+len(part)) > l.most {
			return nil, l.skip(err, rpc.Invalid("Request too large: at most "+bytesText(l.most)))
		}
		if over := held.Add(int64(len(part))); over != nil {
			held.Release()
			said := fault.From(over)
			return nil, l.skip(err, rpc.Failure(nil, said.RPC(), said.Error(), said.Data()))
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// skipLine discards the rest of a line, and answers it; err is the error of the last read.
func (l *inlet) skip(err error, answer any) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		l.deadline(time.Now().Add(lineTime))
		_, err = l.from.ReadSlice('\n')
	}
	if said := l.say(answer); said != nil {
		return said
	}
	return err
}

func (l *inlet) deadline(at time.Time) {
	if d, ok := l.Closer.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(at) // inputs without deadlines have no timeout
	}
}

// parse returns the messages of a line, or the answer to an invalid line.
func (l *inlet) read(line []byte) (messages []jsonrpc.Message, wrong any) {
	if wrong := rpc.Unparsable(line); wrong != nil {
		return nil, wrong
	}
	all := []json.RawMessage{line}
	if line[0] == '[' {
		if !l.batches {
			return nil, rpc.Invalid("Invalid request: batches are not part of this protocol; " +
				"send one message on each line")
		}
		all = nil // else Unmarshal would overwrite the bytes of line
		if json.Unmarshal(line, &all) != nil || len(all) == 0 || len(all) > rpc.MaxBatch {
			return nil, rpc.Invalid(rpc.BatchSize)
		}
	}
	seen := map[jsonrpc.ID]bool{}
	for _, one := range all {
		m, wrong := rpc.Decode(one)
		if wrong != nil {
			return nil, wrong
		}
		if q, ok := m.(*jsonrpc.Request); ok {
			if q.IsCall() && seen[q.ID] {
				return nil, rpc.Failure(rpc.IDOf(one), jsonrpc.CodeInvalidRequest,
					"Invalid request: two requests of a batch have the same id", nil)
			}
			seen[q.ID] = true
			if q.Method == "initialize" {
				l.batches = batches(q.Params)
			}
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// wantsBatches reports whether a client requests a revision of MCP that has batches.
func batches(params json.RawMessage) bool {
	var p struct{ ProtocolVersion string }
	return json.Unmarshal(params, &p) == nil && p.ProtocolVersion != "" && revision.HasBatches(p.ProtocolVersion)
}

func (l *inlet) say(m any) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = l.out.Write(append(b, '\n'))
	}
	return err
}

// messageWriter is standard output. Several goroutines write to it, a whole message at a time.
type messageWriter struct {
	io.Closer
	mu sync.Mutex
	to io.Writer
}

// Write implements io.Writer.
func (w *messageWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
