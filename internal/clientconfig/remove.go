package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/tailscale/hujson"
)

// errRemove is the error for a file that cannot be changed without a risk for the rest of it.
var errRemove = errors.New("the server cannot be removed without a risk for the rest of the file; do it by hand")

// Remove returns the text of the client's file without the server of that name. The rest of the text stays the same. If
// the server is not there, Remove returns text unchanged.
func (c Client) Remove(text []byte, name string) ([]byte, error) {
	body, hasBOM := bytes.CutPrefix(text, bom)
	if len(bytes.TrimSpace(body)) == 0 {
		return text, nil
	}
	remove := map[syntax]func([]byte, string) ([]byte, error){jsonc: c.removeJSON, toml: c.removeTOML,
		yamlMap: c.removeYAML, yamlList: c.removeYAML}[c.syntax]
	out, err := remove(body, name)
	if err != nil {
		return nil, err
	}
	if out == nil {
		return text, nil
	}
	if hasBOM {
		out = slices.Concat(bom, out)
	}
	return out, nil
}

// removeJSON is Remove for a JSON file; nil: the server is not there.
func (c Client) removeJSON(text []byte, name string) ([]byte, error) {
	root, err := hujson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("it is not JSON%s; correct it first", position(err))
	}
	top, err := asObject(&root, "the file")
	if err != nil {
		return nil, err
	}
	list, err := member(top, c.sectionKey())
	if err != nil || list == nil {
		return nil, err
	}
	servers, err := asObject(list, c.sectionKey())
	if err != nil {
		return nil, err
	}
	if found, err := member(servers, name); err != nil || found == nil {
		return nil, err
	}
	i := slices.IndexFunc(servers.Members, func(m hujson.ObjectMember) bool { return memberName(m) == name })
	out := apply(text, cutMember(text, servers, i))
	before, errB := c.withoutServer(text, name)
	after, errA := c.withoutServer(out, name)
	if errors.Join(errA, errB) != nil || !reflect.DeepEqual(before, after) || c.Has(out, name) {
		return nil, errRemove
	}
	return out, nil
}

// cutMember returns the edits that take a member out of an object, with the line that it leaves empty.
func cutMember(text []byte, o *hujson.Object, i int) (edits []edit) {
	m := o.Members[i]
	start, end := m.Name.StartOffset, m.Value.EndOffset
	if after := end + len(m.Value.AfterExtra); after < len(text) && text[after] == ',' {
		if m.Value.AfterExtra.IsStandard() {
			end = after + 1
		} else {
			edits = append(edits, edit{after, after + 1, ""})
		}
	} else if i > 0 { // the comma before it ends the list otherwise
		last := o.Members[i-1].Value
		if comma := last.EndOffset + len(last.AfterExtra); comma < len(text) && text[comma] == ',' {
			edits = append(edits, edit{comma, comma + 1, ""})
		}
	}
	lineStart, lineEnd := start, end
	for lineStart > 0 && (text[lineStart-1] == ' ' || text[lineStart-1] == '\t') {
		lineStart--
	}
	for lineEnd < len(text) && (text[lineEnd] == ' ' || text[lineEnd] == '\t' || text[lineEnd] == '\r') {
		lineEnd++
	}
	if lineStart > 0 && text[lineStart-1] == '\n' && lineEnd < len(text) && text[lineEnd] == '\n' {
		start, end = lineStart, lineEnd+1
	}
	return append(edits, edit{start, end, ""})
}

// withoutServer parses a client's file, and removes a server whole.
func (c Client) withoutServer(text []byte, name string) (map[string]any, error) {
	top, err := c.withoutEntry(text, name)
	if err != nil {
		return nil, err
	}
	if list, ok := top[c.sectionKey()].(map[string]any); ok {
		delete(list, name)
		if len(list) == 0 {
			delete(top, c.sectionKey())
		}
	}
	return top, nil
}

// PlanRemoval reads the client's file and returns the change that takes the server out; it writes nothing.
func (c Client) PlanRemoval(path, name string) (*Change, error) {
	return planEdit(path, func(text []byte) ([]byte, error) { return c.Remove(text, name) })
}
