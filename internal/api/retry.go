package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sandlot/internal/api/openapi"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/once"
)

const (
	idempotencyReplayed = "Idempotency-Replayed" // a header: true in an answer that was stored

	// startMargin is how much older than the first request a server has to be to know that it never got it.
	startMargin = 30 * time.Second
	maxAge      = 1e13 - 1 // milliseconds

	maxKey      = 255 // bytes of an idempotency key
	plainKey    = `^[!-~]+$`
	keyProblems = "; send the same request with the same key, and a new key with another request"
)

// retryable reports whether requests to a route may have an idempotency key: it is a POST, no stream, and no log-in,
// whose answers are kept nowhere.
func retryable(pattern string) bool {
	method, _ := openapi.SplitPattern(pattern)
	_, stream := descriptions()[pattern].Answers[http.StatusSwitchingProtocols]
	return method == http.MethodPost && !stream && !ofConsole(pattern)
}

// describeRetries adds to the description of a route that requests may have an idempotency key.
func describeRetries(d openapi.Description) openapi.Description {
	key := openapi.Length(1, maxKey)
	key.Pattern = plainKey
	d.Parameters = append(slices.Clone(d.Parameters), openapi.RequestHeader(protocol.IdempotencyKey,
		"A second request with the same key within ten minutes does nothing, and gets the first one's answer.",
		key), openapi.RequestHeader(protocol.IdempotencyAge, "For a client that sends a request again: how many "+
		"milliseconds ago it sent the first one. A server that has no answer for the key, and cannot have one because "+
		"it started later, does nothing and answers 409.", openapi.Text("^[0-9]{1,13}$")))
	d.Errors = append(slices.Clone(d.Errors), http.StatusBadRequest, http.StatusConflict,
		http.StatusUnprocessableEntity)
	return d
}

// storedAnswer is the answer to a request with an idempotency key.
type storedAnswer struct {
	status int
	header http.Header
	body   bytes.Buffer
	trail  hub.Trail // what the request asked policy

	reserved *limit.Reservation // memory of the request while it runs; nil: it counts against no limit
}

// Header, WriteHeader and Write implement http.ResponseWriter.
func (a *storedAnswer) Header() http.Header { return a.header }

func (a *storedAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *storedAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

func answerSize(a *storedAnswer) int {
	if a == nil {
		return 0
	}
	return a.body.Len() + a.trail.Size() + 1<<10
}

// nothingDone reports whether an answer says that the request was refused before it did anything.
func nothingDone(a *storedAnswer) bool {
	return a.status >= 400 && a.status < 500 || a.status == http.StatusServiceUnavailable
}

// newReplies returns the store for answers to requests with an idempotency key.
func newReplies(watch *auth.TokenWatch) *once.Replies[*storedAnswer] {
	return once.New(once.Config[*storedAnswer]{TokenContext: watch.TokenContext, Size: answerSize, Undone: nothingDone})
}

// onlyOnce serves requests with an idempotency key: the first one runs, and later ones get its answer, as long
// as policy allows it. An answer is only for the principal with the same rights: a token does not get what another one
// was answered, unless both are JWTs of the same user with the same roles and scope.
func (s *Server) onlyOnce(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, given := r.Header[protocol.IdempotencyKey]
		if _, again := r.Header[protocol.IdempotencyAge]; !given && !again {
			next(w, r)
			return
		}
		q, body, err := onceRequest(w, r)
		var age time.Duration
		if err == nil {
			age, err = requestAge(r)
		}
		if err != nil {
			s.problem(w, r, err)
			return
		}
		replayed := true
		a, err := s.replies.Do(r.Context(), q, func(ctx context.Context) (*storedAnswer, error) {
			replayed = false
			a := &storedAnswer{header: http.Header{}}
			if err := s.checkAge(age); err != nil {
				s.problem(a, r, err)
				return a, nil
			}
			if owner, limited := ctx.Value(limitKey{}).(string); limited {
				a.reserved = s.Limits.NewReservation(owner, limit.AnswerBytes)
				defer a.reserved.Release()
			}
			again := r.Clone(hub.WithTrail(ctx, &a.trail))
			again.Body = io.NopCloser(bytes.NewReader(body))
			next(a, again)
			return a, nil
		})
		switch {
		case errors.Is(err, once.ErrOtherInput):
			err = wrongRequest(http.StatusUnprocessableEntity, protocol.KeyReused,
				"the Idempotency-Key was used with another request"+keyProblems)
		case errors.Is(err, once.ErrRunning):
			w.Header().Set("Retry-After", "1")
			err = wrongRequest(http.StatusConflict, protocol.KeyInUse,
				"the first request with this Idempotency-Key is still running; try again in a moment")
		case err == nil:
			if replayed {
				err = s.Hub.Replay(r.Context(), q.Principal, &a.trail)
			}
			if err == nil {
				err = a.send(w, replayed)
			}
		}
		if err != nil {
			s.problem(w, r, err)
		}
	}
}

