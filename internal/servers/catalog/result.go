package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// Limits of definitions and results. All but MaxDefinitions, maxDepth and maxBlocks are in bytes.
const (
	MaxDefinitions = 1000 // of each kind, of one server
	maxDescription = 8 << 10
	maxTitle       = 256
	maxSchema      = 256 << 10
	maxDefinition  = 512 << 10
	maxDepth       = 64
	MaxCatalog     = 8 << 20  // of all definitions of one server
	MaxCatalogs    = 32 << 20 // of all servers of one principal
	maxResult      = 8 << 20
	maxBlocks      = 10_000   // of one result
	maxMeta        = 64 << 10 // of a _meta that is passed on
)

// isPassedMeta reports whether a member of a server's _meta is passed on to clients, by its name.
func isPassedMeta(name string) bool {
	return !strings.HasPrefix(name, "io.modelcontextprotocol/") && name != "progressToken"
}

// passedMeta returns the members of a server's _meta that are passed on to clients, or nil.
func passedMeta(raw json.RawMessage) json.RawMessage {
	var m rawjson.Object
	if len(raw) > maxMeta || json.Unmarshal(raw, &m) != nil {
		return nil
	}
	for k := range m {
		if !isPassedMeta(k) {
			delete(m, k)
		}
	}
	if len(m) == 0 {
		return nil
	}
	b, _ := json.Marshal(m)
	return b
}

