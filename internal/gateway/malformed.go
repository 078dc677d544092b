package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/revision"
)

// malformed returns what is to be answered to JSON that is no message, or none that
// can be answered under its id; the SDK says it in words that are no JSON-RPC.
func malformed(m rpc.Message, r *http.Request, body []byte) any {
	if m.Plain && rpc.IsID(m.ID) && !rpc.Nested(body) {
		return nil // it was read
	}
	body = bytes.TrimSpace(body)
	if body[0] == '[' {
		if revision.HasBatches(r.Header.Get("Mcp-Protocol-Version")) {
			var all []json.RawMessage
			if json.Unmarshal(body, &all) == nil && len(all) > rpc.MaxBatch {
				return rpc.Failure(nil, jsonrpc.CodeInvalidRequest, rpc.BatchSize, nil)
			}
			return nil // the SDK knows what was agreed on
		}
		return rpc.Failure(nil, jsonrpc.CodeInvalidRequest, "Invalid request: batches are not part of this protocol; send one message at a time", nil)
	}
	one, wrong := rpc.Decode(body)
	if q, ok := one.(*jsonrpc.Request); ok && !q.IsCall() && !strings.HasPrefix(q.Method, "notifications/") {
		return rpc.Failure(nil, jsonrpc.CodeInvalidRequest, "Invalid request: "+strconv.Quote(fault.Clip(q.Method))+" needs an id, a string or a whole number", nil)
	}
	return wrong
}

func bytesText(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
