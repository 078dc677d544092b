package catalog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
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
	return !strings.HasPrefix(name, "io.modelcontextprotocol/") && name != RefusedMeta &&
		name != "progressToken"
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

// definitionShapes are the shapes of definitions by their kinds.
var definitionShapes = map[string]shape{kindTool: toolShape, kindPrompt: promptShape, kindResource: resourceShape,
	kindTemplate: templateShape}

// cleanMembers makes the members of a definition safe and valid, except for schemas and its name or URI. The prefix
// precedes the description. It returns the names of the members that it left out although they said something.
func cleanMembers(kind string, t rawjson.Object, descriptionPrefix string) (lost []string) {
	lost, _ = definitionShapes[kind].clean(t)
	d := spec.SafeText(rawjson.Text(t["description"]), maxDescription)
	if descriptionPrefix != "" {
		d = strings.TrimRight(descriptionPrefix+" "+d, " ")
	}
	delete(t, "description")
	if d != "" {
		t["description"] = rawjson.Quote(d)
	}
	CleanMeta(t)
	return lost
}

// Result makes a tool's result safe: its content blocks have known types and valid data, and it is not too large. A
// text takes the place of what is removed. For a client, its images are ones that models take, and long blocks are
// shortened. For code (whole) nothing is shortened, and all images stay; a large one is changed in place: see
// resultInPlace. Result also returns the result's isError. When the context ends, Result may do too, with its cause.
func Result(ctx context.Context, raw json.RawMessage, whole bool) (result json.RawMessage, isError bool, err error) {
	if whole {
		large, err := isLarge(raw)
		if err != nil {
			return nil, false, err
		}
		if large {
			return resultInPlace(ctx, raw)
		}
	}
	r, asks, err := open(raw)
	if err != nil {
		return nil, false, err
	}
	if asks {
		b, err := json.Marshal(r)
		return b, false, err
	}
	c := cleaner{model: !whole}
	blocks := contentOf(r["content"])
	remaining := max(maxResult-len(r["structuredContent"]), maxResult/4)
	safe := make([]json.RawMessage, 0, len(blocks))
	for _, b := range blocks {
		b, err := c.block(b)
		if err != nil {
			return nil, false, err
		}
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
	b, err := json.Marshal(r)
	return b, string(r["isError"]) == "true", err
}

// open returns the members of a result that all results have, made safe; asks: it asks for input, and is no answer yet.
func open(raw json.RawMessage) (r rawjson.Object, asks bool, err error) {
	if err := json.Unmarshal(raw, &r); err != nil || r == nil || rawjson.NestedDeeper(raw, maxDepth) {
		return nil, false, errNoResult()
	}
	CleanMeta(r)
	resultShape.clean(r)
	if string(r["resultType"]) == `"input_required"` {
		return r, true, checkInputRequests(r["inputRequests"])
	}
	delete(r, "resultType")
	return r, false, nil
}

func errNoResult() error {
	return fault.New(fault.Connection, "the server's answer is not an object, or nested too deep")
}

// contentOf returns the blocks of a result's content. A text, or one block, is content for some servers.
func contentOf(raw json.RawMessage) (blocks []json.RawMessage) {
	switch {
	case json.Unmarshal(raw, &blocks) == nil:
	case len(raw) > 0:
		blocks = []json.RawMessage{raw}
	}
	return blocks
}

// WithoutData returns a safe result of a tool for a client, without structuredContent if it has an image or audio: some
// clients show models the former in place of content. A tool whose definition has an outputSchema keeps it, since
// clients refuse a result without.
func WithoutData(definition, result json.RawMessage) json.RawMessage {
	r := rawjson.Shared(result, "content", "structuredContent")
	if r["structuredContent"] == nil || rawjson.Shared(definition, "outputSchema")["outputSchema"] != nil {
		return result
	}
	media, text := false, false
	rawjson.EachElement(r["content"], func(block json.RawMessage) {
		switch rawjson.ShortText(rawjson.Shared(block, "type")["type"]) {
		case "image", "audio":
			media = true
		case "text":
			text = true
		}
	})
	if !media {
		return result
	}
	var all rawjson.Object
	if json.Unmarshal(result, &all) != nil {
		return result
	}
	data := all["structuredContent"]
	delete(all, "structuredContent")
	if !text {
		blocks := append(contentOf(all["content"]), textBlock(string(data)))
		all["content"], _ = json.Marshal(blocks) // raw values always encode
	}
	b, _ := json.Marshal(all)
	return b
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

// cleaner makes the content blocks of one result safe, by one list of rules for all results.
type cleaner struct {
	model   bool           // images are ones that models take
	inPlace bool           // nothing is copied: what changes is overwritten where it stands, or the result is refused
	members rawjson.Object // of the current block, in place
}

// blockMembers are the members of a block that are looked at in place.
var blockMembers = []string{"type", "text", "data", "mimeType", "uri", "name", "resource", "_meta"}

// open returns the members of a block; nil: it is not an object.
func (c *cleaner) open(raw json.RawMessage) rawjson.Object {
	if !c.inPlace {
		var b rawjson.Object // here, as its address makes it a piece of memory of its own
		_ = json.Unmarshal(raw, &b)
		return b
	}
	if !rawjson.IsObject(raw) {
		return nil
	}
	rawjson.TakeShared(c.members, raw, blockMembers...)
	return c.members
}

// replace puts another block in the place of one; why is for the error where there is no space for it.
func (c *cleaner) replace(raw, with json.RawMessage, why string) (json.RawMessage, error) {
	if c.inPlace {
		return raw, overwrite(raw, with, why)
	}
	return with, nil
}

// block makes a content block safe. It returns the block, or a text block in place of an invalid one. A block of an
// unknown type becomes a text, and members are repaired, only where the block is made anew: code can do without.
func (c *cleaner) block(raw json.RawMessage) (json.RawMessage, error) {
	b := c.open(raw)
	if b == nil {
		const leftOut = "a block that is not an object was left out"
		if !c.inPlace { // a text of it would be a copy
			if text := asText(raw); text != nil {
				return textBlock(rawjson.Text(text)), nil
			}
		}
		return c.replace(raw, textBlock("["+leftOut+"]"), leftOut)
	}
	kind, changed := rawjson.ShortText(b["type"]), false
	if c.inPlace {
		cleanMetaInPlace(b["_meta"])
	} else {
		kind = rawjson.Text(b["type"]) // unknown, if it is long
		if kind == "" && asText(b["text"]) != nil {
			kind, b["type"], changed = "text", rawjson.Quote("text"), true
		}
		shape, known := blockShapes[kind]
		if !known {
			return textBlock(fmt.Sprintf("[content of the unknown type %q]\n%s", spec.ClipName(kind),
				spec.SafeText(string(raw), 64<<10))), nil
		}
		_, repaired := shape.clean(b)
		changed = changed || repaired
	}
	if c.model {
		text, imageChanged := forModel(kind, b)
		if text != nil {
			return text, nil
		}
		changed = changed || imageChanged
	}
	if problem, _ := blockProblem(kind, b); problem != "" {
		return c.replace(raw, leftOut(kind, problem), "in a block of type "+kind+", "+problem)
	}
	if c.inPlace {
		return raw, nil
	}
	switch kind {
	case "resource_link":
		if rawjson.Text(b["name"]) == "" {
			b["name"], changed = b["uri"], true
		}
	case "resource":
		if contents, repaired := repairContents(b["resource"]); repaired {
			b["resource"], changed = contents, true
		}
	}
	if changed {
		raw, _ = json.Marshal(b)
	}
	return raw, nil
}

// repairContents repairs the contents of a resource that have no problem, and reports whether it changed any.
func repairContents(raw json.RawMessage) (_ json.RawMessage, changed bool) {
	c := rawjson.Shared(raw, "blob", "text", "mimeType", "_meta") // a large blob is not copied
	sound := true
	for name, value := range c {
		switch name {
		case "mimeType":
			sound = sound && rawjson.IsString(value)
		case "_meta":
			sound = false
		case "text", "blob": // one of them alone, as a client could take the other
			sound = sound && len(c) > 0 && rawjson.IsString(value)
		}
	}
	if sound {
		return raw, false
	}
	var o rawjson.Object
	if json.Unmarshal(raw, &o) != nil {
		return raw, false
	}
	contentsShape.clean(o)
	for _, name := range []string{"blob", "text"} {
		if value, given := o[name]; given && !rawjson.IsString(value) {
			delete(o, name)
		}
	}
	return encoded(o), true
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
			problem = "its text is not a string"
		}
	case "image", "audio":
		problem = base64Problem(b["data"])
		if problem == "" && rawjson.ShortText(b["mimeType"]) == "" {
			problem = "it has no mimeType"
		}
	case "resource_link":
		if !isURI(rawjson.Text(b["uri"])) {
			problem = "it has no uri that all clients can read"
		}
	case "resource":
		problem = contentsProblem(b["resource"])
	default:
		return "", false
	}
	return problem, true
}

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
	if !isURI(rawjson.Text(c["uri"])) {
		return "its resource has no uri that all clients can read"
	}
	if blob := c["blob"]; rawjson.IsString(blob) {
		return base64Problem(blob)
	}
	if !rawjson.IsString(c["text"]) {
		return "its resource has neither text nor blob"
	}
	return ""
}

