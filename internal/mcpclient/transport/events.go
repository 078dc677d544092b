package transport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// event is one server-sent event:
// https://html.spec.whatwg.org/multipage/server-sent-events.html
type event struct {
	name  string // empty: message
	id    string
	hasID bool
	data  []byte
	// cut: the stream ended before the event did; it may not be whole.
	cut bool
	// reservation is the caller's to release; never nil.
	reservation Reservation
}

// isMessage reports whether an event is to be read as a message of the protocol.
func (e *event) isMessage() bool { return e.name == "" || e.name == "message" }

const (
	maxEventID   = 4 << 10
	maxEventName = 256
	maxRetry     = 30 * time.Second
)

// eventReader reads a stream of events of bounded size.
type eventReader struct {
	from   *bufio.Reader
	limit  int           // bytes of one event
	retry  time.Duration // how long the server wants clients to wait before they connect again; 0: it has not said
	memory memory
	begun  bool
	lines  [][]byte // of what was read that are not taken yet
}

func newEventReader(r io.Reader, limit int) *eventReader {
	return &eventReader{from: bufio.NewReaderSize(r, 16<<10), limit: limit}
}

// next returns the next event with data or an id. The data is the caller's.
func (r *eventReader) next() (event, error) {
	r.memory.release() // of an event that was not whole
	var e event
	var data bytes.Buffer
	fields, size := false, 0
	finished := func() event {
		e.data = bytes.TrimSuffix(data.Bytes(), []byte("\n"))
		e.reservation = r.memory.take()
		return e
	}
	for {
		line, err := r.line(&size)
		if err != nil {
			if errors.Is(err, io.EOF) && data.Len() > 0 {
				e.cut = true
				return finished(), nil
			}
			r.memory.release()
			return event{}, err
		}
		if len(line) == 0 {
			if fields && (data.Len() > 1 || e.hasID) { // one byte is the end of an empty line
				return finished(), nil
			}
			r.memory.release()
			e, fields, size = event{}, false, 0
			data.Reset()
			continue
		}
		if line[0] == ':' { // a comment; some servers send comments to keep the stream open
			if data.Len() == 0 {
				size = 0
			}
			continue
		}
		fields = true
		r.field(&e, &data, line)
	}
}

// field reads one line of an event.
func (r *eventReader) field(e *event, data *bytes.Buffer, line []byte) {
	key, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(key) {
	case "data":
		data.Write(value)
		data.WriteByte('\n')
	case "event":
		e.name = string(value[:min(len(value), maxEventName)])
	case "id":
		// It goes back to the server in a header.
		if len(value) <= maxEventID && !bytes.ContainsFunc(value, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			e.id, e.hasID = string(value), true
		}
	case "retry":
		if n, err := strconv.ParseUint(strings.TrimSpace(string(value)), 10, 32); err == nil {
			r.retry = min(time.Duration(n)*time.Millisecond, maxRetry)
		}
	}
}

// line returns the next line, without its end, which may be CR, LF or both. It
// is valid until the next call.
func (r *eventReader) line(size *int) ([]byte, error) {
	if len(r.lines) == 0 {
		if err := r.fill(size); err != nil {
			return nil, err
		}
	}
	line := r.lines[0]
	r.lines = r.lines[1:]
	return line, nil
}

func (r *eventReader) fill(size *int) error {
	var all []byte
	for {
		part, err := r.from.ReadSlice('\n')
		if *size += len(part); *size > r.limit+keptEnds {
			return fmt.Errorf("%w: an event of over %d bytes", ErrTooLarge, r.limit)
		}
		if err := r.memory.grow(*size); err != nil {
			return err
		}
		all = append(all, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && len(all) == 0 {
			return err
		}
		break // an error comes again when the bytes before it are taken
	}
	if !r.begun {
		r.begun = true
		all = bytes.TrimPrefix(all, []byte("\ufeff"))
	}
	all = bytes.TrimSuffix(bytes.TrimSuffix(all, []byte("\n")), []byte("\r"))
	r.lines = bytes.Split(all, []byte("\r"))
	return nil
}
