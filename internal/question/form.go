package question

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
)

// Form is what a third-party server asks a person to fill in (MCP's elicitation). The answer to such a question counts
// once, and is stored nowhere.
type Form struct {
	Fields []Field `json:"fields"`
}

// Field is a field of a form: one that a page or a command line can show.
type Field struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Type        string          `json:"type"` // string, number, integer or boolean
	Choices     []string        `json:"choices,omitempty"`
	Required    bool            `json:"required,omitempty"`
	Default     json.RawMessage `json:"default,omitempty"`

	limits limits
}

// limits are those of a field's value; nil: none.
type limits struct {
	MinLength, MaxLength *int // of a string, in characters
	Minimum, Maximum     *float64
}

// Bounds of a form that people read, and of its content, in bytes.
const (
	maxFields, maxChoices          = 32, 64
	maxName, maxFieldText, maxText = 120, 500, 16 << 10
)

// property is a property of a requested schema.
type property struct {
	Type, Title, Description string
	Enum                     []string
	OneOf                    []struct{ Const string }
	Default                  json.RawMessage
	limits
}

// hasLines reports whether a text may end the line that shows it, or move in it.
func hasLines(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
	})
}

// oneLine returns a text with its lines in one.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// ParseForm reads the requestedSchema of an elicitation. The error says what of it cannot be shown. A name, a title, a
// description and a choice are each on one line: a server cannot imitate what is shown beside them.
func ParseForm(schema json.RawMessage, safe func(text string, most int) string) (*Form, error) {
	var s struct {
		Properties json.RawMessage
		Required   []string
	}
	var fields map[string]json.RawMessage
	if len(schema) > 0 && (json.Unmarshal(schema, &s) != nil ||
		len(s.Properties) > 0 && json.Unmarshal(s.Properties, &fields) != nil) {
		return nil, errors.New("the form is not an object with properties")
	}
	if len(fields) > maxFields {
		return nil, fmt.Errorf("the form has %d fields; %d can be shown", len(fields), maxFields)
	}
	var names []string // in their order
	rawjson.EachMember(s.Properties, func(name string, _ json.RawMessage) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	})
	f := &Form{Fields: []Field{}}
	for _, name := range names {
		var p property
		if safe(name, maxName) != name || name == "" || hasLines(name) {
			return nil, errors.New("a field has a name that cannot be shown")
		}
		if json.Unmarshal(fields[name], &p) != nil {
			return nil, fmt.Errorf("the field %q is not text, number or choice", name)
		}
		field := Field{Name: name, Title: safe(oneLine(p.Title), maxName), Type: p.Type,
			Description: safe(oneLine(p.Description), maxFieldText), Choices: p.Enum,
			Required: slices.Contains(s.Required, name), limits: p.limits}
		for _, o := range p.OneOf {
			field.Choices = append(field.Choices, o.Const)
		}
		if !slices.Contains([]string{"string", "number", "integer", "boolean"}, p.Type) ||
			len(field.Choices) > 0 && p.Type != "string" {
			return nil, fmt.Errorf("the field %q is of the type %q: it must be string, number, integer or "+
				"boolean", name, safe(p.Type, maxName))
		}
		if len(field.Choices) > maxChoices || slices.ContainsFunc(field.Choices,
			func(c string) bool { return safe(c, maxName) != c || hasLines(c) }) {
			return nil, fmt.Errorf("the choices of the field %q cannot be shown", name)
		}
		if v, err := field.value(p.Default); err == nil {
			field.Default = v
		}
		f.Fields = append(f.Fields, field)
	}
	return f, nil
}

// Fill returns the content of a form with values, by the names of the fields; fields that have a default need none.
// Numbers and true or false may be texts.
func (f *Form) Fill(values map[string]json.RawMessage) (json.RawMessage, error) {
	content := map[string]json.RawMessage{}
	for _, field := range f.Fields {
		raw, given := values[field.Name]
		switch {
		case !given && field.Default != nil:
			content[field.Name] = field.Default
		case !given && field.Required:
			return nil, fault.Argument("content", "the form needs %q", field.Name).With("missing", field.Name)
		case given:
			v, err := field.value(raw)
			if err != nil {
				return nil, fault.Argument("content", "%q %v", field.Name, err)
			}
			content[field.Name] = v
		}
		delete(values, field.Name)
	}
	for name := range values {
		return nil, fault.Argument("content", "the form has no field %q", fault.Clip(name))
	}
	return json.Marshal(content)
}

// value returns a value in the type of the field.
func (f *Field) value(raw json.RawMessage) (json.RawMessage, error) {
	text := string(raw)
	if text == "null" {
		return nil, errors.New("must not be null")
	}
	isText := json.Unmarshal(raw, &text) == nil
	switch f.Type {
	case "boolean":
		if text != "true" && text != "false" {
			return nil, errors.New("must be true or false")
		}
		return json.RawMessage(text), nil
	case "number", "integer":
		n, err := strconv.ParseFloat(text, 64)
		if f.Type == "integer" && err == nil {
			_, err = strconv.ParseInt(text, 10, 64)
		}
		if err != nil || len(text) > maxName || !json.Valid([]byte(text)) { // such as 0x10, 1_0, Inf
			return nil, fmt.Errorf("must be a number (%s)", f.Type)
		}
		if m := f.limits.Minimum; m != nil && n < *m {
			return nil, fmt.Errorf("must be at least %g", *m)
		}
		if m := f.limits.Maximum; m != nil && n > *m {
			return nil, fmt.Errorf("must be at most %g", *m)
		}
		return json.RawMessage(text), nil // exactly: a float has 53 bits
	}
	n := utf8.RuneCountInString(text)
	switch {
	case !isText || len(text) > maxText:
		return nil, fmt.Errorf("must be a text of at most %d bytes", maxText)
	case len(f.Choices) > 0 && !slices.Contains(f.Choices, text):
		return nil, fmt.Errorf("must be one of %q", f.Choices)
	case f.limits.MinLength != nil && n < *f.limits.MinLength:
		return nil, fmt.Errorf("must have at least %d characters", *f.limits.MinLength)
	case f.limits.MaxLength != nil && n > *f.limits.MaxLength:
		return nil, fmt.Errorf("must have at most %d characters", *f.limits.MaxLength)
	}
	return json.Marshal(text)
}