// OtherResult makes the result of a request other than tools/call safe for clients. Of resources/read, uri is the
// resource that was read, by the server's own name.
func OtherResult(method, uri string, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) > maxResult {
		return nil, fault.Limit("result_bytes", len(raw), maxResult,
			"the server's answer has %d bytes, and %d are passed on", len(raw),
			maxResult)
	}
	r, asks, err := open(raw)
	if err != nil {
		return nil, err
	}
	if asks {
		return json.Marshal(r)
	}
	switch method {
	case "resources/read":
		r["contents"] = safeContents(r["contents"], uri)
	case "prompts/get":
		r["messages"] = safeMessages(r["messages"])
	case "completion/complete":
		r["completion"] = safeCompletion(r["completion"])
	}
	return json.Marshal(r)
}

// safeContents returns the contents of resources/read.
func safeContents(raw json.RawMessage, uri string) json.RawMessage {
	all := []json.RawMessage{}
	for _, e := range contentOf(raw) {
		var c rawjson.Object
		if json.Unmarshal(e, &c) != nil || c == nil {
			text := asText(e)
			if text == nil {
				continue
			}
			c = rawjson.Object{"text": text}
		}
		contentsShape.clean(c)
		if !isURI(rawjson.Text(c["uri"])) {
			c["uri"] = rawjson.Quote(uri)
		}
		switch blob, given := c["blob"]; {
		case !given:
		case !rawjson.IsString(blob):
			delete(c, "blob")
		case base64Problem(blob) != "":
			delete(c, "blob")
			c["text"] = rawjson.Quote("[data that is not base64 was left out]")
		}
		if text := c["text"]; !rawjson.IsString(text) {
			delete(c, "text")
			switch {
			case asText(text) != nil:
				c["text"] = asText(text)
			case !isBlank(text): // a value in place of its JSON
				c["text"] = rawjson.Quote(string(text))
			case c["blob"] == nil:
				c["text"] = rawjson.Quote("")
			}
		}
		all = append(all, encoded(c))
	}
	return encoded(all)
}

