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
	"sandlot/internal/console"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/once"
)

// limitKey is the context key of the principal's id, against whose limits a request counts.
// Requests over the owner's socket have none, and count against no limit.
type limitKey struct{}

// heldKey is the context key of what a request holds of its principal's limits: a run with an idempotency key holds it
// until it ends, though its client may leave before.
type heldKey struct{}

// acquire counts one more of a kind against the limit of the request's principal.
func (s *Server) acquire(ctx context.Context, k limit.Kind) (release func(), err error) {
	owner, limited := ctx.Value(limitKey{}).(string)
	if !limited {
		return func() {}, nil
	}
	return s.Limits.Acquire(owner, k, 1)
}

// withinLimits serves a request within the limits of its principal. The request ends with its
// token, and when no byte of its body or response moves for conn.Stall.
func (s *Server) withinLimits(next http.Handler, w http.ResponseWriter, r *http.Request, p auth.Principal) {
	ctx, release := s.untilTokenEnds(context.WithValue(auth.NewContext(r.Context(), p), limitKey{}, p.ID), p)
	defer release()
	defer context.AfterFunc(ctx, func() { endWithToken(ctx, w) })()
	done, err := s.acquire(ctx, limit.Requests)
	if err != nil {
		s.limitExceeded(w, r, err)
		return
	}
	end := done
	defer conn.MarkServing(r)()
	if sw, ok := w.(*statusWriter); ok {
		sw.reserved = s.Limits.NewReservation(p.ID, limit.AnswerBytes)
		defer sw.reserved.Release()
	}
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body, began: time.Now(), control: http.NewResponseController(w), ctx: ctx,
			reserved: s.Limits.NewReservation(p.ID, limit.RequestBytes)}
		end = func() { b.reserved.Release(); done() }
		r.Body = b
	}
	held := once.NewShared(end)
	defer held.Release()
	r = r.WithContext(context.WithValue(ctx, heldKey{}, held))
	next.ServeHTTP(w, r)
}

// untilTokenEnds returns a context that ends with the token of a principal. A log-in at a provider ends by itself, whose end
// moves while the provider vouches for it.
func (s *Server) untilTokenEnds(ctx context.Context, p auth.Principal) (context.Context, func()) {
	if x, ok := ctx.Value(loginKey{}).(*console.Login); ok && x.Watched() {
		return ctx, func() {}
	}
	return s.TokenWatch.TokenContext(ctx, p)
}

// reservedFor returns the reservation of memory for a response; nil: it counts against no limit.
func reservedFor(w http.ResponseWriter) *limit.Reservation {
	switch w := w.(type) {
	case *statusWriter:
		return w.reserved
	case *storedAnswer:
		return w.reserved
	}
	return nil
}

// endWithToken ends a request whose token has ended, whatever it waits for. A handler that has
// written nothing yet has a second to send the error.
func endWithToken(ctx context.Context, w http.ResponseWriter) {
	if !errors.Is(context.Cause(ctx), auth.ErrEnded) {
		return
	}
	if sw, ok := w.(*statusWriter); ok {
		sw.endAt(time.Now().Add(time.Second))
	}
}

// body is the body of a request. A read takes at most conn.Stall. A body that is read into memory counts
// against its principal's limit until the response ends, and must arrive at minBodyRate at least.
type body struct {
	io.ReadCloser
	began      time.Time
	control    *http.ResponseController
	ctx        context.Context
	reserved   *limit.Reservation
	unbuffered bool // it is not read into memory, and counts against no limit
	ended      bool
}

// A body that is read into memory must arrive within bodyTimeout plus a second for each minBodyRate bytes.
const bodyTimeout, minBodyRate = 10 * time.Minute, 1 << 10

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if !b.unbuffered && !b.ended {
		available, err := b.reserved.Available()
		if err != nil {
			return 0, err
		}
		p = p[:min(int64(len(p)), available)]
	}
	until := time.Now().Add(conn.Stall)
	deadline := b.began.Add(bodyTimeout + time.Duration(b.reserved.Used()/minBodyRate)*time.Second)
	if !b.unbuffered && deadline.Before(until) {
		until = deadline
	}
	b.setReadDeadline(until)
	n, err := b.ReadCloser.Read(p)
	if !b.unbuffered {
		_ = b.reserved.Add(int64(n)) // n is at most what Available returned
	}
	if err != nil {
		b.ended = true
		b.setReadDeadline(time.Time{}) // else the connection would end while the handler runs
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.Wrap(fault.InvalidParameters, err, "nothing of the request came for %v, or it came too slowly",
			conn.Stall)
	}
	return n, err
}

func (b *body) setReadDeadline(until time.Time) {
	if context.Cause(b.ctx) == nil {
		_ = b.control.SetReadDeadline(until) // fails for the recorders of tests
	}
}

// markUnbuffered marks the body of a request as one that is not read into memory.
func markUnbuffered(r *http.Request) {
	if b, ok := r.Body.(*body); ok {
		b.unbuffered = true
	}
}
