package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// Reason says why an agent refuses a request. It is the Connect code that the agent sent, also
// when it is none of the reasons below. Callers treat any such code like Other.
type Reason connect.Code

// The reasons that callers distinguish.
const (
	Other    Reason = 0
	Invalid         = Reason(connect.CodeInvalidArgument) // the request is invalid
	NotFound        = Reason(connect.CodeNotFound)        // no such file, process, language or listener
	// Conflict: the state of the file or process does not allow the request. For example the
	// path is a folder where a file is needed.
	Conflict    = Reason(connect.CodeFailedPrecondition)
	OutsideRoot = Reason(connect.CodeOutOfRange)        // a path outside of the file roots
	Denied      = Reason(connect.CodePermissionDenied)  // a file that may not be read, or not be written
	Exhausted   = Reason(connect.CodeResourceExhausted) // a limit is reached, or the disk is full
	TimedOut    = Reason(connect.CodeDeadlineExceeded)  // the agent waited for too long
	Changed     = Reason(connect.CodeAborted)           // a condition about a file does not hold
	Unsupported = Reason(connect.CodeUnimplemented)     // the agent, or the language's driver, cannot do it
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

// refusal returns the error for a Connect code and its text.
func refusal(code connect.Code, message string) *Refusal {
	return &Refusal{Reason(code), line(message, 2000)}
}

// refused returns the error that a reply contains.
func refused(reply *agentv1.StreamReply) error {
	return refusal(connect.Code(reply.GetCode()), reply.GetMessage())
}

// checkSize returns a Refusal when a request is too large to be sent.
func checkSize(m proto.Message) error {
	if n := proto.Size(m); n > wire.MaxMessage {
		text := fmt.Sprintf("the request has %d bytes; at most %d can be sent to a sandbox at once", n, wire.MaxMessage)
		return &Refusal{Invalid, text}
	}
	return nil
}

// AnswerTimeout is how long the agent may take to answer, beside the time that the request itself takes.
const AnswerTimeout = 15 * time.Second

// timedCall is call for a request that takes at most that time, and AnswerTimeout.
func timedCall[Q, A any](ctx context.Context, takes time.Duration, rpc func(context.Context, *Q) (*A, error),
	q *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, takes+AnswerTimeout)
	defer cancel()
	return call(ctx, rpc, q)
}

// call makes one RPC. Its error is a Refusal, ErrProtocol, or says why there is no answer.
func call[Q, A any](ctx context.Context, rpc func(context.Context, *Q) (*A, error), q *Q) (*A, error) {
	if err := checkSize(any(q).(proto.Message)); err != nil {
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
