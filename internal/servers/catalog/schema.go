package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// objectSchema returns a safe JSON schema of an object, or an error if raw is not one.
func objectSchema(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage(`{"type":"object"}`), nil
	}
	m, err := readSchema(raw)
	if err != nil {
		return nil, err
	}
	if kind, given := m["type"]; !given {
		m["type"] = "object"
	} else if kind != "object" {
		return nil, fmt.Errorf("its schema is of type %s, not object", spec.ClipName(fmt.Sprint(kind)))
	}
	return rawjson.Encode(m)
}

// cleanOutputSchema makes the outputSchema of a tool safe. If it cannot, it removes the schema
// and returns why: the tool is still useful.
func cleanOutputSchema(t rawjson.Object) error {
	raw, ok := t["outputSchema"]
	if !ok {
		return nil
	}
	delete(t, "outputSchema")
	m, err := readSchema(raw)
	if err == nil {
		t["outputSchema"], err = rawjson.Encode(m)
	}
	return err
}

// readSchema decodes a schema and makes its texts safe. The schema has to be bounded and
// must not refer to anything outside of it.
func readSchema(raw json.RawMessage) (map[string]any, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("its schema has %d bytes, and %d are taken", len(raw), maxSchema)
	}
	if rawjson.NestedDeeper(raw, maxDepth) {
		return nil, fmt.Errorf("its schema is nested deeper than %d", maxDepth)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	m, ok := map[string]any{}, false
	if d.Decode(&v) == nil {
		m, ok = v.(map[string]any)
	}
	if !ok {
		return nil, errors.New("its schema is no object")
	}
	for _, k := range []string{"$id", "id"} { // a base URI: validators would resolve references against it
		if s, ok := m[k].(string); ok && !strings.HasPrefix(s, "#") {
			delete(m, k)
		}
	}
	if err := checkSelfContained(m); err != nil {
		return nil, err
	}
	cleanTexts(m)
	return m, nil
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
type refChecker struct {
	root    map[string]any
	seen    map[visit]bool
	anchors map[string][]target
}

// target is the target of a reference. It is moved if it is inside an object with $id,
// against which its own references would be resolved.
type target struct {
	schema map[string]any
	moved  bool
}

type visit struct {
	object uintptr
	moved  bool
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
	w := &refChecker{root: root, seen: map[visit]bool{}, anchors: map[string][]target{}}
	w.collectAnchors(root, false)
	return w.checkSchema(root, false)
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

// collectAnchors collects all anchors, also those in data, where validators may look for them.
func (w *refChecker) collectAnchors(v any, moved bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			w.collectAnchors(e, moved)
		}
	case map[string]any:
		moved = moved || hasBaseURI(v)
		for _, k := range []string{"$anchor", "$dynamicAnchor", "$id", "id"} {
			if s, ok := v[k].(string); ok {
				s = strings.TrimPrefix(s, "#")
				w.anchors[s] = append(w.anchors[s], target{v, moved})
			}
		}
		for _, e := range v {
			w.collectAnchors(e, moved)
		}
	}
}

// checkSchema checks a value that is treated as a schema, or as a list of schemas.
func (w *refChecker) checkSchema(v any, moved bool) error {
	if list, ok := v.([]any); ok {
		for _, e := range list {
			if err := w.checkSchema(e, moved); err != nil {
				return err
			}
		}
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	moved = moved || hasBaseURI(m)
	at := visit{reflect.ValueOf(m).Pointer(), moved}
	if w.seen[at] {
		return nil
	}
	w.seen[at] = true
	if s, ok := m["$schema"].(string); ok && !isKnownDialect(s) {
		delete(m, "$schema")
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := w.checkKeyword(k, m[k], moved); err != nil {
			return err
		}
	}
	return nil
}

func (w *refChecker) checkKeyword(k string, v any, moved bool) error {
	named, isMap := v.(map[string]any)
	switch {
	case dataKeywords[k]:
		return nil
	case refKeywords[k]:
		return w.checkReference(k, v, moved)
	case !schemaMapKeywords[k] || !isMap:
		return w.checkSchema(v, moved)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		err := w.checkSchema(named[name], moved)
		if _, text := named[name].(string); text && refKeywords[name] { // no schema, but some validators follow it
			err = w.checkReference(name, named[name], moved)
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

// checkReference checks a reference and the schema that it refers to, which may be inside
// data.
func (w *refChecker) checkReference(k string, v any, moved bool) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("its schema has a %s that is no text", k)
	}
	pointerOrAnchor, isFragment := strings.CutPrefix(s, "#")
	pointerOrAnchor, err := url.PathUnescape(pointerOrAnchor)
	switch {
	case !isFragment && s != "" || err != nil:
		return fmt.Errorf("its schema refers to something outside of it: %s %q", k, spec.ClipName(s))
	case moved:
		return fmt.Errorf("its schema refers to something from beneath an $id: %s %q", k, spec.ClipName(s))
	case pointerOrAnchor == "": // the root
		return nil
	case strings.HasPrefix(pointerOrAnchor, "/"):
		to := w.resolvePointer(pointerOrAnchor)
		return w.checkSchema(to.schema, to.moved)
	}
	all := w.anchors[pointerOrAnchor]
	delete(w.anchors, pointerOrAnchor) // once is enough
	for _, to := range all {
		if err := w.checkSchema(to.schema, to.moved); err != nil {
			return err
		}
	}
	return nil
}

// resolvePointer returns the object that a JSON pointer (RFC 6901) refers to, if any.
func (w *refChecker) resolvePointer(pointer string) (to target) {
	var at any = w.root
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			to.moved = to.moved || hasBaseURI(v)
			at = v[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return target{}
			}
			at = v[i]
		default:
			return target{}
		}
	}
	to.schema, _ = at.(map[string]any)
	return to
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
			"the server asks for input in a form that is not passed on: it cannot be read")
	}
	for _, q := range all {
		if err := CheckInputRequest(q["params"]); err != nil {
			return fault.New(fault.Connection, "the server asks for input in a form that is not passed on: %v", err)
		}
	}
	return nil
}
