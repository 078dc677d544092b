package spec

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// SafeText makes a third party's text safe to show: valid UTF-8, cut at max bytes, and
// without invisible characters, which models would read and people would not see.
func SafeText(s string, max int) string {
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

// ClipName is SafeText for a name in a message.
func ClipName(s string) string { return SafeText(s, 120) }

// HasControl reports whether a string has control characters.
func HasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }
