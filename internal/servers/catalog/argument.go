package catalog

import (
	"bytes"
	"encoding/json"
	"strings"

	"sandlot/internal/rawjson"
	"sandlot/internal/schematype"
)

// maxTyped is how many bytes of arguments and of a schema TypedArguments looks at, maxTypedDepth how deep.
const maxTyped, maxTypedDepth = 1 << 20, 16

// TypedArguments returns the arguments of a call with texts replaced by the values that they are the JSON of, where the
// input schema of the tool's definition takes no text and such a value: some models write "5" for 5.
func TypedArguments(definition, arguments json.RawMessage) json.RawMessage {
	if len(arguments) > maxTyped || len(definition) > maxTyped || !mayHoldTyped(arguments) {
		return arguments
	}
	var d struct {
		InputSchema any `json:"inputSchema"`
	}
	if json.Unmarshal(definition, &d) != nil {
		return arguments
	}
	typed, changed := typer{schematype.New(d.InputSchema)}.typed(d.InputSchema, arguments, 0)
	if !changed {
		return arguments
	}
	return typed
}

// mayHoldTyped reports whether a text in the arguments may be the JSON of something else than a text.
func mayHoldTyped(arguments json.RawMessage) bool {
	for i := bytes.IndexByte(arguments, '"'); i >= 0 && i+1 < len(arguments); {
		if bytes.IndexByte([]byte("-0123456789tTfF[{ \\"), arguments[i+1]) >= 0 {
			return true
		}
		next := bytes.IndexByte(arguments[i+1:], '"')
		if next < 0 {
			return false
		}
		i += next + 1
	}
	return false
}

// typer is one run of TypedArguments.
type typer struct{ schema *schematype.Schema }

// typed returns a value as a schema takes it, and whether it differs.
func (t typer) typed(schema any, raw json.RawMessage, depth int) (_ json.RawMessage, changed bool) {
	s := t.schema.Follow(schema)
	if s == nil || depth > maxTypedDepth {
		return raw, false
	}
	switch {
	case rawjson.IsString(raw):
		return t.fromText(s, raw)
	case rawjson.IsObject(raw):
		properties, _ := s["properties"].(map[string]any)
		members, ok := rawjson.Members(raw)
		if !ok || len(properties) == 0 {
			return raw, false
		}
		for name, value := range members {
			if v, other := t.typed(properties[name], value, depth+1); other {
				members[name], changed = v, true
			}
		}
		if changed {
			raw = encoded(members)
		}
		return raw, changed
	case rawjson.IsArray(raw):
		var all []json.RawMessage
		if s["items"] == nil || json.Unmarshal(raw, &all) != nil {
			return raw, false
		}
		for i, value := range all {
			if v, other := t.typed(s["items"], value, depth+1); other {
				all[i], changed = v, true
			}
		}
		if changed {
			raw = encoded(all)
		}
		return raw, changed
	}
	return raw, false
}

// fromText returns the value whose JSON a text is, if the schema takes no text and such a value.
func (t typer) fromText(s map[string]any, raw json.RawMessage) (json.RawMessage, bool) {
	types := t.schema.Types(s)
	if types.Takes("string") {
		return raw, false
	}
	text := strings.TrimSpace(rawjson.Text(raw))
	switch strings.ToLower(text) { // as Python writes them
	case "true", "false":
		text = strings.ToLower(text)
	}
	if kind := schematype.Kind(text); kind == "" || kind == "null" || !types.Takes(kind) {
		return raw, false
	}
	return json.RawMessage(text), true
}
