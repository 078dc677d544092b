package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	tomllib "github.com/BurntSushi/toml"
)

// A TOML file is changed as text, a statement at a time, since no encoder keeps comments. The library then reads both
// texts: nothing but the entry may differ.

// statement is a statement, a comment or an empty line of a TOML file.
type statement struct {
	start, end int      // offsets in the text, with the line's end
	kind       kind     // what it is
	key        []string // of a table or a value
	value      [2]int   // offsets of a value
	comment    string   // behind a value
}

type kind int

const (
	other      kind = iota // a comment, or nothing
	table                  // [key]
	tableArray             // [[key]]
	assignment             // key = value
)

var errTOML = errors.New("it is not TOML; correct it first")

// putTOML is Put for a TOML file that is not empty.
func (c Client) putTOML(text []byte, s Server) ([]byte, error) {
	before, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	out, err := c.changeTOML(text, before, s)
	if err != nil {
		return nil, err
	}
	after, err := readTOML(out)
	if err != nil {
		return nil, c.byHand(s)
	}
	c.dropEntry(before, s.Name)
	c.dropEntry(after, s.Name)
	if !reflect.DeepEqual(before, after) {
		return nil, c.byHand(s)
	}
	return out, nil
}

// readTOML returns the content of a file. Its error has no text of the file, which may be a secret.
func readTOML(text []byte) (map[string]any, error) {
	top := map[string]any{}
	if err := tomllib.Unmarshal(text, &top); err != nil {
		if p, ok := errors.AsType[tomllib.ParseError](err); ok {
			return nil, fmt.Errorf("it is not TOML: look at line %d; correct it first", p.Position.Line)
		}
		return nil, errTOML
	}
	return top, nil
}

func (c Client) changeTOML(text []byte, top map[string]any, s Server) ([]byte, error) {
	all, err := statements(text)
	if err != nil {
		return nil, c.byHand(s)
	}
	list, _ := top[c.sectionKey()].(map[string]any)
	old, there := list[s.Name].(map[string]any)
	first := slices.IndexFunc(all, func(st statement) bool { return st.is(c.sectionKey(), s.Name) })
	newline := lineEnd(text)
	switch {
	case slices.ContainsFunc(all, func(st statement) bool { // as one value, which no table may follow
		return st.kind == assignment && slices.Equal(st.key, []string{c.sectionKey()})
	}) && list != nil:
		return nil, c.byHand(s)
	case !there && list[s.Name] == nil:
		body := bytes.TrimRight(text, " \t\r\n")
		added := strings.ReplaceAll(c.tomlTable(s), "\n", newline)
		return slices.Concat(body, []byte(newline+newline), []byte(added)), nil
	case first < 0: // it is written in another form
		return nil, c.byHand(s)
	}
	return c.changeTable(text, all, first, old, s)
}

// changeTable changes the table of an entry that is there.
func (c Client) changeTable(text []byte, all []statement, first int, old map[string]any, s Server) ([]byte, error) {
	want, keys, newline := c.entry(s), c.keys(), lineEnd(text)
	var edits []edit
	written, last := map[string]bool{}, all[first].end
	i := first + 1
	for ; i < len(all) && all[i].kind != table && all[i].kind != tableArray; i++ {
		st := all[i]
		if st.kind != assignment {
			continue
		}
		last = st.end
		f, wanted := find(want, st.key[0])
		switch {
		case !slices.Contains(keys, st.key[0]) && !wanted, wanted && f.lasting:
			written[st.key[0]] = true
		case len(st.key) > 1: // a part of a map
			edits = append(edits, edit{st.start, st.end, commentLine(st.comment, newline)})
		case !wanted:
			edits = append(edits, edit{st.start, st.end, commentLine(st.comment, newline)})
		default:
			written[f.key] = true
			if value := tomlValue(f.value); !equalTOML(text[st.value[0]:st.value[1]], value) {
				edits = append(edits, edit{st.value[0], st.value[1], value})
			}
		}
	}
	// Tables below it, such as that of the variables.
	for ; i < len(all); i++ {
		st := all[i]
		if st.kind != table && st.kind != tableArray || !st.below(c.sectionKey(), s.Name) {
			continue
		}
		key := st.key[2]
		if f, wanted := find(want, key); wanted && reflect.DeepEqual(old[key], plainMap(f.value)) ||
			!wanted && !slices.Contains(keys, key) {
			written[key] = true
			continue
		}
		end := st.end
		for _, next := range all[i+1:] {
			if next.kind == table || next.kind == tableArray {
				break
			}
			if next.kind == assignment {
				end = next.end
			}
		}
		if bytes.Contains(text[st.start:end], []byte("#")) {
			return nil, c.commented(s)
		}
		edits = append(edits, edit{st.start, end, ""})
	}
	added := ""
	for _, f := range want {
		if _, has := old[f.key]; !written[f.key] && !(f.lasting && has) {
			added += f.key + " = " + tomlValue(f.value) + newline
		}
	}
	if added != "" && last > 0 && text[last-1] != '\n' {
		added = newline + strings.TrimSuffix(added, newline)
	}
	if added != "" {
		edits = append(edits, edit{last, last, added})
	}
	return apply(text, edits), nil
}

