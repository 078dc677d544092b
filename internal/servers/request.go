package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// request makes one request of a client, and starts the server if it does not run. If the server has
// lost its session, it makes the request once more in a new one.
func (s *server) request(ctx context.Context, r *instance.Request) (json.RawMessage, error) {
	raw, err := s.requestOnce(ctx, r)
	if errors.Is(err, transport.ErrSessionLost) {
		return s.requestOnce(ctx, r)
	}
	return raw, err
}

func (s *server) requestOnce(ctx context.Context, r *instance.Request) (json.RawMessage, error) {
	slow := time.AfterFunc(time.Second, func() { r.Starting(s.Name) })
	l, release, err := s.use(ctx)
	slow.Stop()
	if err != nil {
		return nil, err
	}
	defer release()
	raw, took, err := l.Call(ctx, r, s.record().Elicits)
	if r.Method == "tools/call" && ctx.Err() == nil && !catalog.AsksInput(raw) { // else nobody would be told
		r.Refused = append(r.Refused, l.Refusals(ctx)...)
	}
	if err != nil {
		return nil, s.callFault(l, err)
	}
	s.worked(took)
	return raw, nil
}

// callFault returns the fault for a call that was not answered.
func (s *server) callFault(l *instance.Instance, err error) error {
	var f *fault.Error
	var answered *transport.Error
	var invalid *transport.InvalidAnswerError
	switch {
	case errors.As(err, &invalid):
		return s.fault(fault.Connection, err, "gave an answer that is not valid MCP: %s",
			spec.SafeText(invalid.Error(), 500))
	case errors.As(err, &answered):
		data := answered.Data
		if len(data) > limit.LargeAnswer { // no reservation counts errors
			data = nil
		}
		return &tool.ExternalError{Code: answered.Code, Message: spec.SafeText(answered.Message, 4000), Data: data}
	case errors.As(err, &f):
		return s.withAdvice(f)
	case errors.Is(err, transport.ErrSessionLost):
		<-l.Session.Done()
		s.Exited(l)
		return fmt.Errorf("%w: %w", transport.ErrSessionLost,
			s.fault(fault.Connection, err, "has forgotten its session"))
	case errors.Is(err, context.Canceled):
		return fault.From(context.Canceled)
	case errors.Is(err, transport.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return s.fault(fault.Connection, err,
			"did not answer within %s of its last sign of life; the call was cancelled", l.CallLimit())
	case errors.Is(err, transport.ErrTooLarge), errors.Is(err, transport.ErrSlow):
		return s.fault(fault.Connection, err, "sent an answer that is too large or too slow: %v", err)
	}
	select {
	case <-l.Session.Done():
		how, byItself := l.ExitReason(process.ExitGrace)
		if byItself {
			s.Exited(l) // so that the next call starts it again, however soon it comes
			return s.fault(fault.Connection, err, "ended during the call: %s. It is started again when it is used", how)
		}
		return s.fault(fault.Connection, err,
			"cannot be reached: the connection to it ended during the call. The next call connects again")
	default:
	}
	return s.fault(fault.Connection, err, "did not get the request: %s", spec.SafeText(err.Error(), 500))
}
