package rpc

import (
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// errorMeta is the member of a result's _meta with what a JSON-RPC error would have: its code and its data.
const errorMeta = "sandlot/error"

// Failure is the structuredContent of a call of a known tool that failed with a fault.
type Failure struct {
	Message string `json:"message"`
	fault.Data
}

// FailedCall returns the result of a call of the known tool of that name that failed; nil: the client gets a JSON-RPC
// error. What a model could mend is a result: many clients hide errors of JSON-RPC from their models, or end the turn.
// Own: the tool is one of Sandlot's own. An outputSchema of another one need not fit to what Sandlot says.
func FailedCall(err error, name string, own bool, form toolview.Results) *mcp.CallToolResult {
	if external, ok := errors.AsType[*tool.ExternalError](err); ok {
		if external.Code != jsonrpc.CodeInvalidParams {
			return nil
		}
		text := external.Message
		if strings.TrimSpace(text) == "" { // some model providers refuse empty texts
			text = "the server's error has no text"
		}
		return failed(text, external.Code, external.Data)
	}
	if _, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return nil
	}
	f := fault.From(err)
	if f.Context["argument"] == "requestState" { // the client's own, of which models know nothing
		return nil
	}
	switch f.Kind {
	case fault.Internal, fault.Canceled, fault.Unauthorized:
		return nil
	case fault.NotFound:
		if f.Context["tool"] == fault.Clip(name) { // it was removed while the call was on its way
			return nil
		}
	}
	data := f.Data()
	text := f.Error()
	for _, advice := range data.RecoverySuggestions {
		if !strings.Contains(text, advice) {
			text += "\n- " + advice
		}
	}
	r := failed(text, int64(f.RPC()), data)
	if own && form != toolview.Text {
		r.StructuredContent = Failure{f.Error(), data}
	}
	return r
}

func failed(text string, code int64, data any) *mcp.CallToolResult {
	about := map[string]any{"code": code, "data": data}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}},
		Meta: mcp.Meta{errorMeta: about}}
}
