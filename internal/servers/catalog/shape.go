package catalog

import (
	"bytes"
	"encoding/json"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// Clients check what they get by the schemas of MCP, and many refuse a whole list or result for one member of the wrong
// type. The functions in this file repair such members, or leave them out. What they return is valid in all revisions
// of MCP.

// repair returns a value of the type that a member must have, or nil if the member has to be left out.
type repair func(raw json.RawMessage) json.RawMessage

// shape has the repairs of the members that an object may have, by name. Members with other names stay as they are.
type shape map[string]repair

// clean repairs the members of an object. It returns the names of those that it left out although they said something,
// and whether it changed anything.
func (s shape) clean(o rawjson.Object) (lost []string, changed bool) {
	for name, repaired := range s {
		raw, given := o[name]
		if !given {
			continue
		}
		switch value := repaired(raw); {
		case value == nil:
			delete(o, name)
			changed = true
			if !saysNothing(raw) {
				lost = append(lost, name)
			}
		case !bytes.Equal(value, raw):
			o[name] = value
			changed = true
		}
	}
	slices.Sort(lost)
	return lost, changed
}

// saysNothing reports whether a value is null or empty, or an object of such values: some servers send these for what
// they do not have.
func saysNothing(raw json.RawMessage) bool {
	if isBlank(raw) {
		return true
	}
	var o rawjson.Object
	if !rawjson.IsObject(raw) || rawjson.NestedDeeper(raw, maxDepth) || json.Unmarshal(raw, &o) != nil {
		return false
	}
	for _, v := range o {
		if !saysNothing(v) {
			return false
		}
	}
	return true
}

// isBlank reports whether a value is null or empty.
func isBlank(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// object returns the repair of an object with a shape: one without members is left out.
func (s shape) object(raw json.RawMessage) json.RawMessage {
	var o rawjson.Object
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return nil
	}
	if _, changed := s.clean(o); !changed {
		return raw
	}
	if len(o) == 0 {
		return nil
	}
	return encoded(o)
}

// asText takes texts, and numbers and booleans as texts.
func asText(raw json.RawMessage) json.RawMessage {
	raw = bytes.TrimSpace(raw)
	switch {
	case rawjson.IsString(raw):
		return raw
	case len(raw) == 0, string(raw) == "null", raw[0] == '{', raw[0] == '[':
		return nil
	}
	return rawjson.Quote(string(raw))
}

// asBool takes booleans, and their names.
func asBool(raw json.RawMessage) json.RawMessage {
	if text := strings.ToLower(scalar(raw)); text == "true" || text == "false" {
		return json.RawMessage(text)
	}
	return nil
}

// scalar returns the text of a string, a number or a boolean.
func scalar(raw json.RawMessage) string { return strings.TrimSpace(rawjson.Text(asText(raw))) }

// maxInteger is the largest integer that every client reads exactly.
const maxInteger = 1<<53 - 1

// asInteger takes integers that every client reads exactly, and numerals.
func asInteger(raw json.RawMessage) json.RawMessage {
	n, err := strconv.ParseFloat(scalar(raw), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > maxInteger {
		return nil
	}
	return rawjson.Number(int64(n))
}

// asNatural is asInteger for what is not negative.
func asNatural(raw json.RawMessage) json.RawMessage {
	if n := asInteger(raw); n != nil && n[0] != '-' {
		return n
	}
	return nil
}

// asPriority takes numbers from 0 to 1.
func asPriority(raw json.RawMessage) json.RawMessage {
	n, err := strconv.ParseFloat(scalar(raw), 64)
	if err != nil || !(n >= 0 && n <= 1) {
		return nil
	}
	return encoded(n)
}

// asTime takes times with a zone, as clients read them.
func asTime(raw json.RawMessage) json.RawMessage {
	text := rawjson.Text(raw)
	if _, err := time.Parse(time.RFC3339, text); err != nil || strings.Contains(text, ",") {
		return nil
	}
	return raw
}

// oneOf takes the texts that are in a list.
func oneOf(allowed ...string) repair {
	return func(raw json.RawMessage) json.RawMessage {
		if rawjson.IsString(raw) && slices.Contains(allowed, rawjson.Text(raw)) {
			return raw
		}
		return nil
	}
}

// listOf takes lists, of which it leaves out the elements that cannot be repaired, and one element without a list.
func listOf(element repair) repair {
	return func(raw json.RawMessage) json.RawMessage {
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) != nil || all == nil {
			if one := element(raw); one != nil {
				return encoded([]json.RawMessage{one})
			}
			return nil
		}
		kept, changed := make([]json.RawMessage, 0, len(all)), false
		for _, e := range all {
			repaired := element(e)
			changed = changed || !bytes.Equal(repaired, e)
			if repaired != nil {
				kept = append(kept, repaired)
			}
		}
		if !changed {
			return raw
		}
		return encoded(kept)
	}
}

// asSizes takes the sizes of an icon, which an early draft of MCP had in one text.
func asSizes(raw json.RawMessage) json.RawMessage {
	if rawjson.IsString(raw) {
		return encoded(strings.Fields(rawjson.Text(raw)))
	}
	return listOf(asText)(raw)
}

// asIcon takes objects with the address of an icon.
func asIcon(raw json.RawMessage) json.RawMessage {
	var o rawjson.Object
	if json.Unmarshal(raw, &o) != nil || !isURI(rawjson.Text(o["src"])) {
		return nil
	}
	return iconShape.object(raw)
}

// asIcons takes lists of icons, of at most 64 KiB.
func asIcons(raw json.RawMessage) json.RawMessage {
	if len(raw) > 64<<10 || !rawjson.IsArray(raw) {
		return nil
	}
	return listOf(asIcon)(raw)
}

// asArguments takes the arguments of a prompt.
func asArguments(raw json.RawMessage) json.RawMessage {
	if !rawjson.IsArray(raw) {
		return nil
	}
	return listOf(func(raw json.RawMessage) json.RawMessage {
		if name := rawjson.Text(raw); name != "" { // the name alone
			return encoded(map[string]string{"name": name})
		}
		var o rawjson.Object
		if json.Unmarshal(raw, &o) != nil || asText(o["name"]) == nil {
			return nil
		}
		return argumentShape.object(raw)
	})(raw)
}

// bounded takes objects of at most 4 KiB, and makes their texts safe.
func bounded(s shape) repair {
	return func(raw json.RawMessage) json.RawMessage {
		var v map[string]any
		if len(raw) > 4<<10 || json.Unmarshal(raw, &v) != nil || v == nil {
			return nil
		}
		cleanTexts(v)
		return s.object(encoded(v))
	}
}

// asValue takes all values but null.
func asValue(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// asTitle takes texts that are not empty, and makes them safe.
func asTitle(raw json.RawMessage) json.RawMessage {
	if text := spec.SafeText(scalar(raw), maxTitle); text != "" {
		return rawjson.Quote(text)
	}
	return nil
}

// The shapes of MCP.
var (
	iconShape       = shape{"src": asText, "mimeType": asText, "sizes": asSizes, "theme": oneOf("light", "dark")}
	argumentShape   = shape{"name": asText, "title": asText, "description": asText, "required": asBool}
	executionShape  = shape{"taskSupport": oneOf("forbidden", "optional", "required")}
	annotationShape = shape{"audience": listOf(oneOf("user", "assistant")), "priority": asPriority,
		"lastModified": asTime}
	hintShape = shape{"title": asText, "readOnlyHint": asBool, "destructiveHint": asBool, "idempotentHint": asBool,
		"openWorldHint": asBool}

	toolShape = shape{"title": asTitle, "description": asText, "icons": asIcons, "annotations": bounded(hintShape),
		"execution": bounded(executionShape)}
	promptShape   = shape{"title": asTitle, "description": asText, "icons": asIcons, "arguments": asArguments}
	templateShape = shape{"title": asTitle, "description": asText, "icons": asIcons, "mimeType": asText,
		"annotations": bounded(annotationShape)}
	resourceShape = shape{"title": asTitle, "description": asText, "icons": asIcons, "mimeType": asText,
		"size": asInteger, "annotations": bounded(annotationShape)}

	blockShapes = map[string]shape{
		"text":     {"text": asText, "annotations": annotationShape.object, "_meta": passedMeta},
		"image":    {"mimeType": asText, "annotations": annotationShape.object, "_meta": passedMeta},
		"audio":    {"mimeType": asText, "annotations": annotationShape.object, "_meta": passedMeta},
		"resource": {"annotations": annotationShape.object, "_meta": passedMeta},
		"resource_link": {"name": asText, "title": asText, "description": asText, "mimeType": asText, "size": asInteger,
			"icons": asIcons, "annotations": annotationShape.object, "_meta": passedMeta},
	}
	contentsShape   = shape{"mimeType": asText, "_meta": passedMeta}
	completionShape = shape{"values": listOf(asText), "total": asNatural, "hasMore": asBool}
	// resultShape has the members of all results but their contents.
	resultShape = shape{"description": asText, "isError": asBool, "structuredContent": asValue, "nextCursor": asText,
		"requestState": asText, "ttlMs": asNatural, "cacheScope": oneOf("private", "public")}
)

// isURI reports whether clients take a text for a URI: it begins with a scheme, and an authority in it has a host that
// can be one.
func isURI(text string) bool {
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || scheme == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	for i, c := range []byte(strings.ToLower(scheme)) {
		if !(c >= 'a' && c <= 'z') && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(c))) {
			return false
		}
	}
	rest, hasAuthority := strings.CutPrefix(rest, "//")
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	needsHost := slices.Contains([]string{"http", "https", "ws", "wss", "ftp"}, strings.ToLower(scheme))
	switch {
	case !hasAuthority:
		return !needsHost && rest != ""
	case authority == "":
		return !needsHost
	case strings.ContainsAny(authority, " <>^|`\"{}\\"):
		return false
	}
	u, err := url.Parse(scheme + "://" + authority)
	if err != nil {
		return false
	}
	port := u.Port()
	n, err := strconv.Atoi(port)
	return (u.Hostname() != "" || !needsHost) && (port == "" || err == nil && n <= 65535)
}
