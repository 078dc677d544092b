package spec

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns what may be shown of a stranger's text: valid, at most max
// bytes, and without what people do not see and models read all the same.
func Text(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200d' || r >= 0xE0000 && r <= 0xE0FFF {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= max {
		return s
	}
	cut := max
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Clip is Text for a name in a message.
func Clip(s string) string { return Text(s, 120) }

// HasControl says whether a text has control characters.
func HasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }
