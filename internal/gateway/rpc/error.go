package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Error returns the error for the client. Errors of third-party servers and of the SDK stay
// unchanged; others become faults.
func Error(err error) *jsonrpc.Error {
	e, _ := translate(err)
	return e
}

// LoggedError is Error, and logs the cause of a fault, which clients do not see. What is the
// name of the failed call, for the log.
func LoggedError(ctx context.Context, log *slog.Logger, what string, err error) *jsonrpc.Error {
	e, f := translate(err)
	if f != nil && f.Cause != nil && f.Kind != fault.Canceled {
		log.Log(ctx, levelOf(f), "call failed", "tool", what, "fault", f.Code(), "message", f.Message, "cause", f.Cause)
	}
	return e
}

// levelOf returns the level at which a fault is logged: what its caller has to mend concerns no operator.
func levelOf(f *fault.Error) slog.Level {
	switch f.Kind {
	case fault.InvalidParameters, fault.NotFound, fault.FileAccess, fault.SessionNotFound, fault.ResourceLimit,
		fault.Unauthorized, fault.Forbidden:
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// translate returns the error for the client, and the fault that it was made of, or nil.
func translate(err error) (*jsonrpc.Error, *fault.Error) {
	if external, ok := errors.AsType[*tool.ExternalError](err); ok {
		return &jsonrpc.Error{Code: external.Code, Message: external.Message, Data: external.Data}, nil
	}
	if sdkErr, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return sdkErr, nil
	}
	f := fault.From(err)
	data, err := json.Marshal(f.Data())
	if err != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: int64(f.RPC()), Message: f.Text(), Data: data}, f
}
