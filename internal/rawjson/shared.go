package rawjson

import (
	"bytes"
	"encoding/json"
	"slices"
)

// The functions in this file read valid JSON without copying it, for values that are too large for copies. Names and
// values share memory with what is read. Other JSON makes them return too little, or panic.

// maxShared is how long in bytes a name or a text is that is decoded here.
const maxShared = 1 << 10

// EachMember calls do for each member of an object, in order, also of one that has a name twice. A name of over 1 KiB
// counts as empty.
func EachMember(raw json.RawMessage, do func(name string, value json.RawMessage)) {
	if !IsObject(raw) {
		return
	}
	for i := next(raw, next(raw, 0)+1); raw[i] != '}'; {
		name := raw[i:skip(raw, i)]
		i = next(raw, next(raw, i+len(name))+1) // after the colon
		value := raw[i:skip(raw, i)]
		do(ShortText(name), value)
		i = afterComma(raw, i+len(value))
	}
}

// EachElement calls do for each element of an array, in order.
func EachElement(raw json.RawMessage, do func(value json.RawMessage)) {
	if !hasPrefix(raw, "[") {
		return
	}
	for i := next(raw, next(raw, 0)+1); raw[i] != ']'; {
		value := raw[i:skip(raw, i)]
		do(value)
		i = afterComma(raw, i+len(value))
	}
}

// Shared returns those members of an object that have one of the names; of members with one name the last.
func Shared(raw json.RawMessage, names ...string) Object {
	members := Object{}
	TakeShared(members, raw, names...)
	return members
}

// TakeShared replaces members by what Shared returns.
func TakeShared(members Object, raw json.RawMessage, names ...string) {
	clear(members)
	EachMember(raw, func(name string, value json.RawMessage) {
		if slices.Contains(names, name) {
			members[name] = value
		}
	})
}

// ShortText returns the text of a JSON string of at most 1 KiB, or "" for any other value.
func ShortText(raw json.RawMessage) string {
	if len(raw) > maxShared || !IsString(raw) { // decoding what is none makes an error
		return ""
	}
	if s, ok := UnescapedString(raw); ok {
		return s
	}
	return Text(raw)
}

// next returns the index of the next byte from i on that is no white space.
func next(raw []byte, i int) int {
	for raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r' {
		i++
	}
	return i
}

// afterComma returns the index of what follows a value that ends before i.
func afterComma(raw []byte, i int) int {
	if i = next(raw, i); raw[i] == ',' {
		i = next(raw, i+1)
	}
	return i
}

// skip returns the index after the value that begins at i.
func skip(raw []byte, i int) int {
	switch raw[i] {
	case '"':
		return skipString(raw, i)
	case '{', '[':
		for depth := 0; ; {
			switch raw[i] {
			case '"':
				i = skipString(raw, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for ; i < len(raw); i++ {
		switch raw[i] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return i
		}
	}
	return i
}

// skipString returns the index after the string that begins at i.
func skipString(raw []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(raw[i:], '"')
		escapes := 0
		for raw[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}
