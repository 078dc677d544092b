package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// objectSchema returns a safe JSON schema of an object, with the names of the keywords that were left out, or an error
// if raw is not one.
func objectSchema(raw json.RawMessage) (_ json.RawMessage, lost []string, err error) {
	switch {
	case isBlank(raw), string(raw) == "true":
		return json.RawMessage(`{"type":"object"}`), nil, nil
	}
	m, lost, err := readSchema(raw, false)
	if err != nil {
		return nil, nil, err
	}
	if kinds, ok := m["type"].([]any); ok && slices.Contains(kinds, any("object")) {
		m["type"] = "object"
	}
	if kind, given := m["type"]; !given {
		m["type"] = "object"
	} else if kind != "object" {
		return nil, nil, fmt.Errorf("its schema is of type %s, not object", spec.ClipName(fmt.Sprint(kind)))
	}
	out, err := rawjson.Encode(m)
	return out, lost, err
}

// cleanOutputSchema makes the outputSchema of a tool safe. If it cannot, it removes the schema
// and returns why: the tool is still useful.
func cleanOutputSchema(t rawjson.Object) (lost []string, err error) {
	raw, ok := t["outputSchema"]
	if !ok {
		return nil, nil
	}
	delete(t, "outputSchema")
	if isBlank(raw) {
		return nil, nil
	}
	m, lost, err := readSchema(raw, true)
	if err != nil {
		return nil, err
	}
	if _, typed := m["type"]; !typed && m["properties"] != nil { // revisions before 2026-07-28 want it
		m["type"] = "object"
	}
	t["outputSchema"], err = rawjson.Encode(m)
	return lost, err
}

// readSchema decodes a schema, repairs it and makes its texts safe; see repairSchema. The schema has to be bounded and
// must not refer to anything outside of it.
func readSchema(raw json.RawMessage, result bool) (_ map[string]any, lost []string, err error) {
	if len(raw) > maxSchema {
		return nil, nil, fmt.Errorf("its schema has %d bytes, and %d are taken", len(raw), maxSchema)
	}
	if rawjson.NestedDeeper(raw, maxDepth) {
		return nil, nil, fmt.Errorf("its schema is nested deeper than %d", maxDepth)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	m, ok := map[string]any{}, false
	if d.Decode(&v) == nil {
		m, ok = v.(map[string]any)
	}
	if !ok {
		return nil, nil, errors.New("its schema is not an object")
	}
	for _, k := range []string{"$id", "id"} { // a base URI: validators would resolve references against it
		if s, ok := m[k].(string); ok && !strings.HasPrefix(s, "#") {
			delete(m, k)
		}
	}
	if err := checkSelfContained(m); err != nil {
		return nil, nil, err
	}
	lost = repairSchema(m, result)
	cleanTexts(m)
	return m, lost, nil
}

// cleanTexts makes the texts of a schema safe that models read. Of duplicate members,
// only the last was decoded; it is also the one that is approved.
func cleanTexts(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			cleanTexts(e)
		}
	case map[string]any:
		for k, e := range v {
			if s, ok := e.(string); ok && (k == "description" || k == "title" || k == "$comment") {
				v[k] = spec.SafeText(s, maxDescription)
				continue
			}
			cleanTexts(e)
		}
	}
}

// refChecker finds out whether a schema refers to anything outside of it. To validate by
// such a schema, a client would have to fetch URLs of the server's choice.
//
// A client that follows a reference fetches an address that a stranger chose, over the client's network, and
// one that does not cannot check arguments. Removing the reference alone would offer a tool with unknown
// arguments, so a tool with such an input schema is left out; without its output schema a tool is still
// useful. Schemas that bundle others by $id are correct and are left out too: few authors write them, and no
// two clients agree on them.
type refChecker struct {
	// data are the values that are not schemas. They count if a reference may lead into them.
	data        []position
	reachesData bool
}

// position is a value in a schema. It is moved if it is inside an object with $id, against
// which its references would be resolved.
type position struct {
	value any
	moved bool
}

// Keywords of JSON Schema whose values are data, schemas by name, and references. The
// values of all other keywords are treated as schemas.
var (
	dataKeywords      = map[string]bool{"default": true, "const": true, "enum": true, "examples": true, "example": true}
	schemaMapKeywords = map[string]bool{"properties": true, "patternProperties": true, "$defs": true,
		"definitions":      true,
		"dependentSchemas": true, "dependencies": true}
	refKeywords = map[string]bool{"$ref": true, "$dynamicRef": true, "$recursiveRef": true}
)

