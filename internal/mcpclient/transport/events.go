package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
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
	reader   *bufio.Reader
	retry    time.Duration // the pause before a reconnection that the server asked for; 0: none
	reserver reserver      // with the limits of one event
	begun    bool          // the beginning was read, where a byte order mark may stand
	rest     []byte        // lines that were read, but not returned by readLine yet, with CR between them; nil: none
}

// newEventReader returns a reader of events, which may have more bytes than their messages.
func newEventReader(r io.Reader, m reserver) *eventReader {
	m.limits.Message += truncatedEnds
	m.limits.Large += truncatedEnds
	return &eventReader{reader: bufio.NewReaderSize(r, 16<<10), reserver: m}
}

// next returns the next event with data or an id. The caller may keep the data.
func (r *eventReader) next() (event, error) {
	r.reserver.release() // of an incomplete event
	var e event
	hasFields, size := false, 0
	finish := func() event {
		e.reservation = r.reserver.transfer()
		return e
	}
	for {
		line, err := r.readLine(&size)
		if err != nil {
			if errors.Is(err, io.EOF) && e.data != nil {
				e.truncated = true
				return finish(), nil
			}
			r.reserver.release()
			return event{}, err
		}
		if len(line) == 0 {
			if hasFields && (len(e.data) > 0 || e.hasID) {
				return finish(), nil
			}
			r.reserver.release()
			e, hasFields, size = event{}, false, 0
			continue
		}
		if line[0] == ':' { // a comment, as servers send to keep the stream open
			if e.data == nil {
				size = 0
			}
			continue
		}
		hasFields = true
		r.parseField(&e, line)
	}
}

// parseField adds one line, "name: value", to an event.
func (r *eventReader) parseField(e *event, line []byte) {
	key, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(key) {
	case "data":
		if e.data == nil { // most events have one such line, which is not copied
			if e.data = slices.Clip(value); value == nil {
				e.data = []byte{}
			}
			break
		}
		e.data = extend(extend(e.data, []byte("\n")), value)
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
	if r.rest == nil {
		if err := r.readLines(size); err != nil {
			return nil, err
		}
	}
	var line []byte
	line, r.rest, _ = bytes.Cut(r.rest, []byte("\r"))
	return line, nil
}

// readLines reads to the next LF.
func (r *eventReader) readLines(size *int) error {
	var all []byte
	for {
		part, err := r.reader.ReadSlice('\n')
		*size += len(part)
		if err := r.reserver.admit(*size); err != nil {
			return err
		}
		all = extend(all, part)
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
	r.rest = bytes.TrimSuffix(bytes.TrimSuffix(all, []byte("\n")), []byte("\r"))
	if most := r.reserver.limits.Message; len(r.rest) > most && bytes.IndexByte(r.rest, '\r') >= 0 {
		r.rest = nil
		return tooLarge(most) // events that share memory would give its reservation back one by one
	}
	return nil
}
