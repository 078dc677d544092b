package connection

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"sandlot/internal/hub"
	"sandlot/internal/schematype"
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

// argument returns the value that a text on the command line is for an argument: of the type that the schema takes.
// Where the schema takes several types, or it is not known, a text that is JSON counts as JSON.
func (s schema) argument(name, text string) (json.RawMessage, error) {
	properties, _ := s["properties"].(map[string]any)
	part, declared := properties[name]
	if !declared {
		part = s["additionalProperties"]
	}
	t := types(s.types(part))
	quoted, _ := json.Marshal(text)
	kind := schematype.Kind(text)
	switch {
	case len(t) == 0: // nothing is known
		if kind == "" {
			return quoted, nil
		}
		return json.RawMessage(text), nil
	case t["string"] && (kind != "object" && kind != "array" || !t[kind]):
		return quoted, nil
	case t["boolean"] && strings.EqualFold(text, "true"), t["boolean"] && strings.EqualFold(text, "false"):
		return json.RawMessage(strings.ToLower(text)), nil
	case kind != "" && schematype.Types(t).Takes(kind):
		return json.RawMessage(text), nil
	}
	return nil, fmt.Errorf("argument %q needs %s, and not %q", name, t.text(), fmt.Sprintf("%.100s", text))
}

// types returns the types that a part of the schema takes.
func (s schema) types(part any) schematype.Types {
	return schematype.New(map[string]any(s)).Types(part)
}

// types are the types that a schema takes.
type types schematype.Types

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

// itemOf returns a text as an element of a list argument, and whether the argument takes lists alone and the text is none.
func (s schema) itemOf(name, text string) (json.RawMessage, bool) {
	properties, _ := s["properties"].(map[string]any)
	whole := schematype.New(map[string]any(s))
	t := maps.Clone(whole.Types(properties[name]))
	delete(t, "null")
	if !t["array"] || len(t) > 1 || schematype.Kind(text) == "array" {
		return nil, false
	}
	part := whole.Follow(properties[name])
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
