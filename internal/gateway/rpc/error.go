package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Error is the error for clients: that of a third-party server or of the SDK as it is, and
// any other as a fault.
func Error(err error) *jsonrpc.Error {
	e, _ := translate(err)
	return e
}

// Fail is Error, and logs a fault with its cause, which clients are not told. What names
// the failed call.
func Fail(ctx context.Context, log *slog.Logger, what string, err error) *jsonrpc.Error {
	e, f := translate(err)
	if f != nil && f.Cause != nil && f.Kind != fault.Canceled {
		log.WarnContext(ctx, "call failed", "tool", what, "fault", f.Code(), "message", f.Message, "cause", f.Cause)
	}
	return e
}

// translate returns the error for clients, and the fault of which it was made, if any.
func translate(err error) (*jsonrpc.Error, *fault.Error) {
	if said, ok := errors.AsType[*tool.Refusal](err); ok {
		return &jsonrpc.Error{Code: said.Code, Message: said.Message, Data: said.Data}, nil
	}
	if said, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return said, nil
	}
	f := fault.From(err)
	data, err := json.Marshal(f.Data())
	if err != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: int64(f.RPC()), Message: message(f), Data: data}, f
}

// message is the message of a fault in JSON-RPC. Most clients show their users and models
// nothing else, so the fault's own advice is in it too.
func message(f *fault.Error) string {
	if len(f.Advice) == 0 || strings.Contains(f.Error(), f.Advice[0]) {
		return f.Error()
	}
	return f.Error() + ". " + f.Advice[0]
}
