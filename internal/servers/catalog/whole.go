package catalog

import (
	"bytes"
	"encoding/json"
	"strconv"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
)

const (
	// maxRemade is the size in bytes up to which SafeResult makes the result for code. What it makes may be several
	// times as large.
	maxRemade = 1 << 20
	// maxAsking is the size of an answer that asks for input.
	maxAsking = 16 << 20
)

// Result returns a result for a client, or the whole of it for code: see SafeResult and WholeResult.
func Result(raw json.RawMessage, whole bool) (result json.RawMessage, isError bool, err error) {
	if whole {
		return WholeResult(raw)
	}
	return SafeResult(raw)
}

// WholeResult is SafeResult for a result that goes to code, and not to a model: nothing of it is shortened. There is no
// second copy of a large result in memory: WholeResult changes raw in place, and returns it. It has no line breaks
// then, blocks of unknown types stay in it, and so do members that have no meaning.
func WholeResult(raw json.RawMessage) (result json.RawMessage, isError bool, err error) {
	if !rawjson.IsObject(raw) || rawjson.NestedDeeper(raw, maxDepth) {
		return nil, false, fault.New(fault.Connection, "the server's answer is no object, or nested too deep")
	}
	r := rawjson.Shared(raw, "resultType", "content", "isError")
	asks := rawjson.ShortText(r["resultType"]) == "input_required"
	switch {
	case asks && len(raw) > maxAsking:
		return nil, false, fault.New(fault.Connection, "the server asks for input with %d bytes", len(raw))
	case asks, len(raw) <= maxRemade && elements(r["content"]) <= maxBlocks:
		return SafeResult(raw)
	}
	for i := range raw {
		if raw[i] == '\n' { // a string has none
			raw[i] = ' '
		}
	}
	rawjson.EachMember(raw, func(name string, value json.RawMessage) {
		switch {
		case err != nil:
		case name == "_meta":
			cleanMetaInPlace(value)
		case name == "content" && value[0] != '[':
			err = overwrite(value, json.RawMessage("[]"), "its content is no array")
		case name == "content":
			rawjson.EachElement(value, func(block json.RawMessage) {
				if err == nil {
					err = cleanBlockInPlace(block)
				}
			})
		}
	})
	if err != nil {
		return nil, false, err
	}
	return raw, string(r["isError"]) == "true", nil
}

// elements returns how many elements an array has.
func elements(raw json.RawMessage) (n int) {
	rawjson.EachElement(raw, func(json.RawMessage) { n++ })
	return n
}

// overwrite replaces a value in place; text says why.
func overwrite(value, with json.RawMessage, text string) error {
	if len(with) > len(value) {
		return fault.New(fault.Connection, "the server's answer is none of MCP: %s", text)
	}
	for i := copy(value, with); i < len(value); i++ {
		value[i] = ' '
	}
	return nil
}

// cleanBlockInPlace is safeBlock for a block of a large result.
func cleanBlockInPlace(block json.RawMessage) error {
	if !rawjson.IsObject(block) {
		const text = "a block that is no object was left out"
		return overwrite(block, textBlock("["+text+"]"), text)
	}
	b := rawjson.Shared(block, "type", "text", "data", "mimeType", "uri", "name", "resource", "_meta")
	kind := rawjson.ShortText(b["type"])
	if problem, _ := blockProblem(kind, b); problem != "" {
		return overwrite(block, leftOut(kind, problem), "in a block of type "+kind+", "+problem)
	}
	if meta, ok := b["_meta"]; ok {
		cleanMetaInPlace(meta)
	}
	return nil
}

// cleanMetaInPlace is CleanMeta for a large result.
func cleanMetaInPlace(meta json.RawMessage) {
	if !rawjson.IsObject(meta) {
		return
	}
	clean := len(meta) <= maxMeta
	rawjson.EachMember(meta, func(name string, _ json.RawMessage) { clean = clean && isPassedMeta(name) })
	if clean {
		return
	}
	safe := passedMeta(meta)
	if len(safe) == 0 || len(safe) > len(meta) {
		safe = json.RawMessage("{}")
	}
	_ = overwrite(meta, safe, "") // {} fits
}

// inBase64 has the letters of standard base64.
var inBase64 = func() (letters [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		letters[c] = true
	}
	return letters
}()

// isBase64 reports whether a JSON string is standard base64, which may have line breaks. It copies nothing.
func isBase64(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	text := raw[1 : len(raw)-1]
	letters, padding := 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' {
			c, i = unescape(text, i)
		}
		switch {
		case inBase64[c] && padding == 0:
			letters++
		case c == '=':
			padding++
		case c != '\n' && c != '\r':
			return false
		}
	}
	return padding <= 2 && (letters+padding)%4 == 0
}

// unescape returns the ASCII character that an escape of a JSON string stands for, or else 0, and the index of the last
// byte of the escape.
func unescape(text []byte, i int) (c byte, last int) {
	switch i++; text[i] {
	case '/':
		return '/', i
	case 'n', 'r':
		return '\n', i
	case 'u':
		if n, err := strconv.ParseUint(string(text[i+1:i+5]), 16, 16); err == nil && n < 0x80 {
			return byte(n), i + 4
		}
	}
	return 0, i
}
