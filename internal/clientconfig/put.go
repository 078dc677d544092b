package clientconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// Put returns the text of the client's file with the server added. The rest of the text stays the same,
// byte for byte: comments, order, white space. An existing entry keeps the keys that are not in
// entryKeys. If the entry is already up to date, Put returns text unchanged.
func (c Client) Put(text []byte, s Server) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return []byte(c.Snippet(s) + "\n"), nil
	}
	mark := []byte("\xef\xbb\xbf")
	body, marked := bytes.CutPrefix(text, mark)
	root, err := hujson.Parse(body)
	if err != nil {
		return nil, fmt.Errorf("it is not JSON%s; correct it first", place(err))
	}
	top, err := object(&root, "the file")
	if err != nil {
		return nil, err
	}
	d := document{body, newDocument(body, top)}
	out, err := c.put(d, &root, top, s)
	if err == nil {
		err = c.only(body, out, s)
	}
	if err != nil {
		return nil, err
	}
	if marked {
		out = append(mark, out...)
	}
	return out, nil
}

func (c Client) put(d document, root *hujson.Value, top *hujson.Object, s Server) ([]byte, error) {
	list, err := member(top, c.format.section)
	if err != nil {
		return nil, err
	}
	if list == nil {
		return d.add(root, top, c.format.section, map[string]any{s.Name: c.entry(s)}), nil
	}
	servers, err := object(list, c.format.section)
	if err != nil {
		return nil, err
	}
	old, err := member(servers, s.Name)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return d.add(list, servers, s.Name, c.entry(s)), nil
	}
	was, err := object(old, s.Name)
	if err != nil {
		return nil, err
	}
	merged, same, err := merge(was, c.entry(s))
	if err != nil || same {
		return d.text, err
	}
	if comments(old) {
		return nil, fmt.Errorf("its entry %q has comments, which would be lost; make it this by hand:\n%s", s.Name,
			c.Snippet(s))
	}
	return d.replace(old, merged), nil
}

// comments reports whether there are comments inside a value.
func comments(v *hujson.Value) bool {
	inside := v.Clone()
	inside.BeforeExtra, inside.AfterExtra = nil, nil
	for part := range inside.All() {
		extra := slices.Concat(part.BeforeExtra, part.AfterExtra)
		switch p := part.Value.(type) {
		case *hujson.Object:
			extra = append(extra, p.AfterExtra...)
		case *hujson.Array:
			extra = append(extra, p.AfterExtra...)
		}
		if !extra.IsStandard() {
			return true
		}
	}
	return false
}

// place returns the position from a parser's error, without the text at it, which may be a secret.
func place(err error) string {
	if at := regexp.MustCompile(`line \d+, column \d+`).FindString(err.Error()); at != "" {
		return ": look at " + at
	}
	return ""
}

func object(v *hujson.Value, what string) (*hujson.Object, error) {
	o, ok := v.Value.(*hujson.Object)
	if !ok {
		return nil, fmt.Errorf("%s is not a JSON object, with { and }; correct it first", what)
	}
	return o, nil
}

// member returns the value of a key, or nil.
func member(o *hujson.Object, key string) (*hujson.Value, error) {
	var found *hujson.Value
	for i := range o.Members {
		if name(o.Members[i]) != key {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the key %q occurs twice in it; correct it first", key)
		}
		found = &o.Members[i].Value
	}
	return found, nil
}

func name(m hujson.ObjectMember) string {
	l, _ := m.Name.Value.(hujson.Literal)
	return l.String()
}

// pair is a key with its value.
type pair struct {
	key   string
	value json.RawMessage
}

// pairs is a JSON object whose keys keep their order.
type pairs []pair

