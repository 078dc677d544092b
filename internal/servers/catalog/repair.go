package catalog

import (
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// repairSchema makes a schema one that clients can read. Keywords whose values are of the wrong type are repaired or
// removed. Of the schema of a result, references that lead nowhere and regular expressions that some clients refuse are
// removed too: clients compile all of these schemas at once, and have no tool at all if one fails. It returns the names of the keywords that it removed although they said something.
func repairSchema(root map[string]any, result bool) (lost []string) {
	r := schemaRepair{result, map[string]bool{}}
	r.repair(root)
	if result {
		t := targets{root, map[string]bool{}}
		t.addAnchors(root)
		r.dropDangling(t, root, false)
	}
	return slices.Sorted(maps.Keys(r.lost))
}

// schemaRepair is one run of repairSchema.
type schemaRepair struct {
	result bool // the schema is that of a result
	lost   map[string]bool
}

// Keywords of JSON Schema by the types of their values.
var (
	numberKeywords = map[string]bool{"minimum": true, "maximum": true, "exclusiveMinimum": true,
		"exclusiveMaximum": true, "multipleOf": true}
	countKeywords = map[string]bool{"minLength": true, "maxLength": true, "minItems": true, "maxItems": true,
		"minProperties": true, "maxProperties": true, "minContains": true, "maxContains": true}
	boolKeywords = map[string]bool{"uniqueItems": true, "nullable": true, "readOnly": true, "writeOnly": true,
		"deprecated": true}
	textKeywords = map[string]bool{"$schema": true, "$id": true, "id": true, "$anchor": true, "$comment": true,
		"title": true, "description": true, "format": true, "pattern": true, "contentEncoding": true,
		"contentMediaType": true, "$ref": true, "$dynamicRef": true, "$recursiveRef": true, "$dynamicAnchor": true}
	schemaKeywords = map[string]bool{"not": true, "if": true, "then": true, "else": true, "contains": true,
		"propertyNames": true, "additionalProperties": true, "additionalItems": true, "unevaluatedItems": true,
		"unevaluatedProperties": true, "contentSchema": true}
	schemaListKeywords = map[string]bool{"allOf": true, "anyOf": true, "oneOf": true, "prefixItems": true}
)

// typeNames are the types of JSON Schema, and what some servers call them.
var typeNames = map[string]string{"string": "string", "number": "number", "integer": "integer", "boolean": "boolean",
	"array": "array", "object": "object", "null": "null",
	"str": "string", "float": "number", "double": "number", "int": "integer", "bool": "boolean", "list": "array",
	"dict": "object"}

// repair repairs a schema and all schemas in it.
func (r schemaRepair) repair(m map[string]any) {
	for _, k := range []string{"minimum", "maximum"} { // draft 4 has booleans beside the limits
		exclusive := "exclusive" + strings.ToUpper(k[:1]) + k[1:]
		if b, ok := m[exclusive].(bool); ok {
			delete(m, exclusive)
			if limit, ok := asNumber(m[k]); ok && b {
				m[exclusive] = limit
				delete(m, k)
			}
		}
	}
	if properties, ok := m["properties"].(map[string]any); ok { // draft 3 has required in each
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			p, _ := properties[name].(map[string]any)
			required, ok := p["required"].(bool)
			if !ok {
				continue
			}
			delete(p, "required")
			if list, _ := m["required"].([]any); required {
				m["required"] = append(list, name)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v, ok := r.value(k, m[k])
		if ok {
			m[k] = v
			continue
		}
		if raw, err := json.Marshal(m[k]); err != nil || !saysNothing(raw) {
			r.lost[k] = true
		}
		delete(m, k)
	}
	if _, typed := m["type"]; r.result && !typed { // some validators do not compile it alone
		delete(m, "nullable")
	}
}

// value returns what a keyword may have as its value; false: the keyword has to be removed.
func (r schemaRepair) value(keyword string, v any) (any, bool) {
	switch {
	case keyword == "const", keyword == "default", keyword == "example":
		return v, true // null is a value here
	case keyword == "enum":
		list, ok := v.([]any)
		return v, ok && len(list) > 0
	case keyword == "examples":
		_, ok := v.([]any)
		return v, ok
	case keyword == "type":
		return typeOf(v)
	case keyword == "required":
		return textsOf(v)
	case numberKeywords[keyword]:
		return asNumber(v)
	case countKeywords[keyword]:
		n, ok := asNumber(v)
		f, err := strconv.ParseFloat(string(n), 64)
		return n, ok && err == nil && f >= 0 && f <= maxInteger && f == math.Trunc(f)
	case boolKeywords[keyword]:
		text, isText := v.(string)
		if b, err := strconv.ParseBool(text); isText && err == nil {
			return b, true
		}
		_, ok := v.(bool)
		return v, ok
	case textKeywords[keyword]:
		text, ok := v.(string)
		return v, ok && (keyword != "pattern" || !r.result || isPattern(text))
	case schemaKeywords[keyword]:
		return r.nested(v)
	case keyword == "items":
		if list, ok := v.([]any); ok {
			return r.schemas(list), true
		}
		return r.nested(v)
	case schemaListKeywords[keyword]:
		list, _ := v.([]any)
		list = r.schemas(list)
		return list, len(list) > 0
	case schemaMapKeywords[keyword]:
		m, ok := v.(map[string]any)
		if ok {
			r.named(keyword, m)
		}
		return v, ok
	}
	return v, v != nil // of other keywords nothing is known
}

// named repairs schemas that have names.
func (r schemaRepair) named(keyword string, m map[string]any) {
	for name, v := range m {
		if list, ok := v.([]any); ok && keyword == "dependencies" {
			m[name], _ = textsOf(list)
			continue
		}
		if r.result && keyword == "patternProperties" && !isPattern(name) {
			r.lost[keyword] = true
			delete(m, name)
			continue
		}
		m[name] = r.schemaOf(v)
	}
}

// schemas repairs the schemas of a list, without those that are null.
func (r schemaRepair) schemas(list []any) []any {
	out := make([]any, 0, len(list))
	for _, v := range list {
		if s, ok := r.nested(v); ok {
			out = append(out, s)
		}
	}
	return out
}

// nested returns the schema that is the value of a keyword; false: there is none.
func (r schemaRepair) nested(v any) (any, bool) {
	switch v.(type) {
	case nil:
		return nil, false
	case bool:
		return v, true
	}
	return r.schemaOf(v), true
}

// schemaOf returns a schema as an object. MCP had no others until 2025-11-25. The names of types stand for themselves.
func (r schemaRepair) schemaOf(v any) map[string]any {
	switch v := v.(type) {
	case map[string]any:
		r.repair(v)
		return v
	case bool:
		if !v {
			return map[string]any{"not": map[string]any{}}
		}
	case string, []any:
		if t, ok := typeOf(v); ok {
			return map[string]any{"type": t}
		}
		r.lost["properties"] = true
	}
	return map[string]any{}
}

// typeOf returns the value of the keyword type.
func typeOf(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		name, ok := typeNames[strings.ToLower(v)]
		return name, ok
	case []any:
		var names []any
		for _, e := range v {
			text, _ := e.(string)
			if name, ok := typeNames[strings.ToLower(text)]; ok && !slices.Contains(names, any(name)) {
				names = append(names, name)
			} else if e == nil && !slices.Contains(names, any("null")) {
				names = append(names, "null")
			}
		}
		if len(names) == 1 {
			return names[0], true
		}
		return names, len(names) > 0
	}
	return nil, false
}

// textsOf returns the texts of a list, each once.
func textsOf(v any) (any, bool) {
	list, ok := v.([]any)
	texts, seen := []any{}, map[string]bool{}
	for _, e := range list {
		if text, isText := e.(string); isText && !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	return texts, ok
}

// asNumber returns a number, of which every client can read the size.
func asNumber(v any) (json.Number, bool) {
	n, ok := v.(json.Number)
	if text, isText := v.(string); isText {
		n, ok = json.Number(strings.TrimSpace(text)), json.Valid([]byte(strings.TrimSpace(text)))
	}
	_, err := strconv.ParseFloat(string(n), 64)
	return n, ok && err == nil
}

// isPattern reports whether a regular expression surely compiles in all clients, some of which are strict: each escape
// and each group is one that all know, and brackets and braces have no other meaning.
func isPattern(p string) bool {
	class, groups, atom := false, 0, false // atom: something precedes that may be repeated
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case c == '\\':
			i++
			if i == len(p) || !strings.ContainsRune(`dDwWsSnrtfv.*+?^$|()[]{}/\-bB`, rune(p[i])) ||
				!class && p[i] == '-' || class && p[i] == 'B' {
				return false
			}
			atom = class || p[i] != 'b' && p[i] != 'B'
		case class:
			class = c != ']'
			if c == '-' || c == '[' { // ranges may be in the wrong order, and some engines nest classes
				if c == '[' || !isRange(p, i) {
					return false
				}
			}
			atom = true
		case c == '[':
			class = true
			if strings.HasPrefix(p[i+1:], "^") {
				i++
			}
			if strings.HasPrefix(p[i+1:], "]") {
				return false
			}
		case c == '(':
			groups++
			if rest := p[i+1:]; strings.HasPrefix(rest, "?") {
				if !strings.HasPrefix(rest, "?:") && !strings.HasPrefix(rest, "?=") && !strings.HasPrefix(rest, "?!") {
					return false
				}
				i += 2
			}
			atom = false
		case c == ')':
			if groups--; groups < 0 {
				return false
			}
			atom = true
		case c == '*', c == '+', c == '?':
			if !atom {
				return false
			}
			atom = false
			if strings.HasPrefix(p[i+1:], "?") { // as few as possible
				i++
			}
		case c == '{':
			end := strings.IndexByte(p[i:], '}')
			if !atom || end < 0 || !isRepeat(p[i+1:i+end]) {
				return false
			}
			i += end
			atom = false
			if strings.HasPrefix(p[i+1:], "?") {
				i++
			}
		case c == ']', c == '}':
			return false
		default:
			atom = c != '^' && c != '$' && c != '|'
		}
	}
	return !class && groups == 0
}

