package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// Bounds of what a server may ask a person, in bytes.
const (
	maxQuestion       = 8 << 10
	maxAskedFields    = 32
	maxAskedChoices   = 64
	maxAskedName      = 120
	maxAskedText      = 500
	maxAskedURL       = 2 << 10
	elicitationMethod = "elicitation/create"
	samplingMethod    = "sampling/createMessage"
)

// Question returns the parameters of a server's request with which its client asks the user, or its model. A question of
// the server says whose it is, and no text in it looks like what stands beside it: Sandlot asks, too, and clients show both in the
// same way. An error says what cannot be shown.
func Question(server, method string, params json.RawMessage) (json.RawMessage, error) {
	if err := CheckInputRequest(params); err != nil {
		return nil, err
	}
	if method != elicitationMethod && method != samplingMethod {
		return params, nil
	}
	var p rawjson.Object
	if json.Unmarshal(params, &p) != nil || p == nil {
		return nil, errors.New("its parameters are not an object")
	}
	if method == samplingMethod {
		return sampling(server, p)
	}
	message, mode := rawjson.Text(p["message"]), rawjson.Text(p["mode"])
	if len(message) > maxQuestion {
		return nil, fmt.Errorf("its message has %d bytes: at most %d can be shown", len(message), maxQuestion)
	}
	if mode == "" && len(p["url"]) > 0 {
		mode = "url"
	}
	q := ordered{}
	if meta := passedMeta(p["_meta"]); meta != nil {
		q.add("_meta", meta)
	}
	q.add("message", rawjson.Quote(fmt.Sprintf("The MCP server %s asks:\n%s", spec.ExactCommandLine([]string{server}),
		spec.Quoted(message, maxQuestion))))
	switch mode {
	case "", "form":
		if mode != "" {
			q.add("mode", rawjson.Quote(mode))
		}
		if len(p["requestedSchema"]) > 0 {
			form, err := askedForm(p["requestedSchema"])
			if err != nil {
				return nil, err
			}
			q.add("requestedSchema", form)
		}
	case "url":
		address := rawjson.Text(p["url"])
		if err := checkAskedURL(address); err != nil {
			return nil, err
		}
		q.add("mode", rawjson.Quote(mode))
		q.add("url", rawjson.Quote(address))
		if id := rawjson.Text(p["elicitationId"]); id != "" {
			if !isShown(id, maxAskedText) {
				return nil, errors.New("its elicitationId is too long, or has characters that cannot be shown")
			}
			q.add("elicitationId", rawjson.Quote(id))
		}
	default:
		return nil, fmt.Errorf("it is of the mode %q: form and url are passed on", spec.ClipName(mode))
	}
	return q.encode(), nil
}

// checkAskedURL returns an error if a person should not be sent to an address: they could not see where it leads.
func checkAskedURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		!isShown(address, maxAskedURL) || strings.ContainsFunc(u.Host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return fmt.Errorf("its URL must be http or https, without user name, of at most %d visible characters, and its "+
			"host in ASCII", maxAskedURL)
	}
	return nil
}

// askedForm returns a requestedSchema with all that forms of MCP have, and nothing else, its fields in their order.
func askedForm(raw json.RawMessage) (json.RawMessage, error) {
	var s struct {
		Properties json.RawMessage
		Required   []string
	}
	if json.Unmarshal(raw, &s) != nil || len(s.Properties) > 0 && !rawjson.IsObject(s.Properties) {
		return nil, errors.New("its form is not an object with properties")
	}
	fields, required := ordered{}, []string{}
	var err error
	rawjson.EachMember(s.Properties, func(name string, value json.RawMessage) {
		if err != nil {
			return
		}
		var field json.RawMessage
		switch {
		case !isShown(name, maxAskedName):
			err = errors.New("a field of its form has a name that cannot be shown")
		case fields.has(name):
			err = fmt.Errorf("its form has the field %q twice", name)
		case len(fields) == maxAskedFields:
			err = fmt.Errorf("its form has more than %d fields", maxAskedFields)
		default:
			if field, err = askedField(value); err != nil {
				err = fmt.Errorf("the field %q of its form %w", name, err)
			}
		}
		fields.add(name, field)
		if slices.Contains(s.Required, name) {
			required = append(required, name)
		}
	})
	if err != nil {
		return nil, err
	}
	form := ordered{}
	form.add("type", rawjson.Quote("object"))
	form.add("properties", fields.encode())
	if len(required) > 0 {
		form.add("required", encoded(required))
	}
	return form.encode(), nil
}

// choice is one of the titled values of a field.
type choice struct {
	Const string `json:"const"`
	Title string `json:"title,omitempty"`
}

// asked are the keywords of a field that clients know.
type asked struct {
	Type, Title, Description, Format string
	Enum, EnumNames                  []string
	OneOf                            []choice
	AnyOf                            []json.RawMessage
	Items                            *struct {
		Enum         []string
		AnyOf, OneOf []choice
	}
	Default                                                    json.RawMessage
	MinLength, MaxLength, MinItems, MaxItems, Minimum, Maximum *json.Number
}

// formats are the formats of texts that MCP knows.
var formats = []string{"email", "uri", "date", "date-time"}

