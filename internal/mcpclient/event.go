package mcpclient

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
	// room is what it holds, its reader's to release; never nil.
	room Room
}

const (
	maxEventID   = 4 << 10
	maxEventName = 256
	maxRetry     = 30 * time.Second
)

// eventReader reads a stream of events of bounded size.
type eventReader struct {
	from  *bufio.Reader
	limit int                                       // of one event
	retry time.Duration                             // what the server wants to be waited before it is asked again; 0: it has not said
	wants func() (room Room, whole func(), _ error) // for a large event; nil: it needs no room
	whole func()
	room  Room // of the event that is read; nil: it needs none
	begun bool
	lines [][]byte // of what was read that are not taken yet
}

func newEventReader(r io.Reader, limit int) *eventReader {
	return &eventReader{from: bufio.NewReaderSize(r, 16<<10), limit: limit}
}

// next returns the next event that says anything. The data is the caller's.
func (r *eventReader) next() (event, error) {
	r.release() // of one that nobody took
	e := event{room: noRoom{}}
	var data bytes.Buffer
	fields, size := false, 0
	for {
		line, err := r.line(&size)
		if err != nil {
			if errors.Is(err, io.EOF) && data.Len() > 0 {
				e.data, e.cut = bytes.TrimSuffix(data.Bytes(), []byte("\n")), true
				return r.handOver(e), nil
			}
			r.release()
			return event{}, err
		}
		if len(line) == 0 {
			if e.data = bytes.TrimSuffix(data.Bytes(), []byte("\n")); fields && (len(e.data) > 0 || e.hasID) {
				return r.handOver(e), nil
			}
			r.release()
			e, fields, size = event{room: noRoom{}}, false, 0
			data.Reset()
			continue
		}
		if line[0] == ':' { // a comment; some servers send them to keep the stream open
			if data.Len() == 0 {
				size = 0
			}
			continue
		}
		fields = true
		r.field(&e, &data, line)
	}
}

// handOver puts the room of an event into it.
func (r *eventReader) handOver(e event) event {
	if r.room != nil {
		r.whole()
		e.room, r.room = r.room, nil
	}
	return e
}

func (r *eventReader) release() {
	if r.room != nil {
		r.whole()
		r.room.Release()
		r.room = nil
	}
}

// field takes one line of an event.
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
		if *size > largeFrom && r.room == nil && r.wants != nil {
			var err error
			if r.room, r.whole, err = r.wants(); err != nil {
				return err
			}
		}
		all = append(all, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && len(all) == 0 {
			return err
		}
		break // an error comes again when what was read before it is taken
	}
	if !r.begun {
		r.begun = true
		all = bytes.TrimPrefix(all, []byte("\ufeff"))
	}
	all = bytes.TrimSuffix(bytes.TrimSuffix(all, []byte("\n")), []byte("\r"))
	r.lines = bytes.Split(all, []byte("\r"))
	return nil
}
