package catalog

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"sandlot/internal/rawjson"
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
	t := typer{d.InputSchema}
	typed, changed := t.typed(d.InputSchema, arguments, 0)
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
type typer struct{ root any }

// typed returns a value as a schema takes it, and whether it differs.
func (t typer) typed(schema any, raw json.RawMessage, depth int) (_ json.RawMessage, changed bool) {
	s, ok := t.follow(schema)
	if !ok || depth > maxTypedDepth {
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

// follow returns the schema that a reference leads to, or a schema that is no reference; false: there is none.
func (t typer) follow(schema any) (map[string]any, bool) {
	for range maxTypedDepth {
		s, ok := schema.(map[string]any)
		if !ok {
			return nil, false
		}
		ref, ok := s["$ref"].(string)
		if !ok {
			return s, true
		}
		path, ok := strings.CutPrefix(ref, "#/")
		if !ok {
			return nil, false
		}
		schema = t.root
		for _, token := range strings.Split(path, "/") {
			in, _ := schema.(map[string]any)
			schema = in[token]
		}
	}
	return nil, false
}

// fromText returns the value whose JSON a text is, if the schema takes no text and such a value.
func (t typer) fromText(s map[string]any, raw json.RawMessage) (json.RawMessage, bool) {
	kinds := t.kinds(s, 0)
	text := strings.TrimSpace(rawjson.Text(raw))
	switch strings.ToLower(text) { // as Python writes them
	case "true", "false":
		text = strings.ToLower(text)
	}
	if kinds == nil || kinds["string"] || !json.Valid([]byte(text)) {
		return raw, false
	}
	kind := kindOfValue(text)
	if !kinds[kind] && (kind != "integer" || !kinds["number"]) {
		return raw, false
	}
	return json.RawMessage(text), true
}

// kindOfValue returns the type of a JSON value, of one that is no text or null.
func kindOfValue(text string) string {
	switch text[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case '"', 'n':
		return ""
	}
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && n == math.Trunc(n) {
		return "integer"
	}
	return "number"
}

// kinds returns the types of which a schema takes values; nil: of any, or it is not known.
func (t typer) kinds(schema any, depth int) map[string]bool {
	s, ok := t.follow(schema)
	if !ok || depth > maxTypedDepth || s["enum"] != nil || s["const"] != nil {
		return nil
	}
	switch kind := s["type"].(type) {
	case string:
		return map[string]bool{kind: true}
	case []any:
		all := map[string]bool{}
		for _, k := range kind {
			name, _ := k.(string)
			all[name] = true
		}
		return all
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		list, ok := s[keyword].([]any)
		if !ok {
			continue
		}
		all := map[string]bool{}
		for _, one := range list {
			of := t.kinds(one, depth+1)
			if of == nil {
				return nil
			}
			for kind := range of {
				all[kind] = true
			}
		}
		return all
	}
	return nil
}
