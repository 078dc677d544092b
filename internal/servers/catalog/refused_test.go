package catalog

import (
	"encoding/json"
	"testing"
)

// TestWithRefused: what a server was refused follows what it says, and its own data stay as they are.
func TestWithRefused(t *testing.T) {
	hosts := []map[string]any{{"host": "a.example", "port": 443}}
	for result, want := range map[string]string{
		`{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":1},"isError":true}`: `{"_meta":` +
			`{"sandlot/network_refused":[{"host":"a.example","port":443}]},"content":[{"type":"text","text":"x"},` +
			`{"text":"refused","type":"text"}],"isError":true,"structuredContent":{"a":1}}`,
		`{"content":[],"_meta":{"own":"1"}}`: `{"_meta":{"own":"1","sandlot/network_refused":` +
			`[{"host":"a.example","port":443}]},"content":[{"text":"refused","type":"text"}]}`,
		`7`: `7`,
	} {
		if got := WithRefused(json.RawMessage(result), "refused", hosts); string(got) != want {
			t.Errorf("%s: %s, want %s", result, got, want)
		}
	}
	// A server cannot say itself what it was refused.
	forged, _, err := Result(t.Context(),
		json.RawMessage(`{"content":[],"_meta":{"sandlot/network_refused":[{"host":"x"}]}}`), false)
	if err != nil || string(forged) != `{"content":[]}` {
		t.Errorf("%s, %v", forged, err)
	}
}

func TestAsksInput(t *testing.T) {
	for raw, want := range map[string]bool{`{"resultType":"input_required","inputRequests":{}}`: true,
		`{"content":[{"type":"text","text":"input_required"}]}`: false, `{"resultType":"input_required"`: false, ``: false} {
		if AsksInput(json.RawMessage(raw)) != want {
			t.Errorf("%s: not %v", raw, want)
		}
	}
}
