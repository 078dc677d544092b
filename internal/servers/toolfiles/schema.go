package toolfiles

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/schematype"
)

// Bounds of what is made of a schema. Beyond them a type is "any".
const (
	maxDepth   = 12
	maxMembers = 200 // of an object, an enum, an anyOf
	maxNamed   = 30  // named types of a tool
	maxLiteral = 200 // bytes of a text that is a type
	maxType    = 4 << 10
	maxWork    = 8_000 // schemas, names and values that are looked at for a tool: schemas may refer to each other
	maxLong    = 64    // bytes of a text that are as much work as a schema
)

// argument is an argument of a tool.
type argument struct {
	name     string // as the tool has it
	python   string // as its Python function has it
	required bool
	schema   any
	text     string // its description
	initial  any    // its default value; nil: none
}

// decode returns a schema as a value whose numbers are texts; nil: it cannot be read.
func decode(raw json.RawMessage) map[string]any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	m, _ := v.(map[string]any)
	return m
}

// arguments returns the arguments that an input schema has: required ones first, each kind in the order of the schema.
func arguments(root map[string]any, raw json.RawMessage) []argument {
	t := &types{root: root}
	schema := t.object(root)
	properties, _ := schema["properties"].(map[string]any)
	required := requiredOf(schema, properties)
	names := memberOrder(raw, properties, required)
	slices.SortStableFunc(names, func(a, b string) int { return boolToInt(required[b]) - boolToInt(required[a]) })
	python := identifiers(names, reservedFor(names))
	var found []argument
	for i, name := range names {
		m, _ := properties[name].(map[string]any)
		a := argument{name: name, python: python[i], schema: properties[name], initial: m["default"],
			required: required[name]}
		a.text, _ = m["description"].(string)
		if a.text == "" {
			a.text, _ = m["title"].(string)
			if strings.EqualFold(strings.ReplaceAll(a.text, " ", "_"), name) {
				a.text = ""
			}
		}
		found = append(found, a)
	}
	return found
}

// isOpen reports whether a tool takes arguments that its schema does not have, and is made for that.
func isOpen(root map[string]any) bool {
	schema := (&types{root: root}).object(root)
	switch more := schema["additionalProperties"].(type) {
	case bool:
		return more
	case map[string]any:
		return true
	}
	return schema["properties"] == nil
}

// reservedFor returns the names that Python's arguments cannot have; a tool's own "timeout" keeps its name.
func reservedFor(names []string) map[string]bool {
	return map[string]bool{"locals": true, "timeout": !slices.Contains(names, "timeout")}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// requiredOf returns which properties a schema requires.
func requiredOf(schema, properties map[string]any) map[string]bool {
	list, _ := schema["required"].([]any)
	found := map[string]bool{}
	for _, v := range list {
		if name, ok := v.(string); ok {
			if _, there := properties[name]; there {
				found[name] = true
			}
		}
	}
	return found
}

// memberOrder returns the names of properties in the order in which the schema has them, as far as it can be told. Of
// too many, it returns those that are required, and then the first ones of the alphabet.
func memberOrder(raw json.RawMessage, properties map[string]any, required map[string]bool) []string {
	names := sortedKeys(properties)
	if len(names) > maxMembers {
		slices.SortStableFunc(names, func(a, b string) int { return boolToInt(required[b]) - boolToInt(required[a]) })
		names = names[:maxMembers]
	}
	quoted := map[string]string{} // names, by their text in JSON
	for _, name := range names {
		text, _ := json.Marshal(name)
		quoted[string(text[1:len(text)-1])] = name
	}
	at := map[string]int{}
	eachName(raw, func(text []byte, i int) {
		if name, ok := quoted[string(text)]; ok {
			at[name] = i
			delete(quoted, string(text)) // the first place counts
		}
	})
	slices.SortStableFunc(names, func(a, b string) int { return at[a] - at[b] })
	return names
}

// eachName calls do for each name of a member of an object, at whatever depth, in compact JSON: with the text between
// its quotes, and where that begins.
func eachName(raw json.RawMessage, do func(name []byte, at int)) {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '"' {
			continue
		}
		begin := i + 1
		for i = begin; i < len(raw) && raw[i] != '"'; i++ {
			if raw[i] == '\\' {
				i++
			}
		}
		if i+1 < len(raw) && raw[i+1] == ':' {
			do(raw[begin:i], begin)
		}
	}
}

