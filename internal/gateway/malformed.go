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

// malformed returns the answer to a body that is not a valid message, or whose id an answer
// cannot repeat; nil: it is valid. The SDK would answer such a body with plain text and not
// with JSON-RPC.
func malformed(m rpc.Message, r *http.Request, body []byte) any {
	if m.Plain && rpc.IsID(m.ID) && !rpc.Nested(body) {
		return nil // rpc.Read has checked everything already
	}
	if wrong := rpc.Unparsable(body); wrong != nil {
		return wrong
	}
	body = bytes.TrimSpace(body)
	if body[0] == '[' {
		if revision.HasBatches(r.Header.Get("Mcp-Protocol-Version")) {
			var all []json.RawMessage
			if json.Unmarshal(body, &all) == nil && len(all) > rpc.MaxBatch {
				return rpc.Invalid(rpc.BatchSize)
			}
			return nil // the SDK checks it against the session's revision
		}
		return rpc.Invalid("Invalid request: batches are not part of this protocol; send one message at a time")
	}
	one, wrong := rpc.Decode(body)
	if q, ok := one.(*jsonrpc.Request); ok && !q.IsCall() && !strings.HasPrefix(q.Method, "notifications/") {
		return rpc.Invalid("Invalid request: " + strconv.Quote(fault.Clip(q.Method)) +
			" needs an id, a string or a whole number")
	}
	return wrong
}

func bytesText(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
