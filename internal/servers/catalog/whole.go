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
	// maxRemade is the size in bytes up to which a result for code is made anew. What is made may be several times as
	// large.
	maxRemade = 1 << 20
	// MaxAsking is the size in bytes up to which an answer may ask for input.
	MaxAsking = 16 << 20
	// maxWholeBlocks is how many content blocks a result for code may have.
	maxWholeBlocks = 100_000
)

// isLarge reports whether a result for code is changed in place. One that asks for input is not.
func isLarge(raw json.RawMessage) (bool, error) {
	if !rawjson.IsObject(raw) || rawjson.NestedDeeper(raw, maxDepth) {
		return false, errNoResult()
	}
	r := rawjson.Shared(raw, "resultType", "content")
	if rawjson.ShortText(r["resultType"]) == "input_required" {
		if len(raw) > MaxAsking {
			return false, fault.New(fault.Connection, "the server asks for input with %d bytes", len(raw))
		}
		return false, nil
	}
	return len(raw) > maxRemade || elements(r["content"]) > maxBlocks, nil
}

// resultInPlace makes a large result for code safe. There is no second copy of it in memory: raw is changed, and
// returned. It has no line breaks then, blocks of unknown types stay in it, and so do members that have no meaning. It
// has at most maxWholeBlocks.
func resultInPlace(ctx context.Context, raw json.RawMessage) (result json.RawMessage, isError bool, err error) {
	for i := range raw {
		if raw[i] == '\n' { // a string has none
			raw[i] = ' '
		}
	}
	c, count := cleaner{inPlace: true, members: rawjson.Object{}}, 0
	rawjson.EachMember(raw, func(name string, value json.RawMessage) {
		switch {
		case err != nil:
		case name == "_meta":
			cleanMetaInPlace(value)
		case name == "isError":
			isError = string(value) == "true"
		case name == "content" && value[0] != '[':
			err = overwrite(value, json.RawMessage("[]"), "its content is not an array")
		case name == "content":
			rawjson.EachElement(value, func(block json.RawMessage) {
				if err != nil {
					return
				}
				if err = checkCount(ctx, &count); err == nil {
					_, err = c.block(block)
				}
			})
		}
	})
	if err != nil {
		return nil, false, err
	}
	return raw, isError, nil
}

// checkCount counts one block more. It returns an error if there are too many, or now and then if the context has ended.
func checkCount(ctx context.Context, count *int) error {
	switch *count++; {
	case *count > maxWholeBlocks:
		return fault.Limit("content_blocks", *count, maxWholeBlocks, "the server's answer has more than %d content "+
			"blocks", maxWholeBlocks)
	case *count%1000 == 0 && ctx.Err() != nil:
		return ended(ctx)
	}
	return nil
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