// hashDefinition returns the hash of a definition. It does not depend on white space and the order of
// members.
func hashDefinition(raw json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	_ = d.Decode(&v)        // it was decoded before
	b, _ := json.Marshal(v) // sorts keys
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// safeTool decodes a tool's definition and makes it safe for clients, except for its
// name and outputSchema.
func safeTool(raw json.RawMessage, descriptionPrefix string) (rawjson.Object, error) {
	if len(raw) > maxDefinition {
		return nil, fmt.Errorf("its definition has %d bytes, and %d are taken", len(raw), maxDefinition)
	}
	var t rawjson.Object
	if err := json.Unmarshal(raw, &t); err != nil || t == nil {
		return nil, fmt.Errorf("its definition is no object")
	}
	in, err := objectSchema(t["inputSchema"])
	if err != nil {
		return nil, err
	}
	t["inputSchema"] = in
	cleanCommonMembers(t, descriptionPrefix)
	return t, nil
}

// cleanCommonMembers makes the members safe that all kinds of definitions have; mark precedes the
// description.
func cleanCommonMembers(t rawjson.Object, descriptionPrefix string) {
	d := spec.SafeText(rawjson.Text(t["description"]), maxDescription)
	if descriptionPrefix != "" {
		d = strings.TrimRight(descriptionPrefix+" "+d, " ")
	}
	delete(t, "description")
	if d != "" {
		t["description"] = rawjson.Quote(d)
	}
	if title := spec.SafeText(rawjson.Text(t["title"]), maxTitle); title != "" {
		t["title"] = rawjson.Quote(title)
	} else {
		delete(t, "title")
	}
	for _, k := range []string{"annotations", "execution"} {
		raw, ok := t[k]
		if !ok {
			continue
		}
		var v map[string]any
		if len(raw) > 4<<10 || json.Unmarshal(raw, &v) != nil || v == nil {
			delete(t, k)
			continue
		}
		cleanTexts(v)
		t[k], _ = rawjson.Encode(v)
	}
	if raw, ok := t["icons"]; ok && (len(raw) > 64<<10 || raw[0] != '[') {
		delete(t, "icons")
	}
	if m := passedMeta(t["_meta"]); m != nil {
		t["_meta"] = m
	} else {
		delete(t, "_meta")
	}
}

// SafeResult makes a tool's result safe for clients: its content blocks have known types
// and valid data, and it is not too large. A text takes the place of what is removed. It
// also returns the result's isError.
func SafeResult(raw json.RawMessage) (json.RawMessage, bool, error) {
	var r rawjson.Object
	if err := json.Unmarshal(raw, &r); err != nil || r == nil || rawjson.NestedDeeper(raw, maxDepth) {
		return nil, false, fault.New(fault.Connection, "the server's answer is no object, or nested too deep")
	}
	CleanMeta(r)
	if string(r["resultType"]) == `"input_required"` {
		if err := checkInputRequests(r["inputRequests"]); err != nil {
			return nil, false, err
		}
		b, err := json.Marshal(r)
		return b, false, err
	}
	delete(r, "resultType")
	var blocks []json.RawMessage
	if json.Unmarshal(r["content"], &blocks) != nil {
		blocks = nil
	}
	remaining := max(maxResult-len(r["structuredContent"]), maxResult/4)
	safe := make([]json.RawMessage, 0, len(blocks))
	for _, b := range blocks {
		b = safeBlock(b)
		if len(b) > remaining {
			b = shortenBlock(b, remaining)
		}
		remaining = max(remaining-len(b), 4096)
		if safe = append(safe, b); len(safe) >= maxBlocks {
			safe = append(safe, textBlock(fmt.Sprintf("[%d further blocks were left out]", len(blocks)-len(safe))))
			break
		}
	}
	if n := len(r["structuredContent"]); n > maxResult {
		delete(r, "structuredContent")
		safe = append(safe, textBlock(fmt.Sprintf(
			"[the structured content, %d bytes, was left out: at most %d are passed on]", n, maxResult)))
	}
	r["content"], _ = json.Marshal(safe)
	var isError bool
	if json.Unmarshal(r["isError"], &isError) != nil {
		delete(r, "isError")
	}
	b, err := json.Marshal(r)
	return b, isError, err
}

// CleanMeta removes from the _meta of an object what is not passed on to clients.
func CleanMeta(r rawjson.Object) {
	if m := passedMeta(r["_meta"]); m != nil {
		r["_meta"] = m
	} else {
		delete(r, "_meta")
	}
}

func textBlock(s string) json.RawMessage {
	b, _ := json.Marshal(map[string]string{"type": "text", "text": s})
	return b
}

// shortenBlock cuts a text block to about room bytes, and replaces other blocks by a text that says so.
func shortenBlock(b json.RawMessage, maxBytes int) json.RawMessage {
	var t struct{ Type, Text string }
	_ = json.Unmarshal(b, &t) // it was decoded before
	if t.Type != "text" {
		return textBlock(fmt.Sprintf("[a block of type %s, %d bytes, was left out: the result is too large]",
			spec.ClipName(t.Type), len(b)))
	}
	half := max(maxBytes/8, 512) // a character may take six bytes in JSON
	if len(t.Text) <= 2*half {
		return textBlock("[a text was left out: the result is too large]")
	}
	head, tail := strings.ToValidUTF8(t.Text[:half], ""), strings.ToValidUTF8(t.Text[len(t.Text)-half:], "")
	return textBlock(fmt.Sprintf("%s\n[… %d of %d bytes were left out: the result is too large …]\n%s", head,
		len(t.Text)-2*half, len(t.Text), tail))
}

// safeBlock makes a content block safe. It replaces invalid and unknown blocks by text blocks.
func safeBlock(raw json.RawMessage) json.RawMessage {
	var b rawjson.Object
	if json.Unmarshal(raw, &b) != nil || b == nil {
		return textBlock("[a block that is no object was left out]")
	}
	kind := rawjson.Text(b["type"])
	problem, known := blockProblem(kind, b)
	switch {
	case !known:
		return textBlock(fmt.Sprintf("[content of the unknown type %q]\n%s", spec.ClipName(kind),
			spec.SafeText(string(raw), 64<<10)))
	case problem != "":
		return leftOut(kind, problem)
	case kind == "resource_link" && rawjson.Text(b["name"]) == "":
		b["name"] = b["uri"]
		raw, _ = json.Marshal(b)
	}
	if _, ok := b["_meta"]; ok {
		CleanMeta(b)
		raw, _ = json.Marshal(b)
	}
	return raw
}

// leftOut returns the block in place of one with a problem.
func leftOut(kind, problem string) json.RawMessage {
	return textBlock(fmt.Sprintf("[a block of type %s was left out: %s]", kind, problem))
}

// blockProblem returns what is wrong with a content block; empty: nothing. known reports whether there are blocks of
// that type.
func blockProblem(kind string, b rawjson.Object) (problem string, known bool) {
	switch kind {
	case "text":
		if !rawjson.IsString(b["text"]) {
			problem = "its text is no string"
		}
	case "image", "audio":
		problem = base64Problem(b["data"])
		if problem == "" && rawjson.ShortText(b["mimeType"]) == "" {
			problem = "it has no mimeType"
		}
	case "resource_link":
		if isEmpty(b["uri"]) {
			problem = "it has no uri"
		}
	case "resource":
		problem = contentsProblem(b["resource"])
	case "tool_use", "tool_result": // of sampling
	default:
		return "", false
	}
	return problem, true
}

// isEmpty reports whether a value is no text, or an empty one.
func isEmpty(raw json.RawMessage) bool { return !rawjson.IsString(raw) || string(raw) == `""` }

// base64Problem does not copy the data, which may be large.
func base64Problem(raw json.RawMessage) string {
	if !rawjson.IsString(raw) {
		return "it has no data"
	}
	if !isBase64(raw) {
		return "its data is not base64"
	}
	return ""
}

// contentsProblem returns what is wrong with the contents of a resource; empty: nothing.
func contentsProblem(raw json.RawMessage) string {
	if !rawjson.IsObject(raw) {
		return "it holds no resource"
	}
	c := rawjson.Shared(raw, "uri", "blob", "text")
	if isEmpty(c["uri"]) {
		return "its resource has no uri"
	}
	if blob, ok := c["blob"]; ok {
		return base64Problem(blob)
	}
	if !rawjson.IsString(c["text"]) {
		return "its resource has neither text nor blob"
	}
	return ""
}

// SafeOtherResult makes the result of a request other than tools/call safe for clients.
func SafeOtherResult(raw json.RawMessage) (json.RawMessage, error) {
	var r rawjson.Object
	if err := json.Unmarshal(raw, &r); err != nil || r == nil || rawjson.NestedDeeper(raw, maxDepth) {
		return nil, fault.New(fault.Connection, "the server's answer is no object, or nested too deep")
	}
	if len(raw) > maxResult {
		return nil, fault.Limit("result_bytes", len(raw), maxResult,
			"the server's answer has %d bytes, and %d are passed on", len(raw),
			maxResult)
	}
	CleanMeta(r)
	if string(r["resultType"]) != `"input_required"` {
		delete(r, "resultType")
	} else if err := checkInputRequests(r["inputRequests"]); err != nil {
		return nil, err
	}
	var contents []rawjson.Object
	if json.Unmarshal(r["contents"], &contents) == nil {
		for _, c := range contents {
			if rawjson.IsString(c["blob"]) && base64Problem(c["blob"]) != "" {
				delete(c, "blob")
				c["text"] = rawjson.Quote("[data that is not base64 was left out]")
			}
			CleanMeta(c)
		}
		r["contents"], _ = json.Marshal(contents)
	}
	var messages []rawjson.Object
	if json.Unmarshal(r["messages"], &messages) == nil {
		for _, m := range messages {
			if rawjson.IsObject(m["content"]) {
				m["content"] = safeBlock(m["content"])
			}
		}
		r["messages"], _ = json.Marshal(messages)
	}
	return json.Marshal(r)
}

// SafeImplementation makes a server's Implementation object safe; nil: it is not an object.
func SafeImplementation(raw json.RawMessage) json.RawMessage {
	var m rawjson.Object
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	safe := map[string]string{}
	for _, k := range []string{"name", "title", "version"} {
		if v := spec.SafeText(rawjson.Text(m[k]), maxTitle); v != "" {
			safe[k] = v
		}
	}
	b, _ := json.Marshal(safe)
	return b
}
