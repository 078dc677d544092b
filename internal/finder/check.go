package finder

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"sandlot/internal/fault"
	"sandlot/internal/schematype"
)

// checkArguments compares arguments with the input schema of a tool's definition. The error names all that does not
// fit, and how the tool is called. The schema is the third-party server's, who may be hostile: what it would take long
// to find out, and keywords that this does not know, are left to the server.
func checkArguments(name string, definition, arguments json.RawMessage) error {
	var d struct {
		InputSchema any `json:"inputSchema"`
	}
	var args any
	if len(arguments) > maxChecked || json.Unmarshal(definition, &d) != nil || json.Unmarshal(arguments, &args) != nil {
		return nil // a number that is too large, for instance
	}
	c := checker{root: d.InputSchema}
	c.check("", d.InputSchema, args, 0)
	if c.exhausted() || len(c.faults) == 0 {
		return nil
	}
	how := signature(name, read(definition).arguments(true))
	said := strings.Join(c.faults, "; ")
	if len(said) > maxMessage {
		said = clipBytes(said, maxMessage) + "…"
	}
	return fault.Argument("arguments", "the arguments do not fit: %s. Call %s", said, how).
		With("faults", c.faults).With("signature", how).With("tool", name)
}

const (
	// maxChecked is how many bytes of arguments are looked at.
	maxChecked = 1 << 20
	// maxSteps bounds how often a schema and a value are compared, maxCheckDepth how deep, and maxFaults how many
	// faults are named.
	maxSteps, maxCheckDepth, maxFaults = 20_000, 100, 12
	// maxPattern is how long a regular expression may be, and maxMatched the text that is compared with it. A few bytes
	// of an expression, as {999}, make a long program, and Go takes its length for each byte of the text: maxProgram
	// bounds it, in instructions. A comparison costs patternSteps, and a step for matchedStep instructions times bytes.
	// To compile an instruction takes as long as compiledBytes of them.
	maxPattern, maxMatched, maxProgram       = 256, 16 << 10, 1000
	patternSteps, matchedStep, compiledBytes = 200, 1 << 10, 64
	// stepBytes is how many bytes of a text are looked at in a step.
	stepBytes = 1 << 10
	// maxPath, maxFault and maxMessage bound, in bytes, where a fault is, what is said of one, and of all.
	maxPath, maxFault, maxMessage = 256, 600, 4 << 10
)

// checker compares values with a schema.
type checker struct {
	root   any // for references
	steps  int
	faults []string
	top    string // the path of the value
	other  bool   // the value is of another type than the schema's
}

// exhausted reports whether the comparison has ended before all was compared.
func (c *checker) exhausted() bool { return c.steps > maxSteps }

// takes counts steps before they are taken, and reports whether they may be.
func (c *checker) takes(steps int) bool {
	c.steps += steps
	return !c.exhausted()
}

// fault notes what does not fit.
func (c *checker) fault(path, format string, args ...any) {
	if len(c.faults) < maxFaults {
		if path == "" {
			path = "arguments"
		}
		text := fmt.Sprintf(format, args...)
		if len(text) > maxFault {
			text = clipBytes(text, maxFault) + "…"
		}
		c.faults = append(c.faults, fault.Clip(path)+" "+text)
	}
}

// check notes what of a value does not fit a schema.
func (c *checker) check(path string, schema, v any, depth int) {
	if !c.takes(1) || depth > maxCheckDepth {
		c.steps = maxSteps + 1
		return
	}
	if schema == false {
		c.fault(path, "must not be there")
	}
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if ref, ok := s["$ref"].(string); ok {
		if target, ok := c.refersTo(ref); ok {
			c.check(path, target, v, depth+1)
		}
	}
	if v == nil && s["nullable"] == true {
		return
	}
	if !c.checkType(path, s["type"], v) {
		return
	}
	if !c.checkChoices(path, s, v) {
		return
	}
	switch v := v.(type) {
	case string:
		c.checkText(path, s, v)
	case float64:
		c.checkNumber(path, s, v)
	case []any:
		c.checkList(path, s, v, depth)
	case map[string]any:
		c.checkObject(path, s, v, depth)
	}
	c.checkCombined(path, s, v, depth)
}

// refersTo returns what a reference in the schema refers to, if it is a JSON pointer.
func (c *checker) refersTo(ref string) (any, bool) {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok || !c.takes(len(ref)/stepBytes+strings.Count(ref, "/")) {
		return nil, false
	}
	if pointer != "" {
		pointer = "/" + strings.TrimPrefix(pointer, "/")
	}
	return schematype.At(c.root, pointer)
}

// articles are the types as sentences have them.
var articles = map[string]string{"null": "null", "boolean": "true or false", "integer": "a whole number",
	"number": "a number", "string": "a string", "array": "an array", "object": "an object"}

