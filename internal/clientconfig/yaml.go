package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	yamllib "go.yaml.in/yaml/v3"
)

// A YAML file is changed as text, whole lines at a time, since the encoder keeps neither empty lines nor the form of
// texts. The library says where everything is, and then reads both texts: nothing but the entry may differ.

// yamlFile is a YAML file with one document, which is a map.
type yamlFile struct {
	lines [][]byte // with their ends
	root  *yamllib.Node
	end   string // of lines
}

// readYAML reads a file. Its error has no text of the file, which may be a secret.
func readYAML(text []byte) (*yamlFile, error) {
	f := &yamlFile{lines: bytes.SplitAfter(text, []byte("\n")), end: lineEnd(text)}
	dec := yamllib.NewDecoder(bytes.NewReader(text))
	var document, more yamllib.Node
	err := dec.Decode(&document)
	switch {
	case errors.Is(err, io.EOF): // comments alone
		return f, nil
	case err != nil:
		return nil, errors.New("it is not YAML; correct it first")
	case !errors.Is(dec.Decode(&more), io.EOF):
		return nil, errors.New("it has several documents of YAML, and one is expected")
	case len(document.Content) != 1 || document.Content[0].Kind != yamllib.MappingNode:
		if len(document.Content) == 1 && document.Content[0].Tag == "!!null" {
			return f, nil
		}
		return nil, errors.New("it is not a map of YAML; correct it first")
	}
	f.root = document.Content[0]
	return f, nil
}

// yamlContent returns the content of a file, without what Put may change of a server.
func (c Client) yamlContent(text []byte, name string) (map[string]any, error) {
	top := map[string]any{}
	if err := yamllib.Unmarshal(text, &top); err != nil {
		return nil, err
	}
	if c.syntax == yamlList { // as if it were a map
		list, _ := top[c.sectionKey()].([]any)
		named, others := map[string]any{}, 0
		for _, v := range list {
			if item, _ := v.(map[string]any); item["name"] == name && named[name] == nil {
				delete(item, "name")
				named[name] = item
				continue
			}
			named[fmt.Sprint("other ", others)] = v
			others++
		}
		top[c.sectionKey()] = named
	} else if section, has := top[c.sectionKey()]; has && section == nil {
		delete(top, c.sectionKey())
	}
	c.dropEntry(top, name)
	return top, nil
}

// child returns the key and the value of a member of a map; nil: there is none.
func child(m *yamllib.Node, name string) (key, value *yamllib.Node) {
	if m == nil || m.Kind != yamllib.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return m.Content[i], m.Content[i+1]
		}
	}
	return nil, nil
}

// findYAML returns the lines of a server, numbered from 1, and its map; nil: it is not there. column is where its key, or
// the dash of its item, is.
func (c Client) findYAML(section *yamllib.Node, name string) (first, last, column int, found *yamllib.Node) {
	if section == nil {
		return 0, 0, 0, nil
	}
	if c.syntax == yamlMap {
		key, value := child(section, name)
		if value == nil {
			return 0, 0, 0, nil
		}
		return key.Line, max(key.Line, lastLine(value)), key.Column, value
	}
	if section.Kind == yamllib.SequenceNode {
		for _, item := range section.Content {
			if _, n := child(item, "name"); n != nil && n.Value == name {
				return item.Line, lastLine(item), section.Column, item
			}
		}
	}
	return 0, 0, 0, nil
}

// lastLine returns the last line of a node.
func lastLine(n *yamllib.Node) int {
	last := n.Line
	if n.Kind == yamllib.ScalarNode && n.Style&(yamllib.LiteralStyle|yamllib.FoldedStyle) != 0 {
		last += strings.Count(strings.TrimRight(n.Value, "\n"), "\n") + 1
	}
	for _, inner := range n.Content {
		last = max(last, lastLine(inner))
	}
	return last
}

// putYAML is Put for a YAML file that is not empty.
func (c Client) putYAML(text []byte, s Server) ([]byte, error) {
	f, err := readYAML(text)
	if err != nil {
		return nil, err
	}
	out, err := c.changeYAML(text, f, s)
	if err != nil {
		return nil, err
	}
	if f.root == nil {
		text = []byte(c.header)
	}
	before, errB := c.yamlContent(text, s.Name)
	after, errA := c.yamlContent(out, s.Name)
	if errors.Join(errA, errB) != nil || !reflect.DeepEqual(before, after) || !c.Has(out, s.Name) {
		return nil, c.byHand(s)
	}
	return out, nil
}

