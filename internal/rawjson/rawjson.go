// Package rawjson reads and writes JSON without decoding all of it: the values of an object
// stay unchanged bytes. Proxies need this for messages with fields that they do not know.
package rawjson

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Object is a JSON object whose values are the unchanged bytes.
type Object = map[string]json.RawMessage

// Message is a JSON-RPC 2.0 message that was received, with its parts as unchanged bytes.
// Requests and notifications have a method; a response has a result or an error.
type Message struct {
	Version string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  *string         `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// Envelope is a JSON-RPC 2.0 message to be written.
type Envelope struct {
	Version jsonrpcVersion  `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

// jsonrpcVersion is encoded as the version of JSON-RPC.
type jsonrpcVersion struct{}

// MarshalJSON implements json.Marshaler.
func (jsonrpcVersion) MarshalJSON() ([]byte, error) { return []byte(`"2.0"`), nil }

// IsObject reports whether a valid JSON value is an object.
func IsObject(raw json.RawMessage) bool { return hasPrefix(raw, "{") }

// IsArray reports whether a valid JSON value is an array.
func IsArray(raw json.RawMessage) bool { return hasPrefix(raw, "[") }

// IsString reports whether a valid JSON value is a string.
func IsString(raw json.RawMessage) bool { return hasPrefix(raw, "\"") }

func hasPrefix(raw json.RawMessage, prefix string) bool {
	return bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte(prefix))
}

// Members returns the members of an object by their exact names. It returns false if raw
// is not an object, or has a name twice: JSON decoders differ in which value they use.
func Members(raw json.RawMessage) (Object, bool) {
	members := Object{}
	d := json.NewDecoder(bytes.NewReader(raw))
	unique := true
	ok := forEachMember(d, func(name string, value json.RawMessage) {
		_, duplicate := members[name]
		unique = unique && !duplicate
		members[name] = value
	})
	if !ok || !unique || len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return nil, false
	}
	return members, true
}

// Without removes all members with that name from an object. It returns the rest, unchanged
// and in its order, and the value of the last removed member. Both are nil if raw is not an
// object.
func Without(raw json.RawMessage, name string) (rest, member json.RawMessage) {
	rest = append(make(json.RawMessage, 0, len(raw)), '{')
	ok := forEachMember(json.NewDecoder(bytes.NewReader(raw)), func(n string, value json.RawMessage) {
		if n == name {
			member = value
			return
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, Quote(n)...), ':'), value...)
	})
	if !ok {
		return nil, nil
	}
	return append(rest, '}'), member
}

// forEachMember calls do for each member of the next object of d, in order. It returns
// false if there is no object or it is incomplete.
func forEachMember(d *json.Decoder, do func(name string, value json.RawMessage)) bool {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return false
		}
		do(name, value)
	}
	_, err := d.Token()
	return err == nil
}

// Encode encodes a value without escaping HTML characters.
func Encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Quote encodes a text as a JSON string.
func Quote(text string) json.RawMessage {
	b, _ := Encode(text) // encoding a string cannot fail
	return b
}

// Number encodes an integer as a JSON number.
func Number(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// Text returns the text of a JSON string, or "" for any other value.
func Text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

// UnescapedString returns the text of a JSON string that has no escapes; false: raw is not
// such a string.
func UnescapedString(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return "", false
	}
	return string(raw[1 : len(raw)-1]), true
}

// NestedDeeper reports whether a JSON text is nested deeper than maxDepth. It only counts
// brackets, so a hostile text cannot exhaust the memory or the stack of a parser.
func NestedDeeper(raw []byte, maxDepth int) bool {
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// ReplaceSurrogates replaces escapes of half a character (\ud800 without its other half) by those of U+FFFD, in place:
// no UTF-8 stands for them, and some decoders refuse the whole text.
func ReplaceSurrogates(raw []byte) {
	for i := 0; i < len(raw); {
		n := bytes.IndexByte(raw[i:], '\\')
		if n < 0 {
			return
		}
		i += n
		switch half := escapedUnit(raw[i:]); {
		case half < 0xd800 || half > 0xdfff:
			i += 2
		case half < 0xdc00 && isLow(raw[i+6:]):
			i += 12
		default:
			copy(raw[i:], `\ufffd`)
			i += 6
		}
	}
}

// isLow reports whether a text begins with the escape of the second half of a character.
func isLow(raw []byte) bool {
	half := escapedUnit(raw)
	return half >= 0xdc00 && half <= 0xdfff
}

// escapedUnit returns the value of the escape \uXXXX with which a text begins; -1: it does not begin with one.
func escapedUnit(raw []byte) int {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int(n)
}
