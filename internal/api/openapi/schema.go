package openapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// Of returns the schema of a type in answers. Answers may have more fields than that: a client
// ignores those that it does not know.
func Of[T any]() *Schema { return schemaOf(reflect.TypeFor[T](), true) }

// Input returns the schema of a type in requests, which may have no other fields, and has the required ones.
func Input[T any](required ...string) *Schema {
	s := schemaOf(reflect.TypeFor[T](), false)
	s.Schema.Required = required
	allowNull(s.Schema)
	return s
}

// allowNull lets the fields that are not required be null, which is as if they were missing.
func allowNull(s *jsonschema.Schema) {
	for name, p := range s.Properties {
		if slices.Contains(s.Required, name) || p.Type == "" {
			continue
		}
		p.Types, p.Type = []string{p.Type, "null"}, ""
		if len(p.Enum) > 0 {
			p.Enum = append(slices.Clone(p.Enum), nil)
		}
	}
}

// JSONSchema is a JSON schema.
type JSONSchema = jsonschema.Schema

// Answers returns an answer of a type as JSON, with an example of it or nil.
func Answers[T any](text string, example any) Answer {
	return Answer{Text: text, Body: &Body{Type: JSON, Schema: Of[T](), Example: example}}
}

func schemaOf(t reflect.Type, open bool) *Schema {
	known := map[reflect.Type]*jsonschema.Schema{}
	addEncoded(known, map[reflect.Type]bool{}, t)
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: known})
	if err != nil {
		panic(fmt.Sprintf("openapi: %v", err))
	}
	if open {
		openObjects(s)
	}
	name := t.Name()
	if name != "" {
		name = strings.ToUpper(name[:1]) + name[1:]
	}
	return &Schema{Name: name, Schema: s}
}

// addEncoded adds the schemas of all types in t that encode themselves: as text, or as any JSON.
func addEncoded(known map[reflect.Type]*jsonschema.Schema, seen map[reflect.Type]bool, t reflect.Type) {
	if seen[t] || t == reflect.TypeFor[time.Time]() {
		return
	}
	seen[t] = true
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		known[t] = &jsonschema.Schema{}
		return
	case t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		known[t] = &jsonschema.Schema{Type: "string"}
		return
	case t.Kind() != reflect.Struct && t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[json.Marshaler]()):
		known[t] = encodedAs(t)
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		addEncoded(known, seen, t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			addEncoded(known, seen, f.Type)
		}
	}
}

// encodedAs returns the schema of a type that encodes itself, as far as its zero value shows it.
func encodedAs(t reflect.Type) *jsonschema.Schema {
	text, err := json.Marshal(reflect.Zero(t).Interface())
	if err != nil || len(text) == 0 {
		return &jsonschema.Schema{}
	}
	switch text[0] {
	case '[':
		return &jsonschema.Schema{Type: "array"}
	case '"':
		return &jsonschema.Schema{Type: "string"}
	}
	return &jsonschema.Schema{}
}

// openObjects lets every object of a schema have more fields.
func openObjects(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	openObjects(s.AdditionalProperties)
	openObjects(s.Items)
	for _, p := range s.Properties {
		openObjects(p)
	}
}

// Text returns the schema of a string with what it must match, an empty text: anything.
func Text(pattern string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: pattern}
}

// OneOf returns the schema of a string that is one of the values.
func OneOf[T ~string](values ...T) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

// Between returns the schema of an integer from least to most.
func Between(least, most float64) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "integer", Minimum: &least, Maximum: &most}
}

// List returns the schema of a list. In a query, each element is a parameter of its own.
func List(of *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "array", Items: of}
}

// Length returns the schema of a string of least to most characters.
func Length(least, most int) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", MinLength: &least, MaxLength: &most}
}

// InputFromJSON returns the schema of a request that is encoded in m, such as that of a tool's arguments.
func InputFromJSON(m map[string]any) *Schema {
	s := FromJSON(m)
	allowNull(s.Schema)
	return s
}

// FromJSON returns the schema that is encoded in m, such as that of a tool.
func FromJSON(m map[string]any) *Schema {
	b, err := json.Marshal(m)
	s := new(jsonschema.Schema)
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		panic(fmt.Sprintf("openapi: %v", err))
	}
	return &Schema{Schema: s}
}

// asJSON returns a value as encoding/json decodes its JSON.
func asJSON(v any) (decoded any) {
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &decoded)
	}
	if err != nil {
		panic(fmt.Sprintf("openapi: %v", err))
	}
	return decoded
}
