package rpc

import (
	"encoding/json"
	"testing"

	"sandlot/internal/tool"
)

// Programs take the first block for the output: the notice comes after it, in both forms, and each time the result is
// encoded.
func TestNoticeComesLast(t *testing.T) {
	r := &tool.Result{Content: []tool.Content{tool.Text("out"), tool.Text("value")}, Notice: "was asleep", Summary: "session_id: s"}
	for range 2 {
		b, err := json.Marshal(Result(r).Content)
		if want := `[{"type":"text","text":"out"},{"type":"text","text":"value"},{"type":"text","text":"was asleep"},` +
			`{"type":"text","text":"session_id: s"}]`; err != nil || string(b) != want {
			t.Errorf("MCP: %s, %v", b, err)
		}
		b, err = json.Marshal(FlatResult(r)["content"])
		if want := `[{"text":"out","type":"text"},{"text":"value","type":"text"},{"text":"was asleep","type":"text"}]`; err != nil ||
			string(b) != want {
			t.Errorf("flat: %s, %v", b, err)
		}
	}
}