// isRange reports whether the "-" at i of a class is at an end of it, or between two characters in their order.
func isRange(p string, i int) bool {
	before, after := p[i-1], byte(']')
	if i+1 < len(p) {
		after = p[i+1]
	}
	if before == '[' || after == ']' || before == '^' && i > 1 && p[i-2] == '[' {
		return true
	}
	return before < 0x80 && after < 0x80 && before <= after && after != '\\' && (i < 2 || p[i-2] != '\\')
}

// isRepeat reports whether a text is the inside of a quantifier in braces.
func isRepeat(text string) bool {
	low, high, isRange := strings.Cut(text, ",")
	n, err := strconv.ParseUint(low, 10, 16)
	if err != nil || n > 1000 {
		return false
	}
	m, err := strconv.ParseUint(high, 10, 16)
	return !isRange || high == "" || err == nil && n <= m && m <= 1000
}

// dropDangling removes references that lead to no target. Names: v has schemas by name.
func (r schemaRepair) dropDangling(t targets, v any, names bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			r.dropDangling(t, e, false)
		}
	case map[string]any:
		for k, e := range v {
			text, isText := e.(string)
			switch {
			case names:
				r.dropDangling(t, e, false)
			case dataKeywords[k]:
			case isText && refKeywords[k]:
				if !t.has(text) {
					delete(v, k)
					r.lost[k] = true
				}
			default:
				r.dropDangling(t, e, schemaMapKeywords[k])
			}
		}
	}
}

// targets are what references in a schema may lead to.
type targets struct {
	root    map[string]any
	anchors map[string]bool
}

func (t targets) addAnchors(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			t.addAnchors(e)
		}
	case map[string]any:
		for _, k := range []string{"$anchor", "$dynamicAnchor"} {
			if name, ok := v[k].(string); ok {
				t.anchors[name] = true
			}
		}
		for _, k := range []string{"$id", "id"} {
			if id, ok := v[k].(string); ok && strings.HasPrefix(id, "#") {
				t.anchors[id[1:]] = true
			}
		}
		for _, e := range v {
			t.addAnchors(e)
		}
	}
}

// unescapePointer reads a token of a JSON pointer.
var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// has reports whether a reference leads to a schema.
func (t targets) has(reference string) bool {
	fragment, err := url.PathUnescape(strings.TrimPrefix(reference, "#"))
	switch {
	case err != nil:
		return false
	case fragment == "":
		return true
	case fragment[0] != '/':
		return t.anchors[fragment]
	}
	var at any = t.root
	for token := range strings.SplitSeq(fragment[1:], "/") {
		token = unescapePointer.Replace(token)
		switch in := at.(type) {
		case map[string]any:
			at = in[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(in) {
				return false
			}
			at = in[i]
		default:
			return false
		}
	}
	switch at.(type) {
	case map[string]any, bool:
		return true
	}
	return false
}