// types writes the types of one tool in one language.
type types struct {
	root   map[string]any
	prefix string            // of the names of types
	python bool              // else TypeScript
	names  map[string]string // of the types that references lead to, by reference
	named  []namedType
	used   map[string]bool
	work   int  // see maxWork
	total  *int // if it is set: all work for the tool
}

// types returns what writes the types of a tool.
func (t *described) types(python bool) *types {
	return &types{root: t.schema, prefix: t.name, python: python, total: &t.work}
}

// does counts work, and reports whether there is not too much of it.
func (t *types) does(n int) bool {
	t.work += n
	if t.total != nil {
		*t.total += n
	}
	return t.work <= maxWork
}

type namedType struct{ name, text string }

// object returns a schema, or what it refers to if it is a reference.
func (t *types) object(v any) map[string]any {
	m, _ := v.(map[string]any)
	for range maxDepth {
		ref, ok := m["$ref"].(string)
		if !ok {
			return m
		}
		target, _ := t.resolve(ref).(map[string]any)
		m = target
	}
	return m
}

// resolve returns what a reference inside the schema leads to; nil: nothing.
func (t *types) resolve(ref string) any {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok || !t.does(1+len(ref)/maxLong) {
		return nil
	}
	path, err := url.PathUnescape(path)
	if err != nil || path != "" && path[0] != '/' {
		return nil
	}
	at, _ := schematype.At(t.root, path)
	return at
}

// anything is the type of what the schema does not bound.
func (t *types) anything() string {
	if t.python {
		return "Any"
	}
	return "any"
}

// of returns the type of a schema.
func (t *types) of(v any, depth int) string {
	text := t.write(v, depth)
	if len(text) > maxType {
		return t.anything()
	}
	return text
}

// result returns the type of an output schema, whose references lead into it.
func (t *types) result(schema map[string]any) string {
	t.root, t.names = schema, nil
	return t.of(schema, 0)
}

func (t *types) write(v any, depth int) string {
	m, ok := v.(map[string]any)
	if !t.does(1) || !ok || depth > maxDepth {
		return t.anything()
	}
	if ref, ok := m["$ref"].(string); ok {
		return t.reference(ref)
	}
	if c, ok := m["const"]; ok {
		return t.literals([]any{c})
	}
	if e, ok := m["enum"].([]any); ok && len(e) > 0 {
		return t.literals(e)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if all, ok := m[key].([]any); ok && len(all) > 0 {
			return t.union(all, depth)
		}
	}
	if all, ok := m["allOf"].([]any); ok && len(all) > 0 {
		if len(all) == 1 && m["properties"] == nil {
			return t.of(all[0], depth+1)
		}
		return t.merged(m, all, depth)
	}
	switch kind := m["type"].(type) {
	case string:
		return t.simple(kind, m, depth)
	case []any:
		if len(kind) > maxMembers || !t.does(len(kind)*(1+len(m))) {
			return t.anything()
		}
		var parts []any
		for _, k := range kind {
			parts = append(parts, withType(m, k))
		}
		return t.union(parts, depth)
	}
	if m["properties"] != nil {
		return t.simple("object", m, depth)
	}
	if m["items"] != nil {
		return t.simple("array", m, depth)
	}
	return t.anything()
}

// withType returns a schema with another type.
func withType(m map[string]any, kind any) map[string]any {
	changed := map[string]any{}
	for k, v := range m {
		changed[k] = v
	}
	changed["type"] = kind
	return changed
}