// find returns the field of a key.
func find(e entry, key string) (f field, ok bool) {
	i := slices.IndexFunc(e, func(f field) bool { return f.key == key })
	if i < 0 {
		return field{}, false
	}
	return e[i], true
}

// plainMap returns a map of texts as the library returns it.
func plainMap(v any) any {
	texts, ok := v.(map[string]string)
	if !ok {
		return v
	}
	all := map[string]any{}
	for k, t := range texts {
		all[k] = t
	}
	return all
}

// commentLine is what remains of a line with a comment.
func commentLine(comment, newline string) string {
	if comment == "" {
		return ""
	}
	return comment + newline
}

// is reports whether the statement begins the table of a key.
func (st statement) is(key ...string) bool { return st.kind == table && slices.Equal(st.key, key) }

// below reports whether the statement begins a table below that of a key.
func (st statement) below(key ...string) bool {
	return len(st.key) > len(key) && slices.Equal(st.key[:len(key)], key)
}

// removeTOML removes a server, and returns nil if it is not there.
func (c Client) removeTOML(text []byte, name string) ([]byte, error) {
	before, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	list, _ := before[c.sectionKey()].(map[string]any)
	if list[name] == nil {
		return nil, nil
	}
	all, err := statements(text)
	if err != nil {
		return nil, errRemove
	}
	var edits []edit
	inside := false
	for _, st := range all {
		if st.kind == table || st.kind == tableArray {
			inside = st.is(c.sectionKey(), name) || st.below(c.sectionKey(), name)
		}
		if inside && st.kind != other {
			edits = append(edits, edit{st.start, st.end, ""})
		}
	}
	out := apply(text, edits)
	after, err := readTOML(out)
	delete(list, name)
	if len(list) == 0 {
		delete(before, c.sectionKey())
	}
	if rest, ok := after[c.sectionKey()].(map[string]any); ok && len(rest) == 0 {
		delete(after, c.sectionKey())
	}
	if err != nil || !reflect.DeepEqual(before, after) {
		return nil, errRemove
	}
	return out, nil
}

// tomlTable returns the table of an entry.
func (c Client) tomlTable(s Server) string {
	text := fmt.Sprintf("[%s.%s]\n", c.sectionKey(), s.Name)
	for _, f := range c.entry(s) {
		text += f.key + " = " + tomlValue(f.value) + "\n"
	}
	return text
}

// tomlValue returns a value of an entry. A text of JSON is one of TOML.
func tomlValue(v any) string {
	switch v := v.(type) {
	case []string:
		var all []string
		for _, t := range v {
			all = append(all, tomlValue(t))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case map[string]string:
		var all []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			all = append(all, tomlValue(k)+" = "+tomlValue(v[k]))
		}
		return "{ " + strings.Join(all, ", ") + " }"
	}
	b, _ := encodePlain(v) // a text, number or boolean always encodes
	return string(b)
}