func askedField(raw json.RawMessage) (json.RawMessage, error) {
	var p asked
	if json.Unmarshal(raw, &p) != nil {
		return nil, errors.New("is not text, number or choice")
	}
	if p.Type == "" && len(p.AnyOf) > 0 { // one that may be null, which a person leaves empty
		if err := p.takeOnly(); err != nil {
			return nil, err
		}
	}
	if p.Type == "" && (len(p.Enum) > 0 || len(p.OneOf) > 0) {
		p.Type = "string"
	}
	field := ordered{}
	field.add("type", rawjson.Quote(p.Type))
	field.text("title", p.Title, maxAskedName)
	field.text("description", p.Description, maxAskedText)
	switch p.Type {
	case "string":
		if slices.Contains(formats, p.Format) {
			field.add("format", rawjson.Quote(p.Format))
		}
		field.numbers("minLength", p.MinLength, "maxLength", p.MaxLength)
		if err := field.choices(p.Enum, p.EnumNames, p.OneOf, "oneOf"); err != nil {
			return nil, err
		}
		if d := rawjson.Text(p.Default); rawjson.IsString(p.Default) && spec.SafeText(d, maxQuestion) == d {
			field.add("default", rawjson.Quote(d))
		}
	case "number", "integer":
		field.numbers("minimum", p.Minimum, "maximum", p.Maximum)
		var n json.Number
		if json.Unmarshal(p.Default, &n) == nil && len(n) <= maxAskedName && !rawjson.IsString(p.Default) && n != "" {
			field.add("default", json.RawMessage(n))
		}
	case "boolean":
		if d := string(p.Default); d == "true" || d == "false" {
			field.add("default", p.Default)
		}
	case "array":
		field.numbers("minItems", p.MinItems, "maxItems", p.MaxItems)
		if p.Items == nil {
			return nil, errors.New("is a list of no choices")
		}
		items := ordered{}
		if len(p.Items.Enum) > 0 {
			items.add("type", rawjson.Quote("string"))
		}
		if err := items.choices(p.Items.Enum, nil, append(p.Items.AnyOf, p.Items.OneOf...), "anyOf"); err != nil {
			return nil, err
		}
		field.add("items", items.encode())
		var d []string
		if json.Unmarshal(p.Default, &d) == nil && d != nil &&
			!slices.ContainsFunc(d, func(c string) bool { return !isShown(c, maxAskedName) }) {
			field.add("default", encoded(d[:min(len(d), maxAskedChoices)]))
		}
	default:
		return nil, fmt.Errorf("is of the type %q: it must be string, number, integer, boolean, or an array of choices",
			spec.ClipName(p.Type))
	}
	return field.encode(), nil
}

// takeOnly takes what the only schema in AnyOf says that is not for null.
func (p *asked) takeOnly() error {
	var one json.RawMessage
	for _, raw := range p.AnyOf {
		var s struct{ Type string }
		switch {
		case json.Unmarshal(raw, &s) == nil && s.Type == "null":
		case one != nil:
			return errors.New("may be of several types")
		default:
			one = raw
		}
	}
	title, description, value := p.Title, p.Description, p.Default
	if json.Unmarshal(one, p) != nil || p.Type == "" && len(p.Enum) == 0 && len(p.OneOf) == 0 {
		return errors.New("is not text, number or choice")
	}
	if title != "" {
		p.Title = title
	}
	if description != "" {
		p.Description = description
	}
	if len(value) > 0 {
		p.Default = value
	}
	return nil
}

// isShown reports whether a text can be shown as it is, on one line.
func isShown(text string, most int) bool {
	return text != "" && spec.SafeText(text, most) == text && !spec.HasLines(text)
}

// ordered is a JSON object whose members have an order.
type ordered []member

type member struct {
	name  string
	value json.RawMessage
}

func (o *ordered) add(name string, value json.RawMessage) { *o = append(*o, member{name, value}) }

func (o ordered) has(name string) bool {
	return slices.ContainsFunc(o, func(m member) bool { return m.name == name })
}

// text adds a text on one line, unless there is none.
func (o *ordered) text(name, text string, most int) {
	if text = spec.SafeText(strings.Join(strings.Fields(text), " "), most); text != "" {
		o.add(name, rawjson.Quote(text))
	}
}

// numbers adds two limits, as far as there are such.
func (o *ordered) numbers(lowest string, low *json.Number, highest string, high *json.Number) {
	for _, n := range []struct {
		name  string
		value *json.Number
	}{{lowest, low}, {highest, high}} {
		if n.value != nil && len(*n.value) > 0 && len(*n.value) <= maxAskedName {
			o.add(n.name, json.RawMessage(*n.value))
		}
	}
}

// choices adds the values of a field that has such: as texts, or with titles.
func (o *ordered) choices(values, names []string, titled []choice, keyword string) error {
	if len(values) > maxAskedChoices || len(titled) > maxAskedChoices {
		return fmt.Errorf("has more than %d choices", maxAskedChoices)
	}
	for _, c := range titled {
		values = append(values, c.Const)
	}
	if slices.ContainsFunc(values, func(v string) bool { return !isShown(v, maxAskedName) }) {
		return errors.New("has a choice that cannot be shown")
	}
	values = values[:len(values)-len(titled)]
	if len(values) > 0 {
		o.add("enum", encoded(values))
	}
	if len(values) > 0 && len(names) == len(values) {
		shown := make([]string, len(names))
		for i, n := range names {
			shown[i] = spec.SafeText(strings.Join(strings.Fields(n), " "), maxAskedName)
		}
		o.add("enumNames", encoded(shown))
	}
	if len(titled) > 0 {
		shown := make([]choice, len(titled))
		for i, c := range titled {
			shown[i] = choice{c.Const, spec.SafeText(strings.Join(strings.Fields(c.Title), " "), maxAskedName)}
		}
		o.add(keyword, encoded(shown))
	}
	return nil
}

func (o ordered) encode() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(rawjson.Quote(m.name))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// encoded returns the JSON of what always has one.
func encoded(v any) json.RawMessage {
	b, _ := rawjson.Encode(v)
	return b
}