// checkType notes a value that has none of the types, and reports whether it has one.
func (c *checker) checkType(path string, types, v any) bool {
	list, ok := types.([]any)
	if !ok && types != nil {
		list = []any{types}
	}
	if !c.takes(len(list) / 16) {
		return true
	}
	var names []string
	for _, t := range list {
		name, _ := t.(string)
		if articles[name] == "" || isOfType(v, name) {
			return true // a type that does not exist is left to the server
		}
		if !slices.Contains(names, articles[name]) {
			names = append(names, articles[name])
		}
	}
	if len(names) == 0 {
		return true
	}
	c.other = c.other || path == c.top
	c.fault(path, "must be %s, and is %s", strings.Join(names, " or "), shown(v))
	return false
}

func isOfType(v any, name string) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return true
}

// maxShown is how many bytes of a value an error has, and maxShownMembers how many members an object of it has that is
// shown, as they have to be sorted.
const maxShown, maxShownMembers = 60, 50

// shown returns a value as an error shows it. Its work does not depend on the size of the value.
func shown(v any) string {
	text := string(appendShown(nil, v))
	if len(text) > maxShown {
		text = clipBytes(text, maxShown) + "…"
	}
	return text
}

// appendShown appends the JSON of a value, or at least maxShown bytes of it.
func appendShown(to []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		b, _ := json.Marshal(clipBytes(v[:min(len(v), 2*maxShown)], 2*maxShown))
		return append(to, b...)
	case []any:
		to = append(to, '[')
		for i, e := range v {
			if i > 0 {
				to = append(to, ',')
			}
			if to = appendShown(to, e); len(to) > maxShown {
				return to
			}
		}
		return append(to, ']')
	case map[string]any:
		if len(v) > maxShownMembers {
			return fmt.Appendf(to, "{%d members}", len(v))
		}
		to = append(to, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				to = append(to, ',')
			}
			to = append(appendShown(to, name), ':')
			if to = appendShown(to, v[name]); len(to) > maxShown {
				return to
			}
		}
		return append(to, '}')
	}
	b, err := json.Marshal(v)
	if err != nil {
		return append(to, "something else"...)
	}
	return append(to, b...)
}

// same reports whether two values of JSON are equal, or may be: the comparison can end before.
func (c *checker) same(a, b any) bool {
	if !c.takes(0) {
		return true
	}
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		if !ok || len(a) != len(b) {
			return false
		}
		return !c.takes(len(a)/stepBytes) || a == b
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) || !c.takes(len(a)) {
			return ok && len(a) == len(b)
		}
		for i := range a {
			if !c.same(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) || !c.takes(len(a)) {
			return ok && len(a) == len(b)
		}
		for name, v := range a {
			other, there := b[name]
			if !c.takes(len(name)/stepBytes) || there && c.same(v, other) {
				continue
			}
			return false
		}
		return true
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// checkChoices notes a value that is none of those that are allowed, and reports whether it is one.
func (c *checker) checkChoices(path string, s map[string]any, v any) bool {
	if value, ok := s["const"]; ok && !c.same(value, v) {
		c.fault(path, "must be %s, and is %s", shown(value), shown(v))
		return false
	}
	all, ok := s["enum"].([]any)
	if !ok || len(all) == 0 || !c.takes(len(all)/16) ||
		slices.ContainsFunc(all, func(a any) bool { return c.same(a, v) }) {
		return true
	}
	var names []string
	for i, a := range all {
		if i == 20 {
			names = append(names, "…")
			break
		}
		names = append(names, shown(a))
	}
	c.fault(path, "must be one of %s, and is %s", strings.Join(names, ", "), shown(v))
	return false
}

func (c *checker) checkText(path string, s map[string]any, v string) {
	most, hasMost := s["maxLength"].(float64)
	least, hasLeast := s["minLength"].(float64)
	if (hasMost || hasLeast) && c.takes(len(v)/stepBytes) {
		n := float64(utf8.RuneCountInString(v))
		if hasMost && n > most {
			c.fault(path, "has %v characters, and must have at most %v", n, most)
		}
		if hasLeast && n < least {
			c.fault(path, "has %v characters, and must have at least %v", n, least)
		}
	}
	if pattern, ok := s["pattern"].(string); ok && !c.matches(pattern, v) {
		c.fault(path, "is %s, and must match %s", shown(v), shown(pattern))
	}
}

// matches reports whether a text matches a regular expression, or may do so: those of JavaScript have more than Go's.
func (c *checker) matches(pattern, text string) bool {
	if len(pattern) > maxPattern || len(text) > maxMatched || !c.takes(patternSteps) {
		return true
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return true
	}
	size := programSize(parsed)
	if size > maxProgram || !c.takes(size*(len(text)+compiledBytes)/matchedStep) {
		return true
	}
	r, err := regexp.Compile(pattern)
	return err != nil || r.MatchString(text)
}

// programSize returns at least how many instructions the program of an expression has, without making it: to compile a
// long one takes long too.
func programSize(re *syntax.Regexp) int {
	size := 1
	switch re.Op {
	case syntax.OpLiteral:
		size = len(re.Rune)
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus:
		size = 2
	case syntax.OpAlternate:
		size = len(re.Sub)
	case syntax.OpRepeat:
		size = min(max(re.Max-re.Min, 0), 1) // of a copy that may be left out
	}
	for _, sub := range re.Sub {
		size += programSize(sub)
	}
	if re.Op == syntax.OpRepeat { // Max is -1 if there is none
		size = size*max(re.Min, re.Max, 1) + 2
	}
	return size
}

func (c *checker) checkNumber(path string, s map[string]any, v float64) {
	for _, limit := range []struct {
		key, words string
		fits       func(float64) bool
	}{
		{"minimum", "at least", func(n float64) bool { return v >= n }},
		{"maximum", "at most", func(n float64) bool { return v <= n }},
		{"exclusiveMinimum", "more than", func(n float64) bool { return v > n }},
		{"exclusiveMaximum", "less than", func(n float64) bool { return v < n }},
	} {
		if n, ok := s[limit.key].(float64); ok && !limit.fits(n) {
			c.fault(path, "must be %s %v, and is %v", limit.words, n, v)
		}
	}
}

func (c *checker) checkList(path string, s map[string]any, v []any, depth int) {
	n := float64(len(v))
	if most, ok := s["maxItems"].(float64); ok && n > most {
		c.fault(path, "has %v items, and must have at most %v", n, most)
	}
	if least, ok := s["minItems"].(float64); ok && n < least {
		c.fault(path, "has %v items, and must have at least %v", n, least)
	}
	first, _ := s["prefixItems"].([]any)
	rest := s["items"]
	if list, ok := rest.([]any); ok { // as in earlier drafts
		first, rest = list, s["additionalItems"]
	}
	for i, e := range v {
		schema := rest
		if i < len(first) {
			schema = first[i]
		}
		if schema != nil {
			c.check(within(path, fmt.Sprintf("[%d]", i)), schema, e, depth+1)
		}
		if c.exhausted() || rest == nil && i >= len(first) {
			return
		}
	}
}

// within returns the path of a part of a value, or its beginning: a fault has no more of it.
func within(path, part string) string {
	if len(path) > maxPath {
		return path
	}
	return path + clipBytes(part[:min(len(part), 2*maxPath)], 2*maxPath)
}

func (c *checker) checkObject(path string, s map[string]any, v map[string]any, depth int) {
	at := func(name string) string {
		if path != "" {
			return within(within(path, "."), name)
		}
		return within(path, name)
	}
	required, _ := s["required"].([]any)
	for _, r := range required {
		name, ok := r.(string)
		if !c.takes(1 + len(name)/stepBytes) {
			return
		}
		if _, there := v[name]; ok && !there {
			c.fault(at(name), "is missing")
		}
	}
	properties, _ := s["properties"].(map[string]any)
	patternSchemas, _ := s["patternProperties"].(map[string]any)
	if !c.takes(len(v) + len(patternSchemas)/16) { // they are sorted
		return
	}
	patterns := slices.Sorted(maps.Keys(patternSchemas))
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if !c.takes(len(name) / stepBytes) {
			return
		}
		known := false
		if p, ok := properties[name]; ok {
			known = true
			c.check(at(name), p, v[name], depth+1)
		}
		for _, pattern := range patterns {
			if c.matches(pattern, name) { // perhaps: so its schema is left to the server
				known = true
			}
		}
		if rest, ok := s["additionalProperties"]; ok && !known {
			if rest == false {
				c.fault(at(name), "is unknown%s", c.meant(name, properties))
				continue
			}
			c.check(at(name), rest, v[name], depth+1)
		}
	}
}

// maxMeant is among how many names the one is looked for that is meant.
const maxMeant = 100

// meant says which property may be meant by a name; empty: none.
func (c *checker) meant(name string, properties map[string]any) string {
	if len(c.faults) >= maxFaults || len(properties) > maxMeant || len(name) > maxMeant {
		return ""
	}
	size := 0
	for other := range properties {
		size += len(other)
	}
	if !c.takes(size * len(name) / stepBytes) { // each byte of one is compared with each of the other
		return ""
	}
	return strings.TrimSuffix(fault.DidYouMean(name, slices.Sorted(maps.Keys(properties))), ".")
}

// checkCombined compares a value with the schemas of allOf, anyOf and oneOf.
func (c *checker) checkCombined(path string, s map[string]any, v any, depth int) {
	all, _ := s["allOf"].([]any)
	for _, schema := range all {
		c.check(path, schema, v, depth+1)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		choices, _ := s[key].([]any)
		var closest *checker
		fits := len(choices) == 0
		for _, schema := range choices {
			one := &checker{root: c.root, steps: c.steps, top: path}
			one.check(path, schema, v, depth+1)
			c.steps = one.steps
			if fits = len(one.faults) == 0; fits || c.exhausted() {
				break
			}
			if closest == nil || closest.other && !one.other ||
				closest.other == one.other && len(one.faults) < len(closest.faults) {
				closest = one
			}
		}
		if !fits && !c.exhausted() {
			c.fault(path, "fits none of %d forms; of the closest: %s", len(choices), strings.Join(closest.faults, ", "))
		}
	}
}
