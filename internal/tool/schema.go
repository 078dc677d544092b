package tool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Prop says of a field of a tool's arguments, or result, what its Go type does
// not, and its tag `jsonschema`, a description that fits on the field's line.
type Prop struct {
	Name        string // in JSON
	Description string
	Enum        []string
	Default     any
	Min, Max    *float64
	Nullable    bool   // null is written where there is no value
	Props       []Prop // of an object's fields, or of those of a list's objects
}

// Range returns a property with bounds, both included.
func (p Prop) Range(min, max float64) Prop {
	p.Min, p.Max = &min, &max
	return p
}

// Described is a struct that others embed, with what is to be said of its fields: a tool
// may say something else.
type Described interface{ Props() []Prop }

// described returns the properties of a struct, or of those that it embeds.
func described(t reflect.Type) (props []Prop) {
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous && len(f.Index) == 1 {
			props = append(props, described(f.Type)...)
		}
	}
	if d, ok := reflect.Zero(t).Interface().(Described); ok && len(props) == 0 {
		return d.Props()
	}
	return props
}

// Object is a JSON schema (2020-12) of an object, made from a struct.
type Object struct {
	schema *jsonschema.Schema
	wire   map[string]any
	fields map[string]field // of arguments, by their names
}

// field is one argument.
type field struct {
	index  []int
	schema *jsonschema.Schema
	object *Object // of an object with arguments of its own
}

// InputOf returns the schema of a tool's arguments: the exported fields of T, a
// struct. Those with omitempty may be left out; a pointer tells an argument that
// was left out from an empty one. It panics when a property has no field.
func InputOf[T any](props ...Prop) *Object {
	s := inferred[T]()
	props = append(props, described(reflect.TypeFor[T]())...)
	describe(s, props)
	o := arguments(reflect.TypeFor[T](), s)
	o.wire = wire(s)
	return o
}

// OutputOf returns the schema of a tool's result, a struct T: of the fields that props
// names or that have a description, of which required are always there. Other fields are
// no promise.
func OutputOf[T any](required []string, props ...Prop) *Object {
	s := inferred[T]()
	props = append(props, described(reflect.TypeFor[T]())...)
	describe(s, props)
	promise(s, props)
	s.Required = required
	return &Object{schema: s, wire: wire(s)}
}

// Schema returns the schema as JSON has it. Nil is an object without fields. It
// must not be changed.
func (o *Object) Schema() map[string]any {
	if o == nil {
		return map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}
	}
	return o.wire
}

func inferred[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("tool: %v", err))
	}
	return s
}

// element is the schema of a list's elements, or s itself.
func element(s *jsonschema.Schema) *jsonschema.Schema {
	if s.Items != nil {
		return s.Items
	}
	return s
}

// describe adds to a schema what properties say, and takes null out of its types.
func describe(s *jsonschema.Schema, props []Prop) {
	if n := len(s.Types); n > 0 { // a pointer's, or a slice's
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
		props[i].put(p)
	}
	for _, p := range props {
		if s.Properties[p.Name] == nil {
			panic(fmt.Sprintf("tool: there is no field for the property %q", p.Name))
		}
	}
}

func (p Prop) put(s *jsonschema.Schema) {
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

// promise leaves in a schema what properties name, and what has a description.
func promise(s *jsonschema.Schema, props []Prop) {
	s = element(s)
	if s.Type != "object" || s.Properties == nil {
		return
	}
	s.AdditionalProperties, s.Required = nil, nil
	for name, p := range s.Properties {
		i := slices.IndexFunc(props, func(p Prop) bool { return p.Name == name })
		switch {
		case i >= 0:
			promise(p, props[i].Props)
		case p.Description != "":
			promise(p, nil)
		default:
			delete(s.Properties, name)
		}
	}
	s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(name string) bool { return s.Properties[name] == nil })
	if len(s.Properties) == 0 {
		s.Properties = nil
	}
}

// arguments finds the struct's field of each argument.
func arguments(t reflect.Type, s *jsonschema.Schema) *Object {
	o := &Object{schema: s, fields: map[string]field{}}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if f.Anonymous || p == nil {
			continue
		}
		arg := field{index: f.Index, schema: p}
		if p.Properties != nil {
			arg.object = arguments(f.Type, p)
		}
		o.fields[name] = arg
	}
	return o
}

// wire is the schema as JSON has it. Its properties are in the order of their names.
func wire(s *jsonschema.Schema) map[string]any {
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
