package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
)

// holder is in the context of a request that counts for its principal. What comes
// over the owner's socket does not.
type holder struct{}

// hold takes one of a kind for the principal of a request.
func (s *Server) hold(ctx context.Context, k limit.Kind) (release func(), err error) {
	owner, counts := ctx.Value(holder{}).(string)
	if !counts {
		return func() {}, nil
	}
	return s.Limits.Acquire(owner, k, 1)
}

// counted lets a request in when its principal has not too many already. All that
// it holds ends with the token, and when nothing moves for a minute.
func (s *Server) counted(next http.Handler, w http.ResponseWriter, r *http.Request, p auth.Principal) {
	ctx, release := s.Watch.TokenContext(context.WithValue(auth.NewContext(r.Context(), p), holder{}, p.ID), p)
	defer release()
	defer context.AfterFunc(ctx, func() { cut(ctx, w) })()
	done, err := s.hold(ctx, limit.Requests)
	if err != nil {
		s.busy(w, r, err)
		return
	}
	defer done()
	defer conn.Serve(r)()
	r = r.WithContext(ctx)
	if sw, ok := w.(*statusWriter); ok {
		sw.held = s.Limits.NewReservation(p.ID, limit.AnswerBytes)
		defer sw.held.Release()
	}
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body, began: time.Now(), control: http.NewResponseController(w), ctx: ctx,
			held: s.Limits.NewReservation(p.ID, limit.RequestBytes)}
		defer b.held.Release()
		r.Body = b
	}
	next.ServeHTTP(w, r)
}

// heldBy is what an answer holds of its principal's bytes; nil: it does not count.
func heldBy(w http.ResponseWriter) *limit.Reservation {
	if sw, ok := w.(*statusWriter); ok {
		return sw.held
	}
	return nil
}

// cut ends a request that lasts longer than its token, whatever it waits for. There
// is a moment to say so, where nothing was answered.
func cut(ctx context.Context, w http.ResponseWriter) {
	if !errors.Is(context.Cause(ctx), auth.ErrEnded) {
		return
	}
	if sw, ok := w.(*statusWriter); ok {
		sw.end(time.Now().Add(time.Second))
	}
}

// body is that of a request: each read has a minute. What is kept of it in memory
// counts for its principal until the answer, and comes at slowestBody at least.
type body struct {
	io.ReadCloser
	began   time.Time
	control *http.ResponseController
	ctx     context.Context
	held    *limit.Reservation
	streams bool // nothing of it is kept, or counts
	ended   bool
}

// A body that is kept in memory has bodyLimit, and a second for each slowestBody bytes.
const bodyLimit, slowestBody = 10 * time.Minute, 1 << 10

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if !b.streams && !b.ended {
		room, err := b.held.Available()
		if err != nil {
			return 0, err
		}
		p = p[:min(int64(len(p)), room)]
	}
	until := time.Now().Add(conn.Stall)
	whole := b.began.Add(bodyLimit + time.Duration(b.held.Used()/slowestBody)*time.Second)
	if !b.streams && whole.Before(until) {
		until = whole
	}
	b.allow(until)
	n, err := b.ReadCloser.Read(p)
	if !b.streams {
		_ = b.held.Add(int64(n)) // there was room
	}
	if err != nil {
		b.ended = true
		b.allow(time.Time{}) // else the connection would end while the answer is made
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.Wrap(fault.InvalidParameters, err, "nothing of the request came for %v, or it came too slowly",
			conn.Stall)
	}
	return n, err
}

func (b *body) allow(until time.Time) {
	if context.Cause(b.ctx) == nil {
		_ = b.control.SetReadDeadline(until) // tests have none
	}
}

// streamed is for bodies of which nothing is kept.
func streamed(r *http.Request) {
	if b, ok := r.Body.(*body); ok {
		b.streams = true
	}
}
