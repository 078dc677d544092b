package rpc

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// Error is the error for clients: that of a third-party server or of the SDK as it is, and
// any other as a fault.
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
	return &jsonrpc.Error{Code: int64(f.RPC()), Message: message(f), Data: data}
}

// message is the message of a fault in JSON-RPC. Most clients show their users and models
// nothing else, so the fault's own advice is in it too.
func message(f *fault.Error) string {
	if len(f.Advice) == 0 || strings.Contains(f.Error(), f.Advice[0]) {
		return f.Error()
	}
	return f.Error() + ". " + f.Advice[0]
}
