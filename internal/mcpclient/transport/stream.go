package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandlot/internal/revision"
)

const (
	maxResumes   = 5 // attempts in a row to resume one stream that bring nothing new
	resumePause  = time.Second
	longestPause = time.Minute
	// stableAfter is how long a stream has to stay open for the pause to start over.
	stableAfter = 10 * time.Second
)

// stream is the state of one stream of events.
type stream struct {
	id          int64  // of the request whose response ends the stream; 0: none
	lastEventID string // the id of the last event
	retry       time.Duration
	progress    bool // a message or an event id came since the stream was opened
	answered    bool
}

// readStream reads events until the stream ends, or the response to its request has come.
func (h *streamable) readStream(ctx context.Context, s *stream, resp *http.Response) error {
	id := s.id
	if id == 0 { // the stream of notifications
		id = -1
	}
	r := h.newEventReader(ctx, resp, id)
	for {
		e, err := r.next()
		if r.retry > 0 {
			s.retry = r.retry
		}
		if err != nil {
			return err
		}
		if err := h.deliver(s, e); err != nil {
			return err
		}
		if s.answered {
			discard(resp.Body)
			return nil
		}
	}
}

// deliver passes an event to the session.
func (h *streamable) deliver(s *stream, e event) error {
	if len(e.data) > 0 && e.isMessage() {
		answered, ok := h.receiver.Receive(e.data, e.reservation)
		switch {
		case !ok && e.truncated:
			return errors.New("the stream ended in the middle of an event")
		case s.id != 0 && answered == s.id:
			s.answered = true
		}
		s.progress = true
	} else {
		e.reservation.Release()
	}
	if e.hasID && e.id != s.lastEventID {
		s.lastEventID, s.progress = e.id, true
	}
	return nil
}

// followStream reads the stream that answers a request. If the stream breaks, it resumes the stream, in the
// stateful protocol and if the server sent event ids to resume from.
func (h *streamable) followStream(ctx context.Context, m Outgoing, resp *http.Response) error {
	s := &stream{id: m.ID}
	tries := 0
	for {
		err := h.readStream(ctx, s, resp)
		resp.Body.Close()
		_, noMemory := errors.AsType[reservationError](err)
		switch {
		case s.answered:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case noMemory, errors.Is(err, ErrTooLarge), errors.Is(err, ErrSlow):
			return err
		case s.lastEventID == "" || revision.IsStateless(m.Version):
			return fmt.Errorf("the server ended its stream before it had answered %s (%v)", Clip(m.Method, 100), err)
		}
		if tries++; s.progress {
			tries = 1
		}
		if resp, err = h.resume(ctx, s, &tries); errors.Is(err, ErrSessionLost) {
			h.endIfLost(err)
			return fmt.Errorf("%w: %s was in flight (%v)", ErrClosed, Clip(m.Method, 100), err) // it may have run
		} else if err != nil {
			return err
		}
		s.progress = false
	}
}

// resume opens a stream again, after its last event. tries counts the attempts.
func (h *streamable) resume(ctx context.Context, s *stream, tries *int) (*http.Response, error) {
	pause := resumePause
	for {
		if *tries > maxResumes {
			return nil, fmt.Errorf("the server's stream broke %d times in a row without anything new", *tries)
		}
		wait := pause
		if s.retry > 0 {
			wait = s.retry
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
		resp, err := h.openStream(ctx, s.lastEventID, false)
		_, unreachable := errors.AsType[*UnreachableError](err)
		status, isStatus := errors.AsType[*statusError](err)
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case unreachable, isStatus && status.status >= 500:
			*tries++
			pause *= 2
		default:
			return nil, err
		}
	}
}

// openStream opens a stream with a GET. With lastEventID, it resumes the stream after that event.
func (h *streamable) openStream(ctx context.Context, lastEventID string, noLogin bool) (*http.Response, error) {
	header := h.headers("")
	header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		header.Set("Last-Event-ID", lastEventID)
	}
	resp, err := h.do(ctx, httpRequest{method: http.MethodGet, url: h.url, header: header, noLogin: noLogin})
	if err != nil {
		return nil, err
	}
	if err = h.checkStatus(resp, 0); err == nil && contentType(resp) != "text/event-stream" {
		err = errNotEventStream(resp)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// readNotifications reads the stream of notifications that belong to no request, until the session
// ends or the server turns out not to offer the stream. It calls opened after each
// attempt to open the stream.
func (h *streamable) readNotifications(opened func()) {
	s := &stream{}
	pause := resumePause
	for first := true; ; first = false {
		began := time.Now()
		resp, err := h.openStream(h.ctx, s.lastEventID, true)
		opened()
		switch {
		case h.ctx.Err() != nil:
			if err == nil {
				resp.Body.Close()
			}
			return
		case err == nil:
			if !first && s.lastEventID == "" {
				h.receiver.NotificationsLost()
			}
			s.progress = false
			_ = h.readStream(h.ctx, s, resp) // whatever the error, the stream is opened again
			resp.Body.Close()
		case !first && errors.Is(err, ErrSessionLost):
			h.endIfLost(err)
			return
		case notOffered(err) && s.lastEventID != "":
			s.lastEventID = "" // perhaps the server only cannot resume it
		case notOffered(err):
			return
		}
		if s.progress || time.Since(began) > stableAfter {
			pause = resumePause
		}
		if s.retry > 0 {
			pause = max(s.retry, pause)
		}
		if sleep(h.ctx, pause) != nil {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// notOffered reports whether an error means that the server offers no stream: 405 means
// that, and many servers use other statuses. 409 means that the server has not noticed
// yet that the previous stream has broken.
func notOffered(err error) bool {
	if status, ok := errors.AsType[*statusError](err); ok {
		return status.status < 500 && status.status != http.StatusConflict &&
			status.status != http.StatusTooManyRequests
	}
	_, login := errors.AsType[*UnauthorizedError](err)
	return login || errors.Is(err, ErrSessionLost)
}
