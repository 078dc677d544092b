package connection

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"sandlot/internal/hub"
)

// schema is the input schema of a tool, which a third-party server has sent. nil: it is not known.
type schema map[string]any

// schemaOf returns the input schema of the tool with that exposed name.
func schemaOf(s hub.Server, exposed string) schema {
	for _, t := range s.Tools {
		var d struct {
			InputSchema schema `json:"inputSchema"`
		}
		if t.Exposed == exposed && json.Unmarshal(t.Raw, &d) == nil {
			return d.InputSchema
		}
	}
	return nil
}

// maxSchemaDepth bounds how many references and parts of a schema are followed.
const maxSchemaDepth = 16

// argument returns the value that a text on the command line is for an argument: of the type that the schema takes.
// Where the schema takes several types, or it is not known, a text that is JSON counts as JSON.
func (s schema) argument(name, text string) (json.RawMessage, error) {
	properties, _ := s["properties"].(map[string]any)
	part, declared := properties[name]
	if !declared {
		part = s["additionalProperties"]
	}
	t := types{}
	t.add(s, part, 0)
	quoted, _ := json.Marshal(text)
	kind := kindOf(text)
	switch {
	case len(t) == 0 || t["any"]: // nothing is known
		if kind == "" {
			return quoted, nil
		}
		return json.RawMessage(text), nil
	case t["string"] && (kind != "object" && kind != "array" || !t[kind]):
		return quoted, nil
	case t["boolean"] && strings.EqualFold(text, "true"), t["boolean"] && strings.EqualFold(text, "false"):
		return json.RawMessage(strings.ToLower(text)), nil
	case kind != "" && (t[kind] || kind == "integer" && t["number"]):
		return json.RawMessage(text), nil
	}
	return nil, fmt.Errorf("argument %q needs %s, and not %q", name, t.text(), fmt.Sprintf("%.100s", text))
}

// kindOf returns the JSON type of a text: a type of JSON Schema; empty: the text is not JSON.
func kindOf(text string) string {
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
	if n, err := strconv.ParseFloat(text, 64); err == nil && n == math.Trunc(n) {
		return "integer"
	}
	return "number"
}

// types are the JSON types that a schema takes; "any": others, too.
type types map[string]bool

// text returns the types in words.
func (t types) text() string {
	var all []string
	for _, kind := range [][2]string{{"string", "a text"}, {"integer", "a whole number"}, {"number", "a number"},
		{"boolean", "true or false"}, {"array", "a JSON list, such as '[1, 2]'"},
		{"object", `a JSON object, such as '{"a": 1}'`}, {"null", "null"}} {
		if t[kind[0]] {
			all = append(all, kind[1])
		}
	}
	return strings.Join(all, " or ")
}

// add adds the types that a part of a schema takes. root is the schema to which references lead.
func (t types) add(root schema, part any, depth int) {
	if depth > maxSchemaDepth {
		t["any"] = true
		return
	}
	s, ok := part.(map[string]any)
	if !ok {
		t["any"] = true
		return
	}
	if ref, ok := s["$ref"].(string); ok {
		t.add(root, root.at(ref), depth+1)
		return
	}
	if values, ok := s["enum"].([]any); ok {
		for _, v := range values {
			t.addValue(v)
		}
		return
	}
	if v, ok := s["const"]; ok {
		t.addValue(v)
		return
	}
	switch kind := s["type"].(type) {
	case string:
		t[kind] = true
		return
	case []any:
		for _, k := range kind {
			name, _ := k.(string)
			t[name] = true
		}
		return
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := s[keyword].([]any); ok && len(list) > 0 {
			if keyword == "allOf" { // each has to hold; usually one of them has the type
				list = list[:1]
			}
			for _, one := range list {
				t.add(root, one, depth+1)
			}
			return
		}
	}
	t["any"] = true
}

// addValue adds the type of a value.
func (t types) addValue(v any) {
	b, _ := json.Marshal(v) // it was JSON
	t[kindOf(string(b))] = true
}

// at returns the part to which a reference within the schema leads; nil: there is none.
func (s schema) at(ref string) any {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	var part any = map[string]any(s)
	for _, name := range strings.Split(path, "/") {
		in, _ := part.(map[string]any)
		part = in[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
	}
	return part
}

// itemOf returns a text as an element of a list argument, and whether the argument takes lists alone and the text is none.
func (s schema) itemOf(name, text string) (json.RawMessage, bool) {
	properties, _ := s["properties"].(map[string]any)
	t := types{}
	t.add(s, properties[name], 0)
	delete(t, "null")
	if !t["array"] || len(t) > 1 || kindOf(text) == "array" {
		return nil, false
	}
	part, _ := properties[name].(map[string]any)
	if ref, ok := part["$ref"].(string); ok {
		part, _ = s.at(ref).(map[string]any)
	}
	element, err := schema{"properties": map[string]any{"item": part["items"]}, "$defs": s["$defs"],
		"definitions": s["definitions"]}.argument("item", text)
	if err != nil {
		return nil, false
	}
	return element, true
}

// set sets an argument to what a word KEY=VALUE of the command line says. A list that is given as single values gets one
// more with each word.
func (s schema) set(ask map[string]any, key, text string) error {
	if item, ok := s.itemOf(key, text); ok {
		list, _ := ask[key].([]json.RawMessage)
		ask[key] = append(list, item)
		return nil
	}
	if name, isJSON := strings.CutSuffix(key, ":"); isJSON && name != "" {
		if !json.Valid(bytes.TrimSpace([]byte(text))) {
			return fmt.Errorf("argument %q: what stands after := is not JSON", name)
		}
		ask[name] = json.RawMessage(text)
		return nil
	}
	v, err := s.argument(key, text)
	if err == nil {
		ask[key] = v
	}
	return err
}
