// Package schematype knows which JSON types a JSON Schema takes. The schemas come from third-party servers: references
// may lead in circles, and each part may name others many times. Each part is looked at once.
package schematype

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Types are types of JSON Schema: string, integer, number, boolean, object, array, null. nil: any, or it is not known.
type Types map[string]bool

// Schema is a decoded JSON Schema, with what is known of its parts. It is for one goroutine.
type Schema struct {
	root  any
	types map[uintptr]Types
	ends  map[uintptr]map[string]any // where references lead
}

// New takes the decoded JSON of a schema, which does not change from then on.
func New(root any) *Schema {
	return &Schema{root, map[uintptr]Types{}, map[uintptr]map[string]any{}}
}

// maxReferences bounds how many references are followed to one part.
const maxReferences = 16

// Follow returns the part to which a reference leads, or a part that is not a reference; nil: there is none.
func (s *Schema) Follow(part any) map[string]any {
	first, ok := part.(map[string]any)
	if !ok {
		return nil
	}
	key := reflect.ValueOf(first).Pointer()
	end, known := s.ends[key]
	if !known {
		end = s.follow(first)
		s.ends[key] = end
	}
	return end
}

func (s *Schema) follow(part map[string]any) map[string]any {
	for range maxReferences {
		ref, ok := part["$ref"].(string)
		if !ok {
			return part
		}
		pointer, ok := strings.CutPrefix(ref, "#")
		if !ok || pointer == "" {
			return nil
		}
		at, _ := At(s.root, pointer)
		if part, ok = at.(map[string]any); !ok {
			return nil
		}
	}
	return nil
}

// At returns the part of a decoded JSON value to which a JSON pointer leads; false: there is none. An empty one leads to
// the whole.
func At(value any, pointer string) (_ any, ok bool) {
	if pointer == "" {
		return value, true
	}
	rest, ok := strings.CutPrefix(pointer, "/")
	if !ok {
		return nil, false
	}
	for step := range strings.SplitSeq(rest, "/") {
		step = unescape.Replace(step)
		switch v := value.(type) {
		case map[string]any:
			if value, ok = v[step]; !ok {
				return nil, false
			}
		case []any:
			n, err := strconv.Atoi(step)
			if err != nil || n < 0 || n >= len(v) {
				return nil, false
			}
			value = v[n]
		default:
			return nil, false
		}
	}
	return value, true
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// Types returns the types whose values a part of the schema takes.
func (s *Schema) Types(part any) Types {
	m := s.Follow(part)
	if m == nil {
		return nil
	}
	key := reflect.ValueOf(m).Pointer()
	t, known := s.types[key]
	if !known {
		s.types[key] = nil // of a part that contains itself
		t = s.typesOf(m)
		s.types[key] = t
	}
	return t
}

func (s *Schema) typesOf(m map[string]any) Types {
	if values, ok := m["enum"].([]any); ok {
		all := Types{}
		for _, v := range values {
			all[kindOf(v)] = true
		}
		return all
	}
	if v, ok := m["const"]; ok {
		return Types{kindOf(v): true}
	}
	switch kind := m["type"].(type) {
	case string:
		return Types{kind: true}
	case []any:
		all := Types{}
		for _, k := range kind {
			name, _ := k.(string)
			all[name] = true
		}
		return all
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if list, ok := m[keyword].([]any); ok && len(list) > 0 {
			return s.ofOne(list)
		}
	}
	all, _ := m["allOf"].([]any)
	return s.ofEach(all)
}

// ofOne returns the types of values that one of the parts takes.
func (s *Schema) ofOne(parts []any) Types {
	all := Types{}
	for _, part := range parts {
		of := s.Types(part)
		if of == nil {
			return nil
		}
		for kind := range of {
			all[kind] = true
		}
	}
	return all
}

// ofEach returns the types of values that each of the parts takes.
func (s *Schema) ofEach(parts []any) (all Types) {
	for _, part := range parts {
		of := s.Types(part)
		if of == nil {
			continue
		}
		if all == nil {
			all = of
			continue
		}
		both := Types{}
		for kind := range of {
			if all.Takes(kind) {
				both[kind] = true
			}
		}
		all = both
	}
	return all
}

// Takes reports whether values of that type are among those of t.
func (t Types) Takes(kind string) bool {
	return t == nil || t[kind] || kind == "integer" && t["number"]
}

// kindOf returns the type of a decoded value.
func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case json.Number:
		return kindOfNumber(string(v))
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
	}
	return "number"
}

// Kind returns the type of the value whose JSON a text is; empty: it is not JSON.
func Kind(text string) string {
	text = strings.TrimSpace(text)
	if !json.Valid([]byte(text)) {
		return ""
	}
	switch text[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return kindOfNumber(text)
}

func kindOfNumber(text string) string {
	if n, err := strconv.ParseFloat(text, 64); err == nil && n == math.Trunc(n) {
		return "integer"
	}
	return "number"
}
