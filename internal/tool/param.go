package tool

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
)

// Type is a parameter's JSON type.
type Type string

const (
	String  Type = "string"
	Integer Type = "integer"
	Number  Type = "number"
	Boolean Type = "boolean"
	Strings Type = "array"  // of strings
	Map     Type = "object" // of strings
	Object  Type = "fields" // an object with the parameter's own Fields
)

// Param is one argument of a tool: what the schema says and what is checked
// come from here alone.
type Param struct {
	Name        string
	Type        Type
	Description string
	Required    bool
	Enum        []string
	Default     any
	Min, Max    *float64
	// Fold: the enumeration is matched in any case.
	Fold bool
	// Fields are those of an Object.
	Fields []Param
}

// Range returns a parameter with bounds, both included.
func (p Param) Range(min, max float64) Param {
	p.Min, p.Max = &min, &max
	return p
}

// Schema returns the JSON schema (2020-12) of the tool's arguments.
func (t Tool) Schema() map[string]any { return schemaOf(t.Params) }

func schemaOf(params []Param) map[string]any {
	props := map[string]any{}
	required := []string{}
	for _, p := range params {
		props[p.Name] = p.schema()
		if p.Required {
			required = append(required, p.Name)
		}
	}
	s := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (p Param) schema() map[string]any {
	s := map[string]any{"type": string(p.Type), "description": p.Description}
	switch p.Type {
	case Object:
		s = schemaOf(p.Fields)
		s["description"] = p.Description
	case Strings:
		s["items"] = map[string]any{"type": "string"}
	case Map:
		s["additionalProperties"] = map[string]any{"type": "string"}
	}
	if p.Enum != nil {
		s["enum"] = p.Enum
	}
	if p.Default != nil {
		s["default"] = p.Default
	}
	if p.Min != nil {
		s["minimum"] = *p.Min
	}
	if p.Max != nil {
		s["maximum"] = *p.Max
	}
	return s
}

// Args are checked arguments. What was not given is not in it.
type Args map[string]any

// Text returns a string argument or the parameter's absence as "".
func (a Args) Text(name string) string { s, _ := a[name].(string); return s }

// Int returns an integer argument, or def.
func (a Args) Int(name string, def int64) int64 {
	if n, ok := a[name].(float64); ok {
		return int64(n)
	}
	return def
}

// Float returns a number argument, or def.
func (a Args) Float(name string, def float64) float64 {
	if n, ok := a[name].(float64); ok {
		return n
	}
	return def
}

// Bool returns a boolean argument.
func (a Args) Bool(name string) bool { b, _ := a[name].(bool); return b }

// Has says whether the argument was given.
func (a Args) Has(name string) bool { _, ok := a[name]; return ok }

// Strings returns a list argument.
func (a Args) Strings(name string) []string { l, _ := a[name].([]string); return l }

// Map returns a map argument.
func (a Args) Map(name string) map[string]string { m, _ := a[name].(map[string]string); return m }

// Object returns the arguments within an object.
func (a Args) Object(name string) Args { m, _ := a[name].(Args); return m }

// Parse checks raw arguments against the tool's parameters. An error is an
// InvalidParameters fault that names the argument, what was given and what is
// allowed. Arguments may be nested under one object "params", the older form.
func (t Tool) Parse(raw json.RawMessage) (Args, error) {
	given, err := object(raw)
	if err != nil {
		return nil, err
	}
	if nested, ok := given["params"].(map[string]any); ok && len(given) == 1 && t.param("params") == nil {
		given = nested
	}
	return t.parse(given)
}

func (t Tool) parse(given map[string]any) (Args, error) {
	args := Args{}
	for name, v := range given {
		var err error
		p := t.param(name)
		if p == nil {
			return nil, t.unknown(name)
		}
		if v == nil { // null counts as absent
			continue
		}
		if args[name], err = p.check(v); err != nil {
			return nil, err
		}
	}
	for _, p := range t.Params {
		if p.Required && !args.Has(p.Name) {
			return nil, fault.New(fault.InvalidParameters, "argument %q is missing: %s", p.Name, p.Description).
				With("argument", p.Name).With("allowed", string(p.Type))
		}
	}
	return args, nil
}

func object(raw json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "null" {
		return nil, nil
	}
	var given map[string]any
	if err := json.Unmarshal(raw, &given); err != nil {
		return nil, fault.New(fault.InvalidParameters, "arguments must be a JSON object").With("argument", "arguments").With("allowed", "object")
	}
	return given, nil
}

func (t Tool) param(name string) *Param {
	for i := range t.Params {
		if t.Params[i].Name == name {
			return &t.Params[i]
		}
	}
	return nil
}

func (t Tool) unknown(name string) error {
	names := make([]string, len(t.Params))
	for i, p := range t.Params {
		names[i] = p.Name
	}
	name = fault.Clip(name)
	hint := "; allowed are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		hint = "; it takes none"
	}
	if meant := fault.Meant(name, names); meant != "" {
		hint = meant
	}
	return fault.New(fault.InvalidParameters, "%s has no argument %q%s", t.Name, name, hint).
		With("argument", name).With("allowed", names)
}

