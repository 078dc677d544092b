package servers

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
)

// What a server asks clients is looked at in the same way, in both eras.
func TestReferencesInQuestions(t *testing.T) {
	for words, good := range map[string]bool{`"properties":{"a":{"$ref":"https://schemas.example"}}`: false,
		`"$ref":"x"`: false,
		`"$id":"https://schemas.example","properties":{"a":{"$ref":"#/b"}}`: false, `"properties":{"$ref":{"type":"string","default":"https://x"}}`: true} {
		schema := `{"type":"object",` + words + `}`
		for _, params := range []string{`{"message":"m","requestedSchema":` + schema + `}`,
			`{"messages":[],"tools":[{"name":"a"},{"name":"t","inputSchema":` + schema + `}]}`,
			`{"message":"m","RequestedSchema":{},"requestedSchema":` + schema + `}`} {
			if err := catalog.CheckQuestion(json.RawMessage(params)); (err == nil) != good {
				t.Errorf("%s: %v", params, err)
			}
			l := &instance{s: own(newServers(t, &memStore{}, nil), P, "x", "aaaaaa", spec.Configured{}),
				inFlight: map[*inFlight]bool{}, free: make(chan struct{})}
			if _, err := l.HandleRequest(t.Context(), "elicitation/create",
				json.RawMessage(params)); err == nil || strings.Contains(err.Error(), "its schema") == good {
				t.Errorf("asked %s: %v", params, err)
			}
			asks := json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":` + params + `}}}`)
			if _, _, err := catalog.SafeResult(asks); (err == nil) != good {
				t.Errorf("a call's %s: %v", asks, err)
			}
			if _, err := catalog.SafeObject(asks); (err == nil) != good {
				t.Errorf("another's %s: %v", asks, err)
			}
			q := query{client: &fakeClient{id: "A",
				ask: func(context.Context) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }}}
			if _, err := q.answers(t.Context(), map[string]need{"a": {"elicitation/create",
				json.RawMessage(params)}}); good != (err == nil || !strings.Contains(err.Error(), "its schema")) {
				t.Errorf("answers of %s: %v", params, err)
			}
		}
	}
	// One that cannot be read hides none beside it.
	asks := json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":1,"b":{"method":"elicitation/create","params":{"requestedSchema":{"$ref":"https://x"}}}}}`)
	if _, _, err := catalog.SafeResult(asks); err == nil {
		t.Error("questions that cannot be read are passed on")
	}
}
