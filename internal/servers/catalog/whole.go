package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
)

const (
	// maxRemade is the size in bytes up to which safeResult makes the result for code. What it makes may be several
	// times as large.
	maxRemade = 1 << 20
	// MaxAsking is the size in bytes up to which an answer may ask for input.
	MaxAsking = 16 << 20
	// maxWholeBlocks is how many content blocks a result for code may have.
	maxWholeBlocks = 100_000
)

// Result returns a result for a client, or the whole of it for code: see SafeResult and WholeResult.
func Result(ctx context.Context, raw json.RawMessage, whole bool) (result json.RawMessage, isError bool, err error) {
	if whole {
		return WholeResult(ctx, raw)
	}
	return SafeResult(raw)
}

// WholeResult is SafeResult for a result that goes to code, and not to a model: nothing of it is shortened, and it has
// all images. There is no second copy of a large result in memory: WholeResult changes raw in place, and returns it. It has no line breaks
// then, blocks of unknown types stay in it, and so do members that have no meaning. It has at most maxWholeBlocks. When
// the context ends, WholeResult does too, with its cause.
func WholeResult(ctx context.Context, raw json.RawMessage) (result json.RawMessage, isError bool, err error) {
	if !rawjson.IsObject(raw) || rawjson.NestedDeeper(raw, maxDepth) {
		return nil, false, fault.New(fault.Connection, "the server's answer is not an object, or nested too deep")
	}
	r := rawjson.Shared(raw, "resultType", "content", "isError")
	asks := rawjson.ShortText(r["resultType"]) == "input_required"
	switch {
	case asks && len(raw) > MaxAsking:
		return nil, false, fault.New(fault.Connection, "the server asks for input with %d bytes", len(raw))
	case asks, len(raw) <= maxRemade && elements(r["content"]) <= maxBlocks:
		return safeResult(raw, false)
	}
	for i := range raw {
		if raw[i] == '\n' { // a string has none
			raw[i] = ' '
		}
	}
	blocks := blockCleaner{ctx: ctx, members: rawjson.Object{}}
	rawjson.EachMember(raw, func(name string, value json.RawMessage) {
		switch {
		case err != nil:
		case name == "_meta":
			cleanMetaInPlace(value)
		case name == "content" && value[0] != '[':
			err = overwrite(value, json.RawMessage("[]"), "its content is not an array")
		case name == "content":
			rawjson.EachElement(value, func(block json.RawMessage) {
				if err == nil {
					err = blocks.clean(block)
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

// blockCleaner makes the blocks of one large result safe in place.
type blockCleaner struct {
	ctx     context.Context
	members rawjson.Object // of the current block
	count   int
}

// blockMembers are the members of a block that are looked at.
var blockMembers = []string{"type", "text", "data", "mimeType", "uri", "name", "resource", "_meta"}

// clean is safeBlock for a block of a large result.
func (c *blockCleaner) clean(block json.RawMessage) error {
	switch c.count++; {
	case c.count > maxWholeBlocks:
		return fault.Limit("content_blocks", c.count, maxWholeBlocks, "the server's answer has more than %d content "+
			"blocks", maxWholeBlocks)
	case c.count%1000 == 0 && c.ctx.Err() != nil:
		return ended(c.ctx)
	}
	if !rawjson.IsObject(block) {
		const text = "a block that is not an object was left out"
		return overwrite(block, textBlock("["+text+"]"), text)
	}
	b := c.members
	rawjson.TakeShared(b, block, blockMembers...)
	kind := rawjson.ShortText(b["type"])
	if problem, _ := blockProblem(kind, b); problem != "" {
		return overwrite(block, leftOut(kind, problem), "in a block of type "+kind+", "+problem)
	}
	if meta, ok := b["_meta"]; ok {
		cleanMetaInPlace(meta)
	}
	return nil
}

// ended returns the error of a context that has ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return fault.From(cause)
	}
	return fault.New(fault.Connection, "the server's answer was given up: %v", cause)
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
