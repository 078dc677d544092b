// Package rpc reads the gateway's JSON-RPC messages, translates errors, and encodes results.
// All parts of the gateway use it, so that their answers are the same.
package rpc

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// Object is a JSON object whose values are unchanged bytes.
type Object = map[string]json.RawMessage

// IsStateless reports whether a request that the SDK read is of the stateless protocol.
func IsStateless(req mcp.Request) bool {
	v, ok := req.(interface{ ProtocolVersion() string })
	return ok && revision.IsStateless(v.ProtocolVersion())
}

// ResultsHeader is the header in which a client asks for a form of results: see toolview.Results.
const ResultsHeader = "Sandlot-Results"

// MaxBatch is how many messages a batch can have.
const MaxBatch = 100

// BatchSizeMessage is the error message for a batch that is empty or too large.
var BatchSizeMessage = "Invalid request: a batch has between 1 and " + strconv.Itoa(MaxBatch) + " messages"

type errorObject struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// ErrorResponse returns a JSON-RPC error response. Without an id, the response has the id null.
func ErrorResponse(id json.RawMessage, code int, message string, data any) map[string]any {
	return map[string]any{"jsonrpc": "2.0", "id": idOrNull(id), "error": errorObject{code, message, data}}
}

// InvalidRequest returns the error response to a text that is not a valid request.
func InvalidRequest(message string) map[string]any {
	return ErrorResponse(nil, jsonrpc.CodeInvalidRequest, message, nil)
}

// ErrorResponseTo returns the error response to a request that failed with e.
func ErrorResponseTo(id json.RawMessage, e *jsonrpc.Error) map[string]any {
	var data any
	if len(e.Data) > 0 {
		data = e.Data
	}
	return ErrorResponse(id, int(e.Code), e.Message, data)
}

func idOrNull(id json.RawMessage) json.RawMessage {
	if len(id) == 0 {
		return json.RawMessage("null")
	}
	return id
}

// Write answers an HTTP request with one JSON value.
func Write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(JSON(v)) // an error means that the client is gone
}

// JSON encodes a value without escaping HTML characters, and adds a newline.
func JSON(v any) []byte {
	b, _ := rawjson.Encode(v) // callers pass only types that can be encoded
	return append(b, '\n')
}
