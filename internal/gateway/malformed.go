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
	if m.Unambiguous && rpc.IsID(m.ID) && !rpc.MayNestDeeply(body) {
		return nil // rpc.Read has checked everything already
	}
	if errorAnswer := rpc.ParseError(body); errorAnswer != nil {
		return errorAnswer
	}
	body = bytes.TrimSpace(body)
	if body[0] == '[' {
		if revision.HasBatches(r.Header.Get("Mcp-Protocol-Version")) {
			var all []json.RawMessage
			if json.Unmarshal(body, &all) == nil && len(all) > rpc.MaxBatch {
				return rpc.InvalidRequest(rpc.BatchSizeMessage)
			}
			return nil // the SDK checks it against the session's revision
		}
		return rpc.InvalidRequest("Invalid request: batches are not part of this protocol; send one message at a time")
	}
	message, errorAnswer := rpc.Decode(body)
	if q, ok := message.(*jsonrpc.Request); ok && !q.IsCall() && !strings.HasPrefix(q.Method, "notifications/") {
		return rpc.InvalidRequest("Invalid request: " + strconv.Quote(fault.Clip(q.Method)) +
			" needs an id, a string or a whole number")
	}
	return errorAnswer
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
