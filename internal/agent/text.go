package agent

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes a text from inside a sandbox fit for a log line or an error:
// valid UTF-8, no control characters but newline and tab, at most max bytes.
func Printable(s string, max int) string {
	if len(s) > max {
		s = s[:max] + "…"
	}
	clean := func(r rune) rune {
		if r == '\n' || r == '\t' || (r != utf8.RuneError && unicode.IsPrint(r)) {
			return r
		}
		if r == utf8.RuneError {
			return '\uFFFD'
		}
		return -1
	}
	return strings.Map(clean, strings.ToValidUTF8(s, "\uFFFD"))
}
