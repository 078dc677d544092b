// Package rpc is the JSON-RPC of the MCP edge: reading messages, the one translation of
// errors, and the one encoding of results.
package rpc

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// Object is a JSON object whose values stay as they came.
type Object = map[string]json.RawMessage

// IsStateless says whether a request that the SDK read is of the stateless protocol.
func IsStateless(req mcp.Request) bool {
	v, ok := req.(interface{ ProtocolVersion() string })
	return ok && revision.IsStateless(v.ProtocolVersion())
}

// MaxBatch bounds the messages of a batch.
const MaxBatch = 100

// BatchSize is the answer to a batch that is empty or too large.
var BatchSize = "Invalid request: a batch has between 1 and " + strconv.Itoa(MaxBatch) + " messages"

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// Failure is the answer to a request that failed. Without an id, the answer has null.
func Failure(id json.RawMessage, code int, message string, data any) map[string]any {
	return map[string]any{"jsonrpc": "2.0", "id": orNull(id), "error": failure{code, message, data}}
}

// Invalid is the answer to a text that is no valid request.
func Invalid(message string) map[string]any {
	return Failure(nil, jsonrpc.CodeInvalidRequest, message, nil)
}

// Failed is the answer to a request that ended with an error.
func Failed(id json.RawMessage, e *jsonrpc.Error) map[string]any {
	var data any
	if len(e.Data) > 0 {
		data = e.Data
	}
	return Failure(id, int(e.Code), e.Message, data)
}

func orNull(id json.RawMessage) json.RawMessage {
	if len(id) == 0 {
		return json.RawMessage("null")
	}
	return id
}

// Write answers with one JSON value.
func Write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(JSON(v)) // the client went away
}

// JSON encodes a value, with a newline, without escapes for HTML.
func JSON(v any) []byte {
	b, _ := rawjson.Encode(v) // only encodable types get here
	return append(b, '\n')
}

// Recover turns a panic into a fault, for goroutines in which a panic would end the whole
// server. It must be deferred directly.
func Recover(ctx context.Context, log *slog.Logger, what string, err *error) {
	r := recover()
	if r == nil {
		return
	}
	log.ErrorContext(ctx, "panic", "in", what, "panic", r, "stack", string(debug.Stack()))
	*err = fault.New(fault.Internal, "something went wrong inside Sandlot")
}