// safeMessages returns the messages of prompts/get. One with several blocks becomes several messages.
func safeMessages(raw json.RawMessage) json.RawMessage {
	all, c := []rawjson.Object{}, cleaner{model: true}
	for _, e := range contentOf(raw) {
		var m rawjson.Object
		if json.Unmarshal(e, &m) != nil || m == nil {
			m = rawjson.Object{"content": e}
		}
		role := oneOf("user", "assistant")(m["role"])
		if role == nil {
			role = rawjson.Quote("user")
		}
		for _, b := range contentOf(m["content"]) {
			one := maps.Clone(m)
			one["role"] = role
			one["content"], _ = c.block(b) // made anew, it has all the space that it needs
			all = append(all, one)
		}
	}
	return encoded(all)
}

// maxCompletions is how many values a completion may have, by MCP.
const maxCompletions = 100

// safeCompletion returns the completion of completion/complete.
func safeCompletion(raw json.RawMessage) json.RawMessage {
	var c rawjson.Object
	if json.Unmarshal(raw, &c) != nil || c == nil {
		c = rawjson.Object{}
		if rawjson.IsArray(raw) { // the values alone
			c["values"] = raw
		}
	}
	completionShape.clean(c)
	var values []json.RawMessage
	if json.Unmarshal(c["values"], &values) != nil || values == nil {
		c["values"] = json.RawMessage("[]")
	}
	if len(values) > maxCompletions {
		c["values"], c["hasMore"] = encoded(values[:maxCompletions]), json.RawMessage("true")
	}
	return encoded(c)
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
