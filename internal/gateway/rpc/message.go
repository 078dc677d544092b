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

// Message has the parts of a client's message that the gateway needs.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`

	// Unambiguous: the message is a request that every JSON decoder reads in the same way,
	// such as without duplicate names.
	Unambiguous bool `json:"-"`
}

// Read reads a message as far as it can; the SDK reports errors in it.
func Read(body []byte) (m Message) {
	members, ok := rawjson.Members(body)
	var version string
	if ok && utf8.Valid(body) && json.Unmarshal(members["method"], &m.Method) == nil &&
		json.Unmarshal(members["jsonrpc"], &version) == nil {
		m.ID, m.Params = members["id"], members["params"]
		expected := 3
		if m.Params != nil {
			expected++
		}
		m.Unambiguous = m.ID != nil && version == "2.0" && len(members) == expected
		return m
	}
	m = Message{}
	if json.Unmarshal(body, &m) != nil {
		return Message{}
	}
	return m
}

// maxNesting is a depth that the SDK still reads.
const maxNesting = 500

// MayNestDeeply reports whether a JSON text may be nested deeper than maxNesting, by counting
// brackets.
func MayNestDeeply(raw []byte) bool {
	return len(raw) > maxNesting && bytes.Count(raw, []byte("{"))+bytes.Count(raw, []byte("[")) > maxNesting
}

// maxDigits is a number of digits that every JSON decoder reads exactly.
const maxDigits = 15

// IsID reports whether a value is an id that can be copied into the answer: a string without
// escapes, or an integer of at most maxDigits.
func IsID(v json.RawMessage) bool {
	if _, ok := rawjson.UnescapedString(v); ok {
		return true
	}
	digits := strings.TrimPrefix(string(v), "-")
	return len(digits) > 0 && len(digits) <= maxDigits && strings.Trim(digits, "0123456789") == ""
}

// Decode reads a message as the SDK does. If it is invalid, errorAnswer is the answer to it.
func Decode(raw json.RawMessage) (_ jsonrpc.Message, errorAnswer any) {
	m, err := jsonrpc.DecodeMessage(raw)
	switch {
	case !hasUsableID(raw):
		return nil, InvalidRequest("Invalid request: id must be a string or a whole number of at most 2^53")
	case err != nil:
		return nil, ErrorResponse(IDOf(raw), jsonrpc.CodeInvalidRequest,
			"Invalid request: no JSON-RPC 2.0 message, or one that is nested too deep", nil)
	}
	return m, nil
}

// hasUsableID reports whether the SDK's answer would have the same id as the message: the SDK
// converts a number to an integer.
func hasUsableID(raw json.RawMessage) bool {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(raw, &m) != nil || len(m.ID) == 0 || m.ID[0] == '"' || string(m.ID) == "null" {
		return true
	}
	n, err := strconv.ParseFloat(string(m.ID), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) <= 1<<53
}

// ParseError returns the answer to bytes that are not valid JSON; nil: they are.
func ParseError(b []byte) any {
	if !utf8.Valid(b) {
		return ErrorResponse(nil, jsonrpc.CodeParseError, "Parse error: the request is not UTF-8", nil)
	}
	if !json.Valid(b) {
		return ErrorResponse(nil, jsonrpc.CodeParseError, "Parse error: the request is not JSON", nil)
	}
	return nil
}

// IDOf returns the id of a request; nil: it has no valid id.
func IDOf(b json.RawMessage) json.RawMessage {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(b, &m) != nil || !IsID(m.ID) {
		return nil
	}
	return m.ID
}
