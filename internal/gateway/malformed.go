package gateway

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
)

// The protocol has batches up to the revision before this one.
const batchlessFrom = "2025-06-18"

// maxBatch is how many messages a batch may have.
const maxBatch = 100

var batchSize = "Invalid request: a batch has between 1 and " + strconv.Itoa(maxBatch) + " messages"

// malformed returns what is to be answered to JSON that is no message, or none that
// can be answered under its id; the SDK says it in words that are no JSON-RPC.
func malformed(m message, r *http.Request, body []byte) any {
	if m.plain && isID(m.ID) && !nested(body) {
		return nil // it was read
	}
	body = bytes.TrimSpace(body)
	if body[0] == '[' {
		if r.Header.Get("Mcp-Protocol-Version") < batchlessFrom {
			var all []json.RawMessage
			if json.Unmarshal(body, &all) == nil && len(all) > maxBatch {
				return rpcError(nil, jsonrpc.CodeInvalidRequest, batchSize, nil)
			}
			return nil // the SDK knows what was agreed on
		}
		return rpcError(nil, jsonrpc.CodeInvalidRequest, "Invalid request: batches are not part of this protocol; send one message at a time", nil)
	}
	one, wrong := decode(body)
	if q, ok := one.(*jsonrpc.Request); ok && !q.IsCall() && !strings.HasPrefix(q.Method, "notifications/") {
		return rpcError(nil, jsonrpc.CodeInvalidRequest, "Invalid request: "+strconv.Quote(fault.Clip(q.Method))+" needs an id, a string or a whole number", nil)
	}
	return wrong
}

// decode reads a message, as the SDK will. Wrong is what is to be answered to what is
// none.
func decode(raw json.RawMessage) (_ jsonrpc.Message, wrong any) {
	m, err := jsonrpc.DecodeMessage(raw)
	switch {
	case !whole(raw):
		return nil, rpcError(nil, jsonrpc.CodeInvalidRequest, "Invalid request: id must be a string or a whole number of at most 2^53", nil)
	case err != nil:
		return nil, rpcError(idOf(raw), jsonrpc.CodeInvalidRequest, "Invalid request: no JSON-RPC 2.0 message, or one that is nested too deep", nil)
	}
	return m, nil
}

// whole says whether the SDK answers under the id that a message has: it takes
// numbers for whole ones.
func whole(raw json.RawMessage) bool {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(raw, &m) != nil || len(m.ID) == 0 || m.ID[0] == '"' || string(m.ID) == "null" {
		return true
	}
	n, err := strconv.ParseFloat(string(m.ID), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) <= 1<<53
}
