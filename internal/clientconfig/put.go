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
		return []byte(c.header + c.Snippet(s) + "\n"), nil
	}
	body, hasBOM := bytes.CutPrefix(text, bom)
	put := map[syntax]func([]byte, Server) ([]byte, error){jsonc: c.putJSON, toml: c.putTOML, yamlMap: c.putYAML,
		yamlList: c.putYAML}[c.syntax]
	out, err := put(body, s)
	if err != nil {
		return nil, err
	}
	if hasBOM {
		out = slices.Concat(bom, out)
	}
	return out, nil
}

// bom may begin a file of Windows.
var bom = []byte("\xef\xbb\xbf")

// byHand is the error for a file that cannot be changed without a risk for the rest of it.
func (c Client) byHand(s Server) error {
	return fmt.Errorf("it cannot be changed without a risk for the rest of the file; put this in by hand:\n%s",
		c.Snippet(s))
}

// commented is the error for an entry whose comments a change would lose.
func (c Client) commented(s Server) error {
	return fmt.Errorf("its entry %q has comments, which would be lost; make it this by hand:\n%s", s.Name, c.Snippet(s))
}

// putJSON is Put for a JSON file that is not empty.
func (c Client) putJSON(body []byte, s Server) ([]byte, error) {
	root, err := hujson.Parse(body)
	if err != nil {
		return nil, fmt.Errorf("it is not JSON%s; correct it first", position(err))
	}
	top, err := asObject(&root, "the file")
	if err != nil {
		return nil, err
	}
	d := document{body, detectStyle(body, top)}
	out, err := c.put(d, &root, top, s)
	if err == nil {
		err = c.checkOnlyEntryChanged(body, out, s)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (c Client) put(d document, root *hujson.Value, top *hujson.Object, s Server) ([]byte, error) {
	list, err := member(top, c.sectionKey())
	if err != nil {
		return nil, err
	}
	if list == nil {
		return d.add(root, top, c.sectionKey(), map[string]any{s.Name: c.entry(s)}), nil
	}
	servers, err := asObject(list, c.sectionKey())
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
	oldEntry, err := asObject(old, s.Name)
	if err != nil {
		return nil, err
	}
	merged, unchanged, err := merge(oldEntry, c.entry(s), c.keys())
	if err != nil || unchanged {
		return d.text, err
	}
	if hasComments(old) {
		return nil, c.commented(s)
	}
	return d.replace(old, merged), nil
}

// hasComments reports whether there are comments inside a value.
func hasComments(v *hujson.Value) bool {
	inner := v.Clone()
	inner.BeforeExtra, inner.AfterExtra = nil, nil
	for part := range inner.All() {
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

// position returns the position from a parser's error, without the text at it, which may be a secret.
func position(err error) string {
	if match := regexp.MustCompile(`line \d+, column \d+`).FindString(err.Error()); match != "" {
		return ": look at " + match
	}
	return ""
}

func asObject(v *hujson.Value, what string) (*hujson.Object, error) {
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
		if memberName(o.Members[i]) != key {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the key %q occurs twice in it; correct it first", key)
		}
		found = &o.Members[i].Value
	}
	return found, nil
}

func memberName(m hujson.ObjectMember) string {
	l, _ := m.Name.Value.(hujson.Literal)
	return l.String()
}

// merge returns an existing entry with the new values of keys; unchanged: it has them already.
func merge(old *hujson.Object, e entry, keys []string) (merged json.RawMessage, unchanged bool, err error) {
	want, lasting := map[string]json.RawMessage{}, map[string]bool{}
	for _, f := range e {
		if want[f.key], err = encodePlain(f.value); err != nil {
			return nil, false, err
		}
		lasting[f.key] = f.lasting
	}
	var members []string
	set := func(key string, value []byte) {
		quoted, _ := json.Marshal(key) // a string always encodes
		members = append(members, string(quoted)+":"+string(value))
	}
	unchanged = true
	for _, m := range old.Members {
		key, value := memberName(m), m.Value.Clone()
		value.BeforeExtra, value.AfterExtra = nil, nil
		value.Standardize()
		oldValue, newValue := value.Pack(), want[key]
		if lasting[key] || !slices.Contains(keys, key) {
			set(key, oldValue)
			delete(want, key)
			continue
		}
		unchanged = unchanged && newValue != nil && equalJSON(oldValue, newValue)
		if newValue != nil {
			set(key, newValue)
		}
		delete(want, key)
	}
	for _, f := range e {
		if newValue := want[f.key]; newValue != nil {
			unchanged = false
			set(f.key, newValue)
		}
	}
	return json.RawMessage("{" + strings.Join(members, ",") + "}"), unchanged, nil
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// checkOnlyEntryChanged returns an error if more than the server's entry has changed.
func (c Client) checkOnlyEntryChanged(before, after []byte, s Server) error {
	a, errA := c.withoutEntry(before, s.Name)
	b, errB := c.withoutEntry(after, s.Name)
	if err := errors.Join(errA, errB); err != nil || !reflect.DeepEqual(a, b) {
		return c.byHand(s)
	}
	return nil
}

// withoutEntry parses a client's file and removes what Put may change: the entry's keys, and the objects that
// are empty without them.
func (c Client) withoutEntry(text []byte, name string) (map[string]any, error) {
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
	c.dropEntry(top, name)
	return top, nil
}

// dropEntry removes what Put may change from the content of a file.
func (c Client) dropEntry(top map[string]any, name string) {
	list, _ := top[c.sectionKey()].(map[string]any)
	if e, ok := list[name].(map[string]any); ok {
		for _, k := range c.keys() {
			delete(e, k)
		}
		for _, f := range c.entry(Server{Name: name}) {
			delete(e, f.key) // also those that last
		}
		if len(e) == 0 {
			delete(list, name)
		}
	}
	if len(list) == 0 {
		delete(top, c.sectionKey())
	}
}

// document is the text of a JSON file, which can be edited.
type document struct {
	text []byte
	style
}

// style is the white space of a document.
type style struct {
	indent, newline string
	oneLine         bool // all on one line
}

func detectStyle(text []byte, top *hujson.Object) style {
	s := style{indent: "  ", newline: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		s.newline = "\r\n"
	}
	s.oneLine = len(top.Members) > 0 && !bytes.Contains(bytes.TrimSpace(text), []byte("\n"))
	if len(top.Members) > 0 {
		if indent, first := indentation(text, top.Members[0].Name.StartOffset); first && indent != "" {
			s.indent = indent
		}
	}
	return s
}

// indentation returns the indentation of the line at an offset. The second result is true if there is only
// white space before the offset.
func indentation(text []byte, offset int) (string, bool) {
	line := text[bytes.LastIndexByte(text[:offset], '\n')+1 : offset]
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	return string(indent), len(indent) == len(line)
}

func (d document) marshal(v any, indent string) string {
	if d.oneLine {
		b, _ := json.Marshal(v) // strings and parsed JSON always encode
		return string(b)
	}
	return strings.ReplaceAll(render(v, indent, d.indent), "\n", d.newline)
}

func (d document) replace(old *hujson.Value, v any) []byte {
	indent, _ := indentation(d.text, old.StartOffset)
	return slices.Concat(d.text[:old.StartOffset], []byte(d.marshal(v, indent)), d.text[old.EndOffset:])
}

// add appends a member to an object.
func (d document) add(object *hujson.Value, members *hujson.Object, key string, v any) []byte {
	closingIndent, _ := indentation(d.text, object.StartOffset)
	memberIndent := closingIndent + d.indent
	end := object.EndOffset - 1 // offset of the }
	tail := end - len(members.AfterExtra)
	head, comma := d.text[:tail], ""
	if n := len(members.Members); n > 0 {
		if indent, first := indentation(d.text, members.Members[0].Name.StartOffset); first {
			memberIndent = indent
		}
		last := members.Members[n-1].Value
		if last.AfterExtra == nil { // no comma after it
			head, comma = d.text[:last.EndOffset], ","
			tail = last.EndOffset
		}
	}
	quoted, _ := json.Marshal(key)
	if d.oneLine {
		return slices.Concat(head, []byte(comma), bytes.TrimRight(d.text[tail:end], " \t"),
			fmt.Appendf(nil, "%s:%s", quoted, d.marshal(v, "")), d.text[end:])
	}
	trailing := bytes.TrimRight(d.text[tail:end], " \t\r\n")
	return slices.Concat(head, []byte(comma), trailing, fmt.Appendf(nil, "%s%s%s: %s%s%s", d.newline, memberIndent,
		quoted,
		d.marshal(v, memberIndent), d.newline, closingIndent), d.text[end:])
}
