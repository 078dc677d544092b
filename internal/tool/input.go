package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"sandlot/internal/fault"
)

// Decode checks the arguments of a call against the tool's Input, which InputOf[T] made, and
// returns them. An error is an InvalidParameters fault that names the argument, the given
// value and the allowed ones. Older clients nest all arguments in an object "params"; Decode
// accepts that too. A null argument counts as absent.
func Decode[T any](t Tool, raw json.RawMessage) (T, error) {
	var in T
	args, err := parseObject(raw)
	if err != nil {
		return in, err
	}
	var known arguments
	if t.Input != nil {
		known = t.Input.arguments()
	}
	if nested, ok := args["params"].(map[string]any); ok && len(args) == 1 {
		if _, declared := known.fields["params"]; !declared {
			args = nested
		}
	}
	err = known.decode(t.Name, "", args, reflect.ValueOf(&in).Elem())
	return in, err
}

func parseObject(raw json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "null" {
		return nil, nil
	}
	var args map[string]any
	if err := json.Unmarshal(raw, &args); err != nil {
		return nil, fault.Argument("arguments", "arguments must be a JSON object").With("allowed", "object")
	}
	return args, nil
}

// decode sets the fields of a struct. In faults, prefix stands before the arguments' names:
// it is empty, or the name of the object that they are in, and a dot.
func (a arguments) decode(tool, prefix string, args map[string]any, into reflect.Value) error {
	for name, v := range args {
		f, ok := a.fields[name]
		if !ok {
			return a.unknownArgument(tool, prefix, name)
		}
		if v == nil {
			continue
		}
		if err := f.set(prefix+name, v, into.FieldByIndex(f.index)); err != nil {
			return err
		}
	}
	if a.schema == nil {
		return nil
	}
	for _, name := range a.schema.Required {
		if p := a.schema.Properties[name]; args[name] == nil {
			what := cmp.Or(p.Description, p.Type)
			return fault.Argument(prefix+name, "argument %q is missing: %s", prefix+name, what).With("allowed", p.Type)
		}
	}
	return nil
}

func (a arguments) unknownArgument(tool, prefix, name string) error {
	names := []string{}
	if a.schema != nil {
		for _, n := range a.schema.PropertyOrder {
			names = append(names, prefix+n)
		}
	}
	name = fault.Clip(prefix + name)
	hint := "; allowed are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		hint = "; it takes none"
	}
	if meant := fault.DidYouMean(name, names); meant != "" {
		hint = meant
	} else if in := a.holding(name); in != "" {
		hint = "; it belongs into " + in
	}
	return fault.Argument(name, "%s has no argument %q%s", tool, name, hint).With("allowed", names)
}

// holding returns the argument of objects that have an argument of that name, and their shape; empty: none has.
func (a arguments) holding(name string) string {
	if a.schema == nil {
		return ""
	}
	for _, n := range a.schema.PropertyOrder {
		f := a.fields[n]
		if f.object == nil || f.object.schema == nil || f.object.schema.Properties[name] == nil {
			continue
		}
		if f.schema.Type == "array" {
			return n + ": [" + f.object.shape() + "]"
		}
		return n + ": " + f.object.shape()
	}
	return ""
}

