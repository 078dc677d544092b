package toolcall

import (
	"context"
	"encoding/json"
	"strconv"
)

// writeLarge is writeResult for a result for whose memory others may wait: lost ends when the program may take no
// longer to read it; nil: the result is not one of those. The connection is closed in the middle of the answer then.
func (c *conn) writeLarge(ctx context.Context, raw json.RawMessage, lost context.Context) bool {
	if lost == nil {
		return c.writeResult(ctx, raw)
	}
	if lost.Err() != nil {
		return c.write(ctx, answer{Error: &answerError{Code: codeTooLarge, Message: "the result, " +
			strconv.Itoa(len(raw)) + " bytes, was given up: " + context.Cause(lost).Error()}})
	}
	defer context.AfterFunc(lost, func() { c.net.Close() })()
	return c.writeResult(ctx, raw)
}