// checkSelfContained returns an error if a schema refers to anything outside of it.
func checkSelfContained(root map[string]any) error {
	var w refChecker
	err := w.check(position{root, false}, false)
	for i := 0; err == nil && w.reachesData && i < len(w.data); i++ {
		err = w.check(w.data[i], false)
	}
	return err
}

// hasBaseURI reports whether an object has a base URI, against which the references in it are
// resolved. An id that is only a fragment is an anchor instead.
func hasBaseURI(m map[string]any) bool {
	for _, k := range []string{"$id", "id"} {
		if s, ok := m[k].(string); ok && !strings.HasPrefix(s, "#") {
			return true
		}
	}
	return false
}

// check checks a schema, a list of schemas or, with names, an object of schemas by name.
func (w *refChecker) check(at position, names bool) error {
	if list, ok := at.value.([]any); ok {
		for _, e := range list {
			if err := w.check(position{e, at.moved}, false); err != nil {
				return err
			}
		}
		return nil
	}
	m, _ := at.value.(map[string]any)
	moved := at.moved || hasBaseURI(m)
	if s, ok := m["$schema"].(string); ok && !isKnownDialect(s) {
		delete(m, "$schema")
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		var err error
		text, isText := m[k].(string)
		switch value := (position{m[k], moved}); {
		case refKeywords[k] && isText: // also as a name: it is no schema then, but some validators follow it
			err = w.checkReference(k, text, moved)
		case refKeywords[k] && !names && m[k] != nil:
			err = fmt.Errorf("its schema has a %s that is not text", k)
		case dataKeywords[k] && !names:
			w.data = append(w.data, value)
		default:
			err = w.check(value, schemaMapKeywords[k] && !names)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isKnownDialect reports whether a $schema is of json-schema.org, which validators know.
func isKnownDialect(dialect string) bool {
	u, err := url.Parse(dialect)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host == "json-schema.org"
}

// checkReference checks a reference. What it leads to is checked where that is.
func (w *refChecker) checkReference(keyword, text string, moved bool) error {
	fragment, inside := strings.CutPrefix(text, "#")
	fragment, err := url.PathUnescape(fragment)
	switch {
	case !inside && text != "" || err != nil:
		return fmt.Errorf("its schema refers to something outside of it: %s %q", keyword, spec.ClipName(text))
	case moved:
		return fmt.Errorf("its schema refers to something from beneath an $id: %s %q", keyword, spec.ClipName(text))
	}
	definition := strings.Count(fragment, "/") == 2 &&
		(strings.HasPrefix(fragment, "/$defs/") || strings.HasPrefix(fragment, "/definitions/"))
	w.reachesData = w.reachesData || fragment != "" && !definition // a pointer or an anchor may be anywhere
	return nil
}

// CheckInputRequest returns an error if a server's request for input (elicitation or
// sampling) must not be passed on to a client: a schema in it refers to something outside
// of it.
func CheckInputRequest(params json.RawMessage) error {
	var p rawjson.Object
	if !bytes.Contains(bytes.ToLower(params), []byte("ref")) && !bytes.Contains(params, []byte(`\u`)) ||
		json.Unmarshal(params, &p) != nil {
		return nil // without references; or invalid, which the client reports
	}
	all := []json.RawMessage{p["requestedSchema"]}
	var tools []rawjson.Object // of sampling
	_ = json.Unmarshal(p["tools"], &tools)
	for _, t := range tools {
		all = append(all, t["inputSchema"], t["outputSchema"])
	}
	for _, raw := range all {
		var m map[string]any
		if !rawjson.IsObject(raw) {
			continue
		}
		if rawjson.NestedDeeper(raw, maxDepth) || json.Unmarshal(raw, &m) != nil {
			return errors.New("its schema is nested too deep, or no object")
		}
		if err := checkSelfContained(m); err != nil {
			return err
		}
	}
	return nil
}

// checkInputRequests calls CheckInputRequest for all requests of a result of the type input_required.
func checkInputRequests(requests json.RawMessage) error {
	var all map[string]rawjson.Object
	if len(requests) == 0 {
		return nil
	}
	if json.Unmarshal(requests, &all) != nil {
		return fault.New(fault.Connection,
			"the server asks for input in a form that Sandlot does not pass on: it cannot be read")
	}
	for _, q := range all {
		if err := CheckInputRequest(q["params"]); err != nil {
			return fault.New(fault.Connection, "the server asks for input in a form that Sandlot does not pass on: %v",
				err)
		}
	}
	return nil
}