// shape shows the arguments of an object, as in {type: npm|pip, spec, sha256?}: optional ones have a question mark.
func (a arguments) shape() string {
	var all []string
	if a.schema != nil {
		for _, name := range a.schema.PropertyOrder {
			p, text := a.schema.Properties[name], name
			if !slices.Contains(a.schema.Required, name) {
				text += "?"
			}
			var words []string
			for _, e := range p.Enum {
				words = append(words, fmt.Sprint(e))
			}
			if len(words) > 0 {
				text += ": " + strings.Join(words, "|")
			}
			all = append(all, text)
		}
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func invalidArgument(name string, v any, allowed string) error {
	b, _ := json.Marshal(v)
	given := fault.Clip(string(b))
	return fault.Argument(name, "argument %q is %s, but must be %s", name, given, allowed).With("given", given).
		With("allowed", allowed)
}

// typed returns the value whose JSON a text is, for an argument that takes no text: some models write "5" for 5. Other
// values stay as they are.
func typed(v any) any {
	text, ok := v.(string)
	if !ok {
		return v
	}
	text = strings.TrimSpace(text)
	if lower := strings.ToLower(text); lower == "true" || lower == "false" { // as Python writes them
		text = lower
	}
	var value any
	if json.Unmarshal([]byte(text), &value) != nil || value == nil {
		return v
	}
	return value
}

// set checks a value, and sets a struct's field to it.
func (f field) set(name string, v any, into reflect.Value) error {
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	s := f.schema
	if s.Type != "string" {
		v = typed(v)
	}
	switch {
	case s.Type == "string":
		return setString(name, s, v, into)
	case s.Type == "integer", s.Type == "number":
		return setNumber(name, s, v, into)
	case s.Type == "boolean":
		b, ok := v.(bool)
		if !ok {
			return invalidArgument(name, v, "true or false")
		}
		into.SetBool(b)
	case s.Type == "array" && f.object != nil:
		return f.setObjects(name, v, into)
	case s.Type == "array":
		return setStrings(name, v, into)
	case f.object != nil:
		m, ok := v.(map[string]any)
		if !ok {
			return invalidArgument(name, v, "an object "+f.object.shape())
		}
		return f.object.decode(name, name+".", m, into)
	default:
		return setMap(name, v, into)
	}
	return nil
}

func setString(name string, schema *jsonschema.Schema, v any, into reflect.Value) error {
	s, ok := v.(string)
	if !ok {
		return invalidArgument(name, v, "a string")
	}
	if schema.Enum != nil && !slices.Contains(schema.Enum, v) {
		var words []string
		for _, e := range schema.Enum {
			words = append(words, fmt.Sprint(e))
		}
		return invalidArgument(name, v, "one of "+strings.Join(words, ", "))
	}
	into.SetString(s)
	return nil
}

func setNumber(name string, s *jsonschema.Schema, v any, into reflect.Value) error {
	allowed := "an integer"
	if s.Type == "number" {
		allowed = "a number"
	}
	if s.Minimum != nil {
		allowed += " from " + strconv.FormatFloat(*s.Minimum, 'f', -1, 64)
	}
	if s.Maximum != nil {
		allowed += " to " + strconv.FormatFloat(*s.Maximum, 'f', -1, 64)
	}
	n, ok := v.(float64)
	isInteger := s.Type == "integer"
	// Beyond 2^53, float64 has not every integer.
	if !ok || isInteger && (n != math.Trunc(n) || math.Abs(n) > 1<<53) ||
		s.Minimum != nil && n < *s.Minimum || s.Maximum != nil && n > *s.Maximum {
		return invalidArgument(name, v, allowed)
	}
	if isInteger {
		into.SetInt(int64(n))
	} else {
		into.SetFloat(n)
	}
	return nil
}

// setObjects sets a list of objects. One object stands for a list of it.
func (f field) setObjects(name string, v any, into reflect.Value) error {
	list, ok := v.([]any)
	if one, single := v.(map[string]any); single {
		list, ok = []any{one}, true
	}
	if !ok {
		return invalidArgument(name, v, "an array of objects "+f.object.shape())
	}
	all := reflect.MakeSlice(into.Type(), len(list), len(list))
	for i, e := range list {
		element := fmt.Sprintf("%s[%d]", name, i)
		m, ok := typed(e).(map[string]any)
		if !ok {
			return invalidArgument(element, e, "an object "+f.object.shape())
		}
		if err := f.object.decode(name, element+".", m, all.Index(i)); err != nil {
			return err
		}
	}
	into.Set(all)
	return nil
}

func setStrings(name string, v any, into reflect.Value) error {
	list, ok := v.([]any)
	out := make([]string, len(list))
	for i, e := range list {
		s, isString := e.(string)
		ok = ok && isString
		out[i] = s
	}
	if !ok {
		return invalidArgument(name, v, "an array of strings")
	}
	into.Set(reflect.ValueOf(out))
	return nil
}

// setMap sets a map of environment variables or of headers.
func setMap(name string, v any, into reflect.Value) error {
	m, ok := v.(map[string]any)
	out := make(map[string]string, len(m))
	for k, e := range m {
		s, isString := e.(string)
		ok = ok && isString && !strings.ContainsAny(k, "=\x00") && k != "" && !strings.Contains(s, "\x00")
		out[k] = s
	}
	if !ok {
		return invalidArgument(name, v, "an object of strings")
	}
	into.Set(reflect.ValueOf(out))
	return nil
}
