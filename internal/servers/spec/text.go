package spec

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"sandlot/internal/fault"
)

// SafeText makes a third party's text safe to show: valid UTF-8, cut at max bytes, and
// without invisible characters, which models would read and people would not see.
func SafeText(s string, max int) string {
	var safe strings.Builder // s may be far larger than max, and is not copied
	invalid := false         // the last byte was no UTF-8
	for i, size := 0, 0; i < len(s); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(s[i:])
		wasInvalid := invalid
		invalid = r == utf8.RuneError && size <= 1
		if isHidden(r) || invalid && wasInvalid {
			continue
		}
		if safe.Len()+utf8.RuneLen(r) > max {
			return safe.String() + "…"
		}
		safe.WriteRune(r)
	}
	return safe.String()
}

// isHidden reports whether people do not see a character, other than a line break or a tab. Those that emojis are made
// with may stay, and so may the separators of lines, which Quoted looks at.
func isHidden(r rune) bool {
	return !strings.ContainsRune("\n\t\u200d\ufe0e\ufe0f\u2028\u2029", r) && fault.Invisible(r)
}

// Quoted is SafeText with "> " before each line, so that none can be taken for what stands around it.
func Quoted(s string, max int) string {
	return "> " + strings.NewReplacer("\n", "\n> ", "\u2028", "\n> ", "\u2029", "\n> ").Replace(SafeText(s, max))
}

// HasLines reports whether a text may end the line that shows it, or move in it.
func HasLines(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
	})
}

// ClipName is SafeText for a name in a message.
func ClipName(s string) string { return SafeText(s, 120) }

// HasControl reports whether a string has control characters.
func HasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }
