package schematest

import (
	"encoding/json"
	"testing"
)

// The schemas tell what clients refuse from what they take.
func TestValidate(t *testing.T) {
	for _, revision := range Revisions {
		for raw, valid := range map[string]bool{
			`{"name":"t","inputSchema":{"type":"object"}}`:                                      true,
			`{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}}`: true,
			`{"name":5,"inputSchema":{"type":"object"}}`:                                        false,
			`{"name":"t","inputSchema":{"type":"array"}}`:                                       false,
			`{"name":"t"}`: false,
		} {
			if err := Validate(revision, "Tool", json.RawMessage(raw)); (err == nil) != valid {
				t.Errorf("%s: %s: %v", revision, raw, err)
			}
		}
		if revision < "2026-07-28" {
			if err := Validate(revision, "Tool",
				json.RawMessage(`{"name":"t","inputSchema":{"type":"object","properties":null}}`)); err == nil {
				t.Errorf("%s: properties that are null are valid", revision)
			}
		}
	}
}
