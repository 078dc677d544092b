package rpc

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/rawjson"
)

// Message is a message of a client, as far as the gateway has to read it.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`

	// Plain: every JSON reader reads it in the same way. No client sets it.
	Plain bool `json:"-"`
}

// Read reads a message as far as it can; the SDK reports what is wrong with it.
func Read(body []byte) (m Message) {
	all, ok := rawjson.Members(body)
	var version string
	if ok && utf8.Valid(body) && json.Unmarshal(all["method"], &m.Method) == nil &&
		json.Unmarshal(all["jsonrpc"], &version) == nil {
		m.ID, m.Params = all["id"], all["params"]
		known := 3
		if m.Params != nil {
			known++
		}
		m.Plain = m.ID != nil && version == "2.0" && len(all) == known
		return m
	}
	m = Message{}
	if json.Unmarshal(body, &m) != nil {
		return Message{}
	}
	return m
}

// maxNesting is less than the depth to which the SDK reads.
const maxNesting = 500

// Nested says whether a JSON text may be nested deeper than maxNesting.
func Nested(raw []byte) bool {
	return len(raw) > maxNesting && bytes.Count(raw, []byte("{"))+bytes.Count(raw, []byte("[")) > maxNesting
}

// maxDigits bounds the digits of a number that every JSON reader reads exactly.
const maxDigits = 15

// IsID says whether a value is a string without escapes, or an integer.
func IsID(v json.RawMessage) bool {
	if _, ok := rawjson.PlainText(v); ok {
		return true
	}
	digits := strings.TrimPrefix(string(v), "-")
	return len(digits) > 0 && len(digits) <= maxDigits && strings.Trim(digits, "0123456789") == ""
}

// Decode reads a message as the SDK does. Wrong is the answer to a text that is none.
func Decode(raw json.RawMessage) (_ jsonrpc.Message, wrong any) {
	m, err := jsonrpc.DecodeMessage(raw)
	switch {
	case !whole(raw):
		return nil, Invalid("Invalid request: id must be a string or a whole number of at most 2^53")
	case err != nil:
		return nil, Failure(IDOf(raw), jsonrpc.CodeInvalidRequest,
			"Invalid request: no JSON-RPC 2.0 message, or one that is nested too deep", nil)
	}
	return m, nil
}

// whole says whether the SDK answers under the id of a message: it reads a number as a
// whole one.
func whole(raw json.RawMessage) bool {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(raw, &m) != nil || len(m.ID) == 0 || m.ID[0] == '"' || string(m.ID) == "null" {
		return true
	}
	n, err := strconv.ParseFloat(string(m.ID), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) <= 1<<53
}

// Unparsable returns the answer to bytes that are no JSON; nil: they are.
func Unparsable(b []byte) any {
	if !utf8.Valid(b) {
		return Failure(nil, jsonrpc.CodeParseError, "Parse error: the request is not UTF-8", nil)
	}
	if !json.Valid(b) {
		return Failure(nil, jsonrpc.CodeParseError, "Parse error: the request is not JSON", nil)
	}
	return nil
}

// IDOf returns the id of a request; nil: it has no valid one.
func IDOf(b json.RawMessage) json.RawMessage {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(b, &m) != nil || !IsID(m.ID) {
		return nil
	}
	return m.ID
}