// requestAge returns how long ago the first request with the key of r was sent; 0: r is that one.
func requestAge(r *http.Request) (time.Duration, error) {
	given := r.Header[protocol.IdempotencyAge]
	if len(given) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(given[0], 10, 64)
	if err != nil || len(given) > 1 || given[0][0] < '0' || n > maxAge {
		return 0, fault.Argument(protocol.IdempotencyAge, "%s is %q, but must be a number of milliseconds",
			protocol.IdempotencyAge, fault.Clip(given[0]))
	}
	return time.Duration(min(n, once.Lifetime.Milliseconds())) * time.Millisecond, nil
}

// checkAge returns an error for a repeated request whose first one may have run although its answer is not stored:
// answers do not outlive the server, nor their lifetime.
func (s *Server) checkAge(age time.Duration) error {
	if age == 0 || age < once.Lifetime && time.Since(s.began) >= age+startMargin {
		return nil
	}
	return wrongRequest(http.StatusConflict, protocol.KeyLost, "the answers of the time when this request was first "+
		"sent are gone, and nobody can tell whether it was done; look at what is there, and use a new key")
}

// onceRequest reads the key and the body of a request.
func onceRequest(w http.ResponseWriter, r *http.Request) (q once.Request, body []byte, err error) {
	keys := r.Header[protocol.IdempotencyKey]
	valid := len(keys) == 1 && len(keys[0]) >= 1 && len(keys[0]) <= maxKey
	for i := 0; valid && i < len(keys[0]); i++ {
		valid = keys[0][i] > ' ' && keys[0][i] <= '~'
	}
	if !valid {
		return q, nil, fault.Argument(protocol.IdempotencyKey, "%s must be there once, with 1 to %d characters of "+
			"ASCII, without spaces", protocol.IdempotencyKey, maxKey)
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, protocol.MaxKeyed))
	if f, ok := errors.AsType[*fault.Error](err); ok { // from body.Read
		closeAfter(w, f)
		return q, nil, f
	}
	if err != nil {
		return q, nil, fault.Wrap(fault.InvalidParameters, err, "a body with %s has at most %d bytes: %v",
			protocol.IdempotencyKey, protocol.MaxKeyed, err)
	}
	p, _ := auth.FromContext(r.Context())
	rights := p
	if !p.Expires.IsZero() { // a JWT, which clients renew between their tries; names may differ from one to the next
		rights = p.Rights()
	}
	input := fmt.Appendf(nil, "%s %s\n%s\n", r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"))
	held, _ := r.Context().Value(heldKey{}).(*once.Shared)
	return once.Request{Principal: p, Name: fmt.Sprintf("http %+v", rights), Key: keys[0], NoWait: true,
		Hold: held.Hold, Input: append(input, body...)}, body, nil
}

// send sends the answer to a client.
func (a *storedAnswer) send(w http.ResponseWriter, replayed bool) error {
	if err := reservedFor(w).CountAnswer(context.Background(), int64(a.body.Len())); err != nil {
		return err
	}
	for name, values := range a.header {
		w.Header()[name] = slices.Clone(values)
	}
	if replayed {
		w.Header().Set(idempotencyReplayed, "true")
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	_, _ = w.Write(a.body.Bytes()) // fails when the client is gone
	return nil
}

// Close cancels the requests with an idempotency key whose clients have disconnected, and waits for them.
func (s *Server) Close() { s.replies.Close() }
