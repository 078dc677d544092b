package wire

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// rawPath begins a path that is not UTF-8, as strings of messages must be; the rest is escaped as in URLs. No path has
// a zero byte.
const rawPath = "\x00"

// EncodePath returns a path of a file as a message has it.
func EncodePath(p string) string {
	if utf8.ValidString(p) {
		return p
	}
	return rawPath + url.PathEscape(p)
}

// DecodePath returns the path that EncodePath had.
func DecodePath(p string) string {
	if escaped, ok := strings.CutPrefix(p, rawPath); ok {
		if raw, err := url.PathUnescape(escaped); err == nil {
			return raw
		}
	}
	return p
}
