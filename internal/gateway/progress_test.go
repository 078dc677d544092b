package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/tool"
)

// The notifications of a call come before its result, in order.
func TestProgressComesBeforeTheResult(t *testing.T) {
	const said = 40
	g := newGateway(&fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
			for i := range said {
				c.Client.Notify("notifications/progress",
					json.RawMessage(fmt.Sprintf(`{"progress":%d,"message":"p%d."}`, i, i)))
			}
			return &tool.Result{Raw: json.RawMessage(`{"content":[{"type":"text","text":"result"}]}`)}, nil
		}})
	id := begin(t, g, local)
	w := post(g, local, id, callOf("2", "ext_t", `{},"_meta":{"progressToken":"x"}`))
	at := 0
	for i := range said + 1 {
		word := fmt.Sprintf(`"p%d."`, i)
		if i == said {
			word = `"result"`
		}
		n := strings.Index(w.Body.String()[at:], word)
		if n < 0 {
			t.Fatalf("no %s after byte %d of %s", word, at, w.Body)
		}
		at += n
	}
}
