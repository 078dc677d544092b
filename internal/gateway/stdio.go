package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
)

// inlet is standard input as the SDK gets it: a message on each line, and nothing
// else. The SDK ends at the first thing that is none; here it is answered, as
// JSON-RPC says, and the next line is read.
type inlet struct {
	io.Closer
	from    *bufio.Reader
	most    int64 // bytes of a line
	out     io.Writer
	batches bool // the client is of a revision that has them
	// take counts bytes of a line for their principal; nil: nobody counts.
	take func(n int64) (release func(), err error)

	rest []byte   // of a line that is being read
	held []func() // release what the line counts
}

// lineTime is how long a line that has begun may wait for its next bytes, where
// the input knows deadlines.
const lineTime = time.Minute

func newInlet(in io.ReadCloser, out io.Writer, most int64) *inlet {
	return &inlet{Closer: in, from: bufio.NewReaderSize(in, 16<<10), most: most, out: out}
}

// Read implements io.Reader.
func (l *inlet) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		line, err := l.next()
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if wrong := l.check(line); wrong != nil {
				if err := l.say(wrong); err != nil {
					return 0, err
				}
			} else {
				l.rest = append(line, '\n')
			}
		}
		if err != nil && len(l.rest) == 0 {
			return 0, err
		}
	}
	n := copy(p, l.rest)
	if l.rest = l.rest[n:]; len(l.rest) == 0 {
		l.rest = nil
		l.release()
	}
	return n, nil
}

// next reads a line. Of one that is too long the rest is thrown away.
func (l *inlet) next() ([]byte, error) {
	var line []byte
	l.release()
	if l.from.Buffered() == 0 { // nothing has begun: it may take its time
		l.deadline(time.Time{})
		if _, err := l.from.Peek(1); err != nil {
			return nil, err
		}
	}
	for {
		l.deadline(time.Now().Add(lineTime))
		part, err := l.from.ReadSlice('\n')
		if int64(len(line)+len(part)) > l.most {
			return nil, l.skip(err, rpcError(nil, jsonrpc.CodeInvalidRequest, "Request too large: at most "+bytesText(l.most), nil))
		}
		if over := l.count(len(part)); over != nil {
			said := fault.From(over)
			return nil, l.skip(err, rpcError(nil, said.RPC(), said.Error(), said.Data()))
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// skip throws the rest of a line away, and answers it; err is that of its last read.
func (l *inlet) skip(err error, answer any) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		l.deadline(time.Now().Add(lineTime))
		_, err = l.from.ReadSlice('\n')
	}
	l.release()
	if said := l.say(answer); said != nil {
		return said
	}
	return err
}

// count counts bytes of the line that is read, until release.
func (l *inlet) count(n int) error {
	if l.take == nil || n == 0 {
		return nil
	}
	done, err := l.take(int64(n))
	if err == nil {
		l.held = append(l.held, done)
	}
	return err
}

func (l *inlet) release() {
	for _, done := range l.held {
		done()
	}
	l.held = nil
}

func (l *inlet) deadline(at time.Time) {
	if d, ok := l.Closer.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(at) // one that has none waits
	}
}

// check returns what is to be answered to a line that is no message.
func (l *inlet) check(line []byte) any {
	if wrong := unparsable(line); wrong != nil {
		return wrong
	}
	all := []json.RawMessage{line}
	if line[0] == '[' {
		if !l.batches {
			return rpcError(nil, jsonrpc.CodeInvalidRequest, "Invalid request: batches are not part of this protocol; send one message on each line", nil)
		}
		all = nil // else the line itself would be written over
		if json.Unmarshal(line, &all) != nil || len(all) == 0 || len(all) > maxBatch {
			return rpcError(nil, jsonrpc.CodeInvalidRequest, batchSize, nil)
		}
	}
	seen := map[jsonrpc.ID]bool{}
	for _, one := range all {
		q, wrong := decode(one)
		if wrong != nil {
			return wrong
		}
		if q == nil {
			continue
		}
		if q.IsCall() && seen[q.ID] {
			return rpcError(idOf(one), jsonrpc.CodeInvalidRequest, "Invalid request: two requests of a batch have the same id", nil)
		}
		seen[q.ID] = true
		if q.Method == "initialize" {
			l.batches = batches(q.Params)
		}
	}
	return nil
}

// batches says whether a client asks for a revision of the protocol that has them.
func batches(params json.RawMessage) bool {
	var p struct{ ProtocolVersion string }
	return json.Unmarshal(params, &p) == nil && p.ProtocolVersion != "" && p.ProtocolVersion < batchlessFrom
}

// unparsable returns what is to be answered to bytes that are no JSON.
func unparsable(b []byte) any {
	if !utf8.Valid(b) {
		return rpcError(nil, jsonrpc.CodeParseError, "Parse error: the request is not UTF-8", nil)
	}
	if !json.Valid(b) {
		return rpcError(nil, jsonrpc.CodeParseError, "Parse error: the request is not JSON", nil)
	}
	return nil
}

// idOf returns the id of what may be a request; nil: it has none.
func idOf(b json.RawMessage) json.RawMessage {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(b, &m) != nil || !isID(m.ID) {
		return nil
	}
	return m.ID
}

func (l *inlet) say(m any) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = l.out.Write(append(b, '\n'))
	}
	return err
}

// wholes is standard output, on which several write whole messages.
type wholes struct {
	io.Closer
	mu sync.Mutex
	to io.Writer
}

// Write implements io.Writer.
func (w *wholes) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