func (p Param) wrong(v any, allowed string) error {
	b, _ := json.Marshal(v)
	given := fault.Clip(string(b))
	return fault.New(fault.InvalidParameters, "argument %q is %s, but must be %s", p.Name, given, allowed).
		With("argument", p.Name).With("given", given).With("allowed", allowed)
}

func (p Param) check(v any) (any, error) {
	switch p.Type {
	case String:
		return p.checkString(v)
	case Integer, Number:
		return p.checkNumber(v)
	case Boolean:
		if b, ok := v.(bool); ok {
			return b, nil
		}
		return nil, p.wrong(v, "true or false")
	case Strings:
		return p.checkStrings(v)
	case Object:
		return p.checkObject(v)
	}
	m, ok := v.(map[string]any)
	out := map[string]string{}
	for k, e := range m {
		s, isString := e.(string)
		ok = ok && isString && !strings.ContainsAny(k, "=\x00") && k != "" && !strings.Contains(s, "\x00")
		out[k] = s
	}
	if !ok {
		return nil, p.wrong(v, "an object of strings")
	}
	return out, nil
}

func (p Param) checkString(v any) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, p.wrong(v, "a string")
	}
	if p.Enum == nil {
		return s, nil
	}
	folded := s
	if p.Fold {
		folded = strings.ToLower(s)
	}
	if !slices.Contains(p.Enum, folded) {
		return nil, p.wrong(v, "one of "+strings.Join(p.Enum, ", "))
	}
	return folded, nil
}

func (p Param) checkNumber(v any) (any, error) {
	allowed := "an integer"
	if p.Type == Number {
		allowed = "a number"
	}
	if p.Min != nil {
		allowed += " from " + strconv.FormatFloat(*p.Min, 'f', -1, 64)
	}
	if p.Max != nil {
		allowed += " to " + strconv.FormatFloat(*p.Max, 'f', -1, 64)
	}
	n, ok := v.(float64)
	if !ok || p.Type == Integer && n != math.Trunc(n) || p.Min != nil && n < *p.Min || p.Max != nil && n > *p.Max {
		return nil, p.wrong(v, allowed)
	}
	return n, nil
}

func (p Param) checkStrings(v any) (any, error) {
	list, ok := v.([]any)
	out := make([]string, len(list))
	for i, e := range list {
		s, isString := e.(string)
		ok = ok && isString
		out[i] = s
	}
	if !ok {
		return nil, p.wrong(v, "an array of strings")
	}
	return out, nil
}

// checkObject checks the arguments within an object; a fault names them with
// the object's name before theirs.
func (p Param) checkObject(v any) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, p.wrong(v, "an object")
	}
	inner := make([]Param, len(p.Fields))
	for i, f := range p.Fields {
		inner[i] = f
		inner[i].Name = p.Name + "." + f.Name
	}
	given := map[string]any{}
	for k, e := range m {
		given[p.Name+"."+k] = e
	}
	args, err := Tool{Name: p.Name, Params: inner}.parse(given)
	if err != nil {
		return nil, err
	}
	out := Args{}
	for k, e := range args {
		out[strings.TrimPrefix(k, p.Name+".")] = e
	}
	return out, nil
}