// merged is an object with the members of all parts.
func (t *types) merged(m map[string]any, all []any, depth int) string {
	properties, required := map[string]any{}, map[string]any{}
	for n := range len(all) + 1 {
		o := m
		if n > 0 {
			o = t.object(all[n-1])
		}
		p, _ := o["properties"].(map[string]any)
		r, _ := o["required"].([]any)
		if !t.does(len(p) + len(r) + 1) {
			return t.anything()
		}
		for k, v := range p {
			properties[k] = v
		}
		for _, v := range r {
			if name, ok := v.(string); ok {
				required[name] = name
			}
		}
		if len(properties) > maxMembers || len(required) > maxMembers {
			return t.anything()
		}
	}
	if len(properties) == 0 {
		return t.anything()
	}
	return t.simple("object", map[string]any{"properties": properties,
		"required": slices.Collect(maps.Values(required))}, depth)
}

func (t *types) simple(kind string, m map[string]any, depth int) string {
	words := map[string][2]string{"string": {"string", "str"}, "integer": {"number", "int"},
		"number": {"number", "float"}, "boolean": {"boolean", "bool"}, "null": {"null", "None"}}
	if w, ok := words[kind]; ok {
		return w[boolToInt(t.python)]
	}
	switch kind {
	case "array":
		inner := t.of(m["items"], depth+1)
		if t.python {
			return "list[" + inner + "]"
		}
		if strings.ContainsAny(inner, " |") {
			inner = "(" + inner + ")"
		}
		return inner + "[]"
	case "object":
		return t.record(m, depth)
	}
	return t.anything()
}

// record returns the type of an object: with its members, or as a map.
func (t *types) record(m map[string]any, depth int) string {
	properties, _ := m["properties"].(map[string]any)
	if len(properties) == 0 || len(properties) > maxMembers {
		inner := t.anything()
		if more, ok := m["additionalProperties"].(map[string]any); ok && len(more) > 0 {
			inner = t.of(more, depth+1)
		}
		if t.python {
			return "dict[str, " + inner + "]"
		}
		return "{ [name: string]: " + inner + " }"
	}
	if t.python {
		name := t.newName("object")
		if name == "" {
			return "dict[str, Any]"
		}
		t.named = append(t.named, namedType{name: name})
		at := len(t.named) - 1
		t.named[at].text = t.members(m, properties, depth)
		return name
	}
	return t.members(m, properties, depth)
}

