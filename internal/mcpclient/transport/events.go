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
	// truncated: the stream ended before the event did, so the event may be incomplete.
	truncated bool
	// reservation has to be released by the caller; never nil.
	reservation Reservation
}

// isMessage reports whether the data of an event is a JSON-RPC message.
func (e *event) isMessage() bool { return e.name == "" || e.name == "message" }

const (
	maxEventID   = 4 << 10
	maxEventName = 256
	maxRetry     = 30 * time.Second
)

// eventReader reads server-sent events of bounded size.
type eventReader struct {
	reader       *bufio.Reader
	limit        int           // bytes of one event
	retry        time.Duration // the pause before a reconnection that the server asked for; 0: none
	reserver     reserver
	begun        bool     // the beginning was read, where a byte order mark may stand
	pendingLines [][]byte // read, but not returned by readLine yet
}

func newEventReader(r io.Reader, limit int) *eventReader {
	return &eventReader{reader: bufio.NewReaderSize(r, 16<<10), limit: limit}
}

// next returns the next event with data or an id. The caller may keep the data.
func (r *eventReader) next() (event, error) {
	r.reserver.release() // of an incomplete event
	var e event
	var data bytes.Buffer
	hasFields, size := false, 0
	finish := func() event {
		e.data = bytes.TrimSuffix(data.Bytes(), []byte("\n"))
		e.reservation = r.reserver.transfer()
		return e
	}
	for {
		line, err := r.readLine(&size)
		if err != nil {
			if errors.Is(err, io.EOF) && data.Len() > 0 {
				e.truncated = true
				return finish(), nil
			}
			r.reserver.release()
			return event{}, err
		}
		if len(line) == 0 {
			if hasFields && (data.Len() > 1 || e.hasID) { // one byte is the line end of empty data
				return finish(), nil
			}
			r.reserver.release()
			e, hasFields, size = event{}, false, 0
			data.Reset()
			continue
		}
		if line[0] == ':' { // a comment, as servers send to keep the stream open
			if data.Len() == 0 {
				size = 0
			}
			continue
		}
		hasFields = true
		r.parseField(&e, &data, line)
	}
}

// parseField adds one line, "name: value", to an event.
func (r *eventReader) parseField(e *event, data *bytes.Buffer, line []byte) {
	key, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(key) {
	case "data":
		data.Write(value)
		data.WriteByte('\n')
	case "event":
		e.name = string(value[:min(len(value), maxEventName)])
	case "id":
		// The id is sent back to the server in a header.
		if len(value) <= maxEventID && !bytes.ContainsFunc(value, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			e.id, e.hasID = string(value), true
		}
	case "retry":
		if n, err := strconv.ParseUint(strings.TrimSpace(string(value)), 10, 32); err == nil {
			r.retry = min(time.Duration(n)*time.Millisecond, maxRetry)
		}
	}
}

// readLine returns the next line without its line end, which may be CR, LF or both. The
// line is valid until the next call.
func (r *eventReader) readLine(size *int) ([]byte, error) {
	if len(r.pendingLines) == 0 {
		if err := r.readLines(size); err != nil {
			return nil, err
		}
	}
	line := r.pendingLines[0]
	r.pendingLines = r.pendingLines[1:]
	return line, nil
}

func (r *eventReader) readLines(size *int) error {
	var all []byte
	for {
		part, err := r.reader.ReadSlice('\n')
		if *size += len(part); *size > r.limit+truncatedEnds {
			return fmt.Errorf("%w: an event of over %d bytes", ErrTooLarge, r.limit)
		}
		if err := r.reserver.reserveIfLarge(*size); err != nil {
			return err
		}
		all = append(all, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && len(all) == 0 {
			return err
		}
		break // the reader returns an error again when its bytes were read
	}
	if !r.begun {
		r.begun = true
		all = bytes.TrimPrefix(all, []byte("\ufeff"))
	}
	all = bytes.TrimSuffix(bytes.TrimSuffix(all, []byte("\n")), []byte("\r"))
	r.pendingLines = bytes.Split(all, []byte("\r"))
	return nil
}