func (p pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(e.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(e.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// merge returns an existing entry with the new values of the keys in entryKeys. same: nothing changed.
func merge(was *hujson.Object, e entry) (merged pairs, same bool, err error) {
	want := map[string]json.RawMessage{}
	text, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		return nil, false, err
	}
	same = true
	for _, m := range was.Members {
		key, value := name(m), m.Value.Clone()
		value.BeforeExtra, value.AfterExtra = nil, nil
		value.Standardize()
		old, now := json.RawMessage(value.Pack()), want[key]
		if !slices.Contains(entryKeys, key) {
			merged = append(merged, pair{key, old})
			continue
		}
		same = same && now != nil && equal(old, now)
		if now != nil {
			merged = append(merged, pair{key, now})
		}
		delete(want, key)
	}
	for _, key := range entryKeys {
		if now := want[key]; now != nil {
			merged, same = append(merged, pair{key, now}), false
		}
	}
	return merged, same, nil
}

func equal(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// only returns an error if more than the server's entry has changed.
func (c Client) only(before, after []byte, s Server) error {
	a, errA := c.without(before, s)
	b, errB := c.without(after, s)
	if err := errors.Join(errA, errB); err != nil || !reflect.DeepEqual(a, b) {
		return fmt.Errorf("it cannot be changed without a risk for the rest of it; put this in by hand:\n%s",
			c.Snippet(s))
	}
	return nil
}

// without parses a client's file and removes what Put may change: the entry's keys, and the objects that
// are empty without them.
func (c Client) without(text []byte, s Server) (map[string]any, error) {
	plain, err := hujson.Standardize(bytes.Clone(text))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(plain))
	dec.UseNumber()
	top := map[string]any{}
	if err := dec.Decode(&top); err != nil {
		return nil, err
	}
	list, _ := top[c.format.section].(map[string]any)
	if e, ok := list[s.Name].(map[string]any); ok {
		for _, k := range entryKeys {
			delete(e, k)
		}
		if len(e) == 0 {
			delete(list, s.Name)
		}
	}
	if len(list) == 0 {
		delete(top, c.format.section)
	}
	return top, nil
}

// document is the text of a JSON file, which can be edited.
type document struct {
	text []byte
	style
}

// style is the white space of a document.
type style struct {
	indent, newline string
	dense           bool // all on one line
}

func newDocument(text []byte, top *hujson.Object) style {
	s := style{indent: "  ", newline: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		s.newline = "\r\n"
	}
	s.dense = len(top.Members) > 0 && !bytes.Contains(bytes.TrimSpace(text), []byte("\n"))
	if len(top.Members) > 0 {
		if lead, whole := margin(text, top.Members[0].Name.StartOffset); whole && lead != "" {
			s.indent = lead
		}
	}
	return s
}

// margin returns the indentation of the line at an offset. The second result is true if there is only
// white space before the offset.
func margin(text []byte, offset int) (string, bool) {
	line := text[bytes.LastIndexByte(text[:offset], '\n')+1 : offset]
	lead := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	return string(lead), len(lead) == len(line)
}

func (d document) write(v any, margin string) string {
	if d.dense {
		b, _ := json.Marshal(v) // strings and parsed JSON always encode
		return string(b)
	}
	return strings.ReplaceAll(render(v, margin, d.indent), "\n", d.newline)
}

func (d document) replace(old *hujson.Value, v any) []byte {
	lead, _ := margin(d.text, old.StartOffset)
	return slices.Concat(d.text[:old.StartOffset], []byte(d.write(v, lead)), d.text[old.EndOffset:])
}

// add appends a member to an object.
func (d document) add(at *hujson.Value, o *hujson.Object, key string, v any) []byte {
	closing, _ := margin(d.text, at.StartOffset)
	lead := closing + d.indent
	end := at.EndOffset - 1 // offset of the }
	rest := end - len(o.AfterExtra)
	head, comma := d.text[:rest], ""
	if n := len(o.Members); n > 0 {
		if l, whole := margin(d.text, o.Members[0].Name.StartOffset); whole {
			lead = l
		}
		last := o.Members[n-1].Value
		if last.AfterExtra == nil { // no comma after it
			head, comma = d.text[:last.EndOffset], ","
			rest = last.EndOffset
		}
	}
	quoted, _ := json.Marshal(key)
	if d.dense {
		return slices.Concat(head, []byte(comma), bytes.TrimRight(d.text[rest:end], " \t"),
			fmt.Appendf(nil, "%s:%s", quoted, d.write(v, "")), d.text[end:])
	}
	kept := bytes.TrimRight(d.text[rest:end], " \t\r\n")
	return slices.Concat(head, []byte(comma), kept, fmt.Appendf(nil, "%s%s%s: %s%s%s", d.newline, lead, quoted,
		d.write(v, lead), d.newline, closing), d.text[end:])
}

// Has reports whether the text of a client's file has a server of that name.
func (c Client) Has(text []byte, server string) bool {
	root, err := hujson.Parse(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))
	if err != nil {
		return false
	}
	at := &root
	for _, key := range []string{c.format.section, server} {
		o, ok := at.Value.(*hujson.Object)
		if !ok {
			return false
		}
		if at, err = member(o, key); err != nil || at == nil {
			return false
		}
	}
	return true
}