// members writes the members of an object.
func (t *types) members(m, properties map[string]any, depth int) string {
	list, _ := m["required"].([]any)
	if len(properties) > maxMembers || !t.does(len(properties)+len(list)) {
		return t.anything()
	}
	required := requiredOf(m, properties)
	var parts []string
	size := 0
	for _, name := range sortedKeys(properties) {
		inner := t.of(properties[name], depth+1)
		var part string
		switch must := required[name]; {
		case t.python && must:
			part = quote(name) + ": " + quote("Required["+inner+"]")
		case t.python:
			part = quote(name) + ": " + quote(inner)
		case must:
			part = key(name) + ": " + inner
		default:
			part = key(name) + "?: " + inner
		}
		if size += len(part); size > maxType || !t.does(len(name)/maxLong) {
			if !t.python {
				parts = append(parts, "[name: string]: any")
			}
			break
		}
		parts = append(parts, part)
	}
	if t.python {
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "{ " + strings.Join(parts, "; ") + " }"
}

func (t *types) union(all []any, depth int) string {
	var parts []string
	for n, part := range all {
		if n == maxMembers {
			return t.anything()
		}
		p := t.of(part, depth+1)
		if p == t.anything() {
			return p
		}
		if !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, " | ")
}

// literals returns the type of some values.
func (t *types) literals(values []any) string {
	var texts, parts []string
	if !t.does(len(values)) {
		return t.anything()
	}
	long := slices.ContainsFunc(values, func(v any) bool { text, _ := v.(string); return len(text) > maxLiteral })
	if long || len(values) > maxMembers {
		if slices.ContainsFunc(values, func(v any) bool { _, ok := v.(string); return !ok }) {
			return t.anything()
		}
		return t.simple("string", nil, 0)
	}
	for _, v := range values {
		switch v := v.(type) {
		case string:
			if !t.does(len(v) / maxLong) {
				return t.anything()
			}
			texts = append(texts, quote(v))
		case json.Number:
			_, err := strconv.Atoi(string(v))
			if t.python && err != nil {
				parts = append(parts, "float")
			} else if err == nil {
				texts = append(texts, string(v))
			} else {
				parts = append(parts, "number")
			}
		case bool:
			texts = append(texts, [][]string{{"false", "true"}, {"False", "True"}}[boolToInt(t.python)][boolToInt(v)])
		case nil:
			parts = append(parts, t.simple("null", nil, 0))
		default:
			return t.anything()
		}
	}
	if t.python && len(texts) > 0 {
		texts = []string{"Literal[" + strings.Join(texts, ", ") + "]"}
	}
	return strings.Join(slices.Compact(append(texts, parts...)), " | ")
}

// reference returns the name of the type that a reference leads to, and makes it once.
func (t *types) reference(ref string) string {
	if name, ok := t.names[ref]; ok {
		return name
	}
	target, ok := t.resolve(ref).(map[string]any)
	if !ok {
		return t.anything()
	}
	name := t.newName(ref[strings.LastIndexAny(ref, "/#")+1:])
	if name == "" {
		return t.anything()
	}
	if t.names == nil {
		t.names = map[string]string{}
	}
	t.names[ref] = name
	at := len(t.named)
	t.named = append(t.named, namedType{name: name})
	properties, _ := target["properties"].(map[string]any)
	if _, isRef := target["$ref"]; isRef { // an alias of an alias may be one of itself
		t.named[at].text = t.anything()
	} else if t.python && len(properties) > 0 && target["type"] == "object" {
		t.named[at].text = t.members(target, properties, 0)
	} else {
		text := t.of(target, 0)
		if refersTo(text, t.names) {
			text = t.boxed(target, text)
		}
		t.named[at].text = text
	}
	return name
}

// refersTo reports whether a type names, outside of any brackets, a type of a reference: it could be itself.
func refersTo(text string, names map[string]string) bool {
	for _, part := range strings.Split(text, " | ") {
		for _, name := range names {
			if part == name {
				return true
			}
		}
	}
	return false
}

// boxed returns the type of a reference's target that may be a type of itself. What it is besides stays.
func (t *types) boxed(target map[string]any, text string) string {
	if _, ok := target["$ref"]; ok {
		return t.anything()
	}
	var parts []string
	for _, part := range strings.Split(text, " | ") {
		if !refersTo(part, t.names) {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 || len(parts) < strings.Count(text, " | ")+1 {
		return t.anything()
	}
	return strings.Join(parts, " | ")
}

// newName returns a name for a type; "": there are too many.
func (t *types) newName(text string) string {
	if len(t.named) >= maxNamed {
		return ""
	}
	if t.used == nil {
		t.used = map[string]bool{}
	}
	base := "_" + t.prefix + "_" + identifier(text, nil)
	name := base
	for n := 2; t.used[name]; n++ {
		name = base + "_" + strconv.Itoa(n)
	}
	t.used[name] = true
	return name
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// key writes a name of a member of TypeScript's types.
func key(name string) string {
	if plainKey.MatchString(name) {
		return name
	}
	return quote(name)
}

// quote writes a text as a literal that Python, JavaScript, TypeScript and JSON read alike.
func quote(text string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	_ = e.Encode(strings.ToValidUTF8(text, "\uFFFD"))
	made := &strings.Builder{}
	for _, r := range strings.TrimSuffix(out.String(), "\n") {
		if r < 0x10000 && fault.Invisible(r) {
			fmt.Fprintf(made, `\u%04x`, r)
		} else {
			made.WriteRune(r)
		}
	}
	return made.String()
}
