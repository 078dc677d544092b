package tool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// Prop describes a property of a tool's arguments or result, as far as the Go type of the
// field does not. A description that fits on the field's line is in its tag `jsonschema`
// instead.
type Prop struct {
	Name        string // in JSON
	Description string
	Enum        []string
	Default     any
	Min, Max    *float64
	Nullable    bool   // the value may be null
	Hidden      bool   // of an argument: models are not told of it
	Props       []Prop // of the fields of an object, or of a list's objects
}

// Range returns the property with inclusive bounds.
func (p Prop) Range(min, max float64) Prop {
	p.Min, p.Max = &min, &max
	return p
}

// Describer is a struct with properties for its fields, which structs that embed it inherit.
// The properties that a tool passes to InputOf or OutputOf take precedence.
type Describer interface{ Props() []Prop }

// propsOf returns the properties of a struct that is a Describer, or of the structs that it
// embeds.
func propsOf(t reflect.Type) (props []Prop) {
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous && len(f.Index) == 1 {
			props = append(props, propsOf(f.Type)...)
		}
	}
	if d, ok := reflect.Zero(t).Interface().(Describer); ok && len(props) == 0 {
		return d.Props()
	}
	return props
}

// Object is the JSON schema (2020-12) of an object, generated from a struct. It is
// generated when it is first used: a server that starts does not wait for the schemas of all
// tools.
type Object struct {
	arguments func() arguments      // how arguments are decoded; nil for a result
	encoded   func() map[string]any // the JSON
	shown     func() map[string]any // the JSON for models
}

// arguments is what Decode needs to know of a struct of arguments.
type arguments struct {
	schema *jsonschema.Schema // nil: there are no arguments
	fields map[string]field   // of the struct, by the arguments' names
}

// field is the struct field of one argument.
type field struct {
	index  []int
	schema *jsonschema.Schema
	object *arguments // for an argument that is an object with known properties, or a list of such
}

// InputOf returns the schema of a tool's arguments, the exported fields of the struct T.
// Arguments with omitempty are optional. A pointer field distinguishes an absent argument
// from an empty one. The schema's first use panics if a property has no field.
func InputOf[T any](props ...Prop) *Object {
	get := sync.OnceValue(func() arguments { return argumentsOf(reflect.TypeFor[T](), describedSchema[T](props)) })
	return &Object{arguments: get, encoded: sync.OnceValue(func() map[string]any { return encode(get().schema) }),
		shown: sync.OnceValue(func() map[string]any {
			m := encode(get().schema)
			show(m, props)
			return m
		})}
}

// OutputOf returns the schema of a tool's result, the struct T. It has only the fields that
// props name or that have a description; tools may change the other fields. The fields in
// required are always set.
func OutputOf[T any](required []string, props ...Prop) *Object {
	return &Object{encoded: sync.OnceValue(func() map[string]any {
		s := describedSchema[T](props)
		keepDescribed(s, append(props, propsOf(reflect.TypeFor[T]())...))
		s.Required = required
		return encode(s)
	})}
}

// Schema returns the JSON of the schema; for a nil Object, that of an object without
// properties. The caller must not change it.
func (o *Object) Schema() map[string]any {
	if o == nil {
		return map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}
	}
	return o.encoded()
}

// Shown returns the JSON of the schema of arguments for models, who have each word of it in every conversation. It has
// no arguments that are hidden, only the descriptions of the properties that the tool passed to InputOf, and neither
// bounds nor defaults nor long enumerations, which Decode knows. The caller must not change it.
func (o *Object) Shown() map[string]any {
	if o == nil {
		return map[string]any{"type": "object", "properties": map[string]any{}}
	}
	return o.shown()
}

// maxShownEnum is how many values of an enumeration models are told. An error lists all.
const maxShownEnum = 5

// show removes from the JSON of a schema what models are not told.
func show(schema map[string]any, props []Prop) {
	delete(schema, "additionalProperties")
	all, _ := schema["properties"].(map[string]any)
	for name, v := range all {
		i := slices.IndexFunc(props, func(p Prop) bool { return p.Name == name })
		property := v.(map[string]any)
		if i < 0 {
			i, props = len(props), append(props, Prop{Name: name})
		}
		if props[i].Hidden {
			delete(all, name)
			continue
		}
		if props[i].Description == "" {
			delete(property, "description")
		}
		show(property, props[i].Props)
		if items, ok := property["items"].(map[string]any); ok {
			show(items, props[i].Props)
		}
		delete(property, "minimum")
		delete(property, "maximum")
		delete(property, "default")
		if values, _ := property["enum"].([]any); len(values) > maxShownEnum {
			delete(property, "enum")
		}
	}
}

