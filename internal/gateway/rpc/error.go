package rpc

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Error is an error as clients are told of it: what a third-party server or the SDK
// said as it is, and anything else as a fault.
func Error(err error) *jsonrpc.Error {
	if said, ok := errors.AsType[*tool.Refusal](err); ok {
		return &jsonrpc.Error{Code: said.Code, Message: said.Message, Data: said.Data}
	}
	if said, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return said
	}
	f := fault.From(err)
	data, err := json.Marshal(f.Data())
	if err != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: int64(f.RPC()), Message: words(f), Data: data}
}

// words are what a fault is in JSON-RPC. Most clients show their users and models
// the message alone: what helps in this very case is in it too.
func words(f *fault.Error) string {
	if len(f.Advice) == 0 || strings.Contains(f.Error(), f.Advice[0]) {
		return f.Error()
	}
	return f.Error() + ". " + f.Advice[0]
}
