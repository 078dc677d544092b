package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandlot/internal/revision"
)

const (
	maxResumes  = 5 // in a row of one stream, without anything new
	resumePause = time.Second
	longestHear = time.Minute
	steadyHear  = 10 * time.Second // a stream that has lived so long has not failed
)

// stream is what is known of one stream of events.
type stream struct {
	id       int64 // of the request whose answer ends it; 0: none
	last     string
	retry    time.Duration
	fresh    bool // something new came since it was opened
	answered bool
}

// read takes events until the stream ends, or its request is answered.
func (h *httpPipe) read(ctx context.Context, s *stream, resp *http.Response) error {
	r := newEventReader(resp.Body, h.most)
	r.wants = func() (Room, func(), error) { return wait(ctx, h.room, h.most, func() { resp.Body.Close() }) }
	for {
		e, err := r.next()
		if r.retry > 0 {
			s.retry = r.retry
		}
		if err != nil {
			return err
		}
		if err := h.take(s, e); err != nil {
			return err
		}
		if s.answered {
			drain(resp.Body)
			return nil
		}
	}
}

func (h *httpPipe) take(s *stream, e event) error {
	if len(e.data) > 0 && (e.name == "" || e.name == "message") {
		answered, ok := h.to.receive(e.data, e.room)
		switch {
		case !ok && e.cut:
			return errors.New("the stream ended in the middle of an event")
		case s.id != 0 && answered == s.id:
			s.answered = true
		}
		s.fresh = true
	} else {
		e.room.Release()
	}
	if e.hasID && e.id != s.last {
		s.last, s.fresh = e.id, true
	}
	return nil
}

// follow takes the stream that answers a request. When it breaks in the older
// era, it is taken up where it broke, if the server has said by ids of events
// that it can do that.
func (h *httpPipe) follow(ctx context.Context, m outgoing, resp *http.Response) error {
	s := &stream{id: m.id}
	tries := 0
	for {
		err := h.read(ctx, s, resp)
		resp.Body.Close()
		switch {
		case s.answered:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrTooLarge), isCrowded(err):
			return err
		case s.last == "" || revision.IsStateless(m.version):
			return fmt.Errorf("the server ended its stream before it had answered %s (%v)", clip(m.method, 100), err)
		}
		if tries++; s.fresh {
			tries = 1
		}
		if resp, err = h.resume(ctx, s, &tries); errors.Is(err, ErrLost) {
			h.lose(err)
			return fmt.Errorf("%w: %s was on its way (%v)", ErrClosed, clip(m.method, 100), err) // not to be repeated
		} else if err != nil {
			return err
		}
		s.fresh = false
	}
}

func isCrowded(err error) bool {
	_, ok := errors.AsType[crowded](err)
	return ok
}

// resume opens a stream again.
func (h *httpPipe) resume(ctx context.Context, s *stream, tries *int) (*http.Response, error) {
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
		resp, err := h.get(ctx, s.last, false)
		var away *unreachable
		var status *statusError
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &away), errors.As(err, &status) && status.status >= 500:
			*tries++
			pause *= 2
		default:
			return nil, err
		}
	}
}

// get opens a stream; after is the last event that came on it.
func (h *httpPipe) get(ctx context.Context, after string, quiet bool) (*http.Response, error) {
	header := h.headers("")
	header.Set("Accept", "text/event-stream")
	if after != "" {
		header.Set("Last-Event-ID", after)
	}
	resp, err := h.remote.do(ctx, ask{method: http.MethodGet, url: h.remote.url, header: header, quiet: quiet})
	if err != nil {
		return nil, err
	}
	if err := h.refused(resp, 0); err != nil {
		resp.Body.Close()
		return nil, err
	}
	if t := contentType(resp); t != "text/event-stream" {
		resp.Body.Close()
		return nil, &statusError{status: resp.StatusCode, said: fmt.Sprintf("not a stream of events, but %q",
			clip(t, 100))}
	}
	return resp, nil
}

// hear takes what the server of the older era says unasked, for as long as the
// session lives. Servers need not offer that. It says when that is known.
func (h *httpPipe) hear(known func()) {
	s := &stream{}
	pause := resumePause
	for first := true; ; first = false {
		began := time.Now()
		resp, err := h.get(h.ctx, s.last, true)
		known()
		switch {
		case h.ctx.Err() != nil:
			if err == nil {
				resp.Body.Close()
			}
			return
		case err == nil:
			if !first && s.last == "" {
				h.to.missed()
			}
			s.fresh = false
			_ = h.read(h.ctx, s, resp) // however it ends, it is opened again
			resp.Body.Close()
		case !first && errors.Is(err, ErrLost):
			h.lose(err)
			return
		case unwanted(err) && s.last != "":
			s.last = "" // it may only not be able to go on where it was
		case unwanted(err):
			return
		}
		if s.fresh || time.Since(began) > steadyHear {
			pause = resumePause
		}
		if s.retry > 0 {
			pause = max(s.retry, pause)
		}
		if sleep(h.ctx, pause) != nil {
			return
		}
		pause = min(2*pause, longestHear)
	}
}

// unwanted says whether a server does not offer a stream: 405 says so, and many
// say it in another way. 409 says that it has not noticed that the one before
// has broken.
func unwanted(err error) bool {
	var status *statusError
	var login *ErrUnauthorized
	if errors.As(err, &status) {
		return status.status < 500 && status.status != http.StatusConflict &&
			status.status != http.StatusTooManyRequests
	}
	return errors.As(err, &login) || errors.Is(err, ErrLost)
}

// sleep waits, unless the context ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
