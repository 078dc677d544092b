package agent

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// Reason says why an agent refuses a request.
type Reason int

// The reasons that callers tell apart; Other stands for all the rest.
const (
	Other    Reason = iota
	Invalid         // the request makes no sense
	NotFound        // no such file, process or language, or nobody listens
	// the state of the file or process does not allow it: a folder where a file is needed, a file
	// that exists
	Conflict
	OutsideRoot // a path outside of the file roots
	Denied      // a file that may not be read, or not be written
	Exhausted   // a limit is reached, or the disk is full
	TimedOut    // the agent gave up waiting
	Unsupported // the agent, or the language's driver, cannot do it
)

// Refusal is the error of a request that the agent, or the client for it, refuses.
type Refusal struct {
	Reason  Reason
	Message string // printable, at most 2000 bytes
}

func (r *Refusal) Error() string { return r.Message }

// ReasonOf returns the reason of the Refusal in err's chain, and Other without one.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Reason
	}
	return Other
}

// refusal makes the error of a Connect code and its text.
func refusal(code connect.Code, message string) *Refusal {
	r := &Refusal{Message: fault.Printable(message, 2000)}
	switch code {
	case connect.CodeInvalidArgument:
		r.Reason = Invalid
	case connect.CodeNotFound:
		r.Reason = NotFound
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists:
		r.Reason = Conflict
	case connect.CodeOutOfRange:
		r.Reason = OutsideRoot
	case connect.CodePermissionDenied:
		r.Reason = Denied
	case connect.CodeResourceExhausted:
		r.Reason = Exhausted
	case connect.CodeDeadlineExceeded:
		r.Reason = TimedOut
	case connect.CodeUnimplemented:
		r.Reason = Unsupported
	}
	return r
}

// refused is the error that a reply holds.
func refused(reply *agentv1.StreamReply) error {
	return refusal(connect.Code(reply.GetCode()), reply.GetMessage())
}

// fits refuses a request that is too large to be sent: what the caller asks is at
// fault, and not the agent.
func fits(m proto.Message) error {
	if n := proto.Size(m); n > wire.MaxMessage {
		return &Refusal{Reason: Invalid, Message: fmt.Sprintf("this has %d bytes; at most %d can be given to a sandbox at once", n, wire.MaxMessage)}
	}
	return nil
}

// call makes one RPC. Its error is a Refusal, ErrProtocol, or says why there is
// no answer.
func call[Q, A any](ctx context.Context, rpc func(context.Context, *Q) (*A, error), q *Q) (*A, error) {
	if err := fits(any(q).(proto.Message)); err != nil {
		return nil, err
	}
	answer, err := rpc(ctx, q)
	var c *connect.Error
	switch {
	case err == nil:
		return answer, nil
	case errors.As(err, &c) && connect.IsWireError(err):
		return nil, refusal(c.Code(), c.Message())
	case errors.Is(err, wire.ErrMessage), connect.CodeOf(err) == connect.CodeResourceExhausted:
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return nil, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return nil, err
}