func equalTOML(a []byte, b string) bool {
	x, errX := readTOML(slices.Concat([]byte("a = "), a))
	y, errY := readTOML([]byte("a = " + b))
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// lineEnd returns how the lines of a text end.
func lineEnd(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// edit replaces a part of a text.
type edit struct {
	start, end int
	text       string
}

// apply makes edits that do not overlap.
func apply(text []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	out := []byte{} // not nil
	at := 0
	for _, e := range edits {
		out = append(append(out, text[at:e.start]...), e.text...)
		at = e.end
	}
	return append(out, text[at:]...)
}

// statements divides a TOML file that the library has read into its statements.
func statements(text []byte) (all []statement, err error) {
	r := tomlReader{text: text}
	for r.at < len(text) {
		st := statement{start: r.at}
		r.space()
		switch {
		case r.at >= len(text) || r.peek("\n") || r.peek("\r\n") || r.peek("#"):
		case r.peek("["):
			st.kind = table
			if r.peek("[[") {
				st.kind = tableArray
				r.at++
			}
			r.at++
			if st.key, err = r.key(); err != nil || !r.peek("]") {
				return nil, errTOML
			}
		default:
			st.kind = assignment
			if st.key, err = r.key(); err != nil || !r.peek("=") {
				return nil, errTOML
			}
			r.at++
			r.space()
			st.value[0] = r.at
			if err := r.skipValue(); err != nil {
				return nil, err
			}
			st.value[1] = r.at
		}
		end := len(text)
		if n := bytes.IndexByte(text[r.at:], '\n'); n >= 0 {
			end = r.at + n + 1
		}
		if i := bytes.IndexByte(text[r.at:end], '#'); i >= 0 && st.kind == assignment {
			st.comment = string(bytes.TrimRight(text[r.at+i:end], "\r\n"))
		}
		st.end, r.at = end, end
		all = append(all, st)
	}
	return all, nil
}

// tomlReader reads a TOML file from an offset on.
type tomlReader struct {
	text []byte
	at   int
}

func (r *tomlReader) peek(s string) bool { return bytes.HasPrefix(r.text[r.at:], []byte(s)) }

func (r *tomlReader) space() {
	for r.at < len(r.text) && (r.text[r.at] == ' ' || r.text[r.at] == '\t') {
		r.at++
	}
}

// key reads a key, which may have several parts, and the space after it.
func (r *tomlReader) key() (parts []string, err error) {
	for {
		r.space()
		start := r.at
		switch {
		case r.peek(`"`), r.peek(`'`):
			if err := r.skipText(); err != nil {
				return nil, err
			}
			v, err := readTOML(slices.Concat([]byte("a = "), r.text[start:r.at]))
			if err != nil {
				return nil, err
			}
			part, _ := v["a"].(string)
			parts = append(parts, part)
		default:
			for r.at < len(r.text) && (isWord(r.text[r.at]) || r.text[r.at] == '-') {
				r.at++
			}
			if r.at == start {
				return nil, errTOML
			}
			parts = append(parts, string(r.text[start:r.at]))
		}
		r.space()
		if !r.peek(".") {
			return parts, nil
		}
		r.at++
	}
}

func isWord(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// skipText moves behind a text, of one line or of several.
func (r *tomlReader) skipText() error {
	quote := string(r.text[r.at])
	end := quote
	if r.peek(strings.Repeat(quote, 3)) {
		end = strings.Repeat(quote, 3)
	}
	for r.at += len(end); r.at < len(r.text); r.at++ {
		switch {
		case quote == `"` && r.peek(`\`):
			r.at++
		case r.peek(end):
			r.at += len(end)
			for len(end) == 3 && r.peek(quote) { // quotes before the end
				r.at++
			}
			return nil
		}
	}
	return errTOML
}

// skipValue moves behind a value.
func (r *tomlReader) skipValue() error {
	depth := 0
	for r.at < len(r.text) {
		switch b := r.text[r.at]; {
		case b == '"' || b == '\'':
			if err := r.skipText(); err != nil {
				return err
			}
			if depth == 0 {
				return nil
			}
			continue
		case b == '[' || b == '{':
			depth++
		case b == ']' || b == '}':
			if depth--; depth == 0 {
				r.at++
				return nil
			}
		case b == '#' && depth > 0:
			for r.at < len(r.text) && r.text[r.at] != '\n' {
				r.at++
			}
		case depth == 0 && (b == '\n' || b == '\r' || b == '#' || b == ' ' || b == '\t'):
			return nil // a date with a space is followed by its second half, which is no comment
		}
		r.at++
	}
	return nil
}