func (c Client) changeYAML(text []byte, f *yamlFile, s Server) ([]byte, error) {
	key, section := child(f.root, c.sectionKey())
	first, last, column, old := c.findYAML(section, s.Name)
	switch {
	case old != nil:
		return c.changeItem(f, first, last, column, old, s)
	case key == nil:
		added := c.yamlSection(s)
		if f.root == nil {
			added = c.header + added
		}
		if f.root != nil && (f.root.Style&yamllib.FlowStyle != 0 || f.root.Column != 1) {
			return nil, c.byHand(s)
		}
		body := bytes.TrimRight(text, " \t\r\n")
		return slices.Concat(body, []byte(f.end), f.ends(added)), nil
	}
	indent := 2
	switch {
	case len(section.Content) > 0 && section.Style&yamllib.FlowStyle == 0:
		if column = section.Content[0].Column; c.syntax == yamlList {
			column = section.Column
		}
		indent = column - 1
	case len(section.Content) > 0 || section.Kind == yamllib.AliasNode || section.Anchor != "":
		return nil, c.byHand(s)
	default: // it is empty: [], {}, null or nothing
		line := f.lines[key.Line-1]
		at := bytes.IndexByte(line, ':')
		if at < 0 || section.Kind == yamllib.ScalarNode && section.Tag != "!!null" {
			return nil, c.byHand(s)
		}
		value, comment := line[at+1:], []byte(nil)
		if i := bytes.IndexByte(value, '#'); i >= 0 {
			value, comment = value[:i], bytes.TrimRight(value[i:], "\r\n")
		}
		switch strings.TrimSpace(string(value)) {
		case "", "[]", "{}", "~", "null":
		default:
			return nil, c.byHand(s)
		}
		kept := string(line[:at+1])
		if len(comment) > 0 {
			kept += " " + string(comment)
		}
		f.lines[key.Line-1] = []byte(kept + f.end)
		indent += key.Column - 1
	}
	added := f.ends(indented(c.yamlItem(s), indent))
	if line := f.lines[key.Line-1]; !bytes.HasSuffix(line, []byte("\n")) {
		f.lines[key.Line-1] = append(bytes.Clone(line), f.end...)
	}
	return slices.Concat(f.join(0, key.Line), added, f.join(key.Line, len(f.lines))), nil
}

// changeItem changes the entry that is there.
func (c Client) changeItem(f *yamlFile, first, last, column int, old *yamllib.Node, s Server) ([]byte, error) {
	if old.Kind != yamllib.MappingNode || old.Style&yamllib.FlowStyle != 0 {
		return nil, c.byHand(s)
	}
	want, keys := c.entry(s), c.keys()
	merged := &yamllib.Node{Kind: yamllib.MappingNode}
	add := func(key string, value *yamllib.Node) {
		merged.Content = append(merged.Content, &yamllib.Node{Kind: yamllib.ScalarNode, Value: key}, value)
	}
	unchanged, written := true, map[string]bool{}
	for i := 0; i+1 < len(old.Content); i += 2 {
		key, value := old.Content[i].Value, old.Content[i+1]
		wanted, isWanted := find(want, key)
		switch {
		case isWanted && wanted.lasting, !isWanted && !slices.Contains(keys, key), c.syntax == yamlList && key == "name":
			add(key, value)
		case isWanted && equalYAML(value, yamlNode(wanted.value)):
			add(key, value)
		case isWanted:
			add(key, yamlNode(wanted.value))
			unchanged = false
		default:
			unchanged = false
		}
		written[key] = true
	}
	for _, w := range want {
		if !written[w.key] {
			add(w.key, yamlNode(w.value))
			unchanged = false
		}
	}
	if unchanged {
		return f.join(0, len(f.lines)), nil
	}
	if slices.ContainsFunc(f.lines[first-1:last], hasYAMLComment) {
		return nil, c.commented(s)
	}
	item := yamlText(merged)
	if c.syntax == yamlMap {
		item = s.Name + ":\n" + indented(item, 2)
	} else {
		item = "- " + strings.TrimPrefix(indented(item, 2), "  ")
	}
	added := f.ends(indented(item, column-1))
	return slices.Concat(f.join(0, first-1), added, f.join(last, len(f.lines))), nil
}

// hasYAMLComment reports whether a line has a comment: a # after a space, outside of quotes.
func hasYAMLComment(line []byte) bool {
	quote := byte(0)
	for i, b := range line {
		begins := i == 0 || bytes.IndexByte([]byte(" \t[{,"), line[i-1]) >= 0
		switch {
		case quote == '"' && b == '"' && line[i-1] != '\\', quote == '\'' && b == '\'':
			quote = 0
		case quote != 0:
		case begins && (b == '"' || b == '\''):
			quote = b
		case begins && b == '#':
			return true
		}
	}
	return false
}

// removeYAML removes a server, and returns nil if it is not there.
func (c Client) removeYAML(text []byte, name string) ([]byte, error) {
	f, err := readYAML(text)
	if err != nil {
		return nil, err
	}
	key, section := child(f.root, c.sectionKey())
	first, last, _, old := c.findYAML(section, name)
	if old == nil {
		return nil, nil
	}
	servers := len(section.Content)
	if c.syntax == yamlMap {
		servers /= 2
	}
	out := slices.Concat(f.join(0, first-1), f.join(last, len(f.lines)))
	if servers == 1 { // else the section would have no value
		out = slices.Concat(f.join(0, key.Line-1), f.join(key.Line, first-1), f.join(last, len(f.lines)))
	}
	if out == nil { // the file is empty now, and not unchanged
		out = []byte{}
	}
	before, errB := c.yamlContent(text, name)
	after, errA := c.yamlContent(out, name)
	if list, ok := before[c.sectionKey()].(map[string]any); ok { // keys that Put does not change go, too
		delete(list, name)
		if len(list) == 0 {
			delete(before, c.sectionKey())
		}
	}
	if section.Style&yamllib.FlowStyle != 0 || errors.Join(errA, errB) != nil || !reflect.DeepEqual(before, after) {
		return nil, errRemove
	}
	return out, nil
}

// join returns lines from one to before another, numbered from 0.
func (f *yamlFile) join(from, to int) []byte { return bytes.Join(f.lines[from:to], nil) }

// ends returns a text with the file's ends of lines.
func (f *yamlFile) ends(text string) []byte { return []byte(strings.ReplaceAll(text, "\n", f.end)) }

// yamlSection returns the section with one server.
func (c Client) yamlSection(s Server) string {
	return c.sectionKey() + ":\n" + indented(c.yamlItem(s), 2)
}

// yamlItem returns a server as it is in the section.
func (c Client) yamlItem(s Server) string {
	if c.syntax == yamlMap {
		return s.Name + ":\n" + indented(yamlText(yamlNode(c.entry(s))), 2)
	}
	item := yamlText(yamlNode(append(entry{}.with("name", s.Name), c.entry(s)...)))
	return "- " + strings.TrimPrefix(indented(item, 2), "  ")
}

// yamlNode returns a value of an entry.
func yamlNode(v any) *yamllib.Node {
	if e, ok := v.(entry); ok {
		n := &yamllib.Node{Kind: yamllib.MappingNode}
		for _, f := range e {
			n.Content = append(n.Content, &yamllib.Node{Kind: yamllib.ScalarNode, Value: f.key}, yamlNode(f.value))
		}
		return n
	}
	n := new(yamllib.Node)
	_ = n.Encode(v) // texts, numbers and booleans always encode
	return n
}

func yamlText(n *yamllib.Node) string {
	var b strings.Builder
	enc := yamllib.NewEncoder(&b)
	enc.SetIndent(2)
	_ = enc.Encode(n)
	_ = enc.Close()
	return b.String()
}

func equalYAML(a, b *yamllib.Node) bool {
	var x, y any
	return a.Decode(&x) == nil && b.Decode(&y) == nil && reflect.DeepEqual(x, y)
}

// indented returns a text whose lines begin with more spaces.
func indented(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) != "" {
			lines[i] = strings.Repeat(" ", n) + l
		}
	}
	return strings.Join(lines, "")
}