// describedSchema infers the schema of a struct, and adds the properties and those of the
// struct itself.
func describedSchema[T any](props []Prop) *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("tool: %v", err))
	}
	describe(s, inherit(props, propsOf(reflect.TypeFor[T]())))
	return s
}

// inherit returns the properties, and those of the struct itself. One with nothing to say has the struct's description.
func inherit(props, own []Prop) []Prop {
	all := append(slices.Clone(props), own...)
	for n := range props {
		i := slices.IndexFunc(own, func(p Prop) bool { return p.Name == all[n].Name })
		if i >= 0 {
			all[n].Description = cmp.Or(all[n].Description, own[i].Description)
		}
	}
	return all
}

// element returns the schema of a list's elements, or s if it is not a list's.
func element(s *jsonschema.Schema) *jsonschema.Schema {
	if s.Items != nil {
		return s.Items
	}
	return s
}

// describe adds the properties to a schema, and removes null from its types.
func describe(s *jsonschema.Schema, props []Prop) {
	if n := len(s.Types); n > 0 { // of a pointer or a slice: null and the type
		s.Type, s.Types = s.Types[n-1], nil
	}
	if s.Items != nil {
		describe(s.Items, props)
		return
	}
	for name, p := range s.Properties {
		i := slices.IndexFunc(props, func(p Prop) bool { return p.Name == name })
		if i < 0 {
			describe(p, nil)
			continue
		}
		describe(p, props[i].Props)
		props[i].apply(p)
	}
	for _, p := range props {
		if s.Properties[p.Name] == nil {
			panic(fmt.Sprintf("tool: there is no field for the property %q", p.Name))
		}
	}
}

func (p Prop) apply(s *jsonschema.Schema) {
	s.Description, s.Minimum, s.Maximum = cmp.Or(p.Description, s.Description), p.Min, p.Max
	for _, e := range p.Enum {
		s.Enum = append(s.Enum, e)
	}
	if p.Default != nil {
		b, err := json.Marshal(p.Default)
		if err != nil {
			panic(fmt.Sprintf("tool: the default of %q: %v", p.Name, err))
		}
		s.Default = b
	}
	if p.Nullable {
		s.Type, s.Types = "", []string{s.Type, "null"}
	}
}

// keepDescribed removes the fields from a schema that have neither a Prop nor a description.
func keepDescribed(s *jsonschema.Schema, props []Prop) {
	s = element(s)
	if s.Type != "object" || s.Properties == nil {
		return
	}
	s.AdditionalProperties, s.Required = nil, nil
	for name, p := range s.Properties {
		i := slices.IndexFunc(props, func(p Prop) bool { return p.Name == name })
		switch {
		case i >= 0:
			keepDescribed(p, props[i].Props)
		case p.Description != "":
			keepDescribed(p, nil)
		default:
			delete(s.Properties, name)
		}
	}
	s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(name string) bool { return s.Properties[name] == nil })
	if len(s.Properties) == 0 {
		s.Properties = nil
	}
}

// argumentsOf returns the arguments that are the fields of a struct.
func argumentsOf(t reflect.Type, s *jsonschema.Schema) arguments {
	a := arguments{schema: s, fields: map[string]field{}}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if f.Anonymous || p == nil {
			continue
		}
		arg := field{index: f.Index, schema: p}
		switch {
		case p.Properties != nil:
			object := argumentsOf(f.Type, p)
			arg.object = &object
		case p.Items != nil && p.Items.Properties != nil:
			object := argumentsOf(f.Type.Elem(), p.Items)
			arg.object = &object
		}
		a.fields[name] = arg
	}
	return a
}

// encode returns the JSON of a schema, decoded into a map.
func encode(s *jsonschema.Schema) map[string]any {
	var m map[string]any
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(fmt.Sprintf("tool: %v", err))
	}
	if m["properties"] == nil {
		m["properties"] = map[string]any{}
	}
	return m
}
