// Package plain makes texts of servers and sandboxes fit for a terminal.
package plain

import (
	"strings"
	"unicode"
)

// Text returns an untrusted text without the control characters that a terminal would obey, and without
// those that change the order in which it shows text.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 ||
			unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029 {
			return -1
		}
		return r
	}, s)
}

// Cell returns an untrusted text that fits a cell of a table: on one line, printable.
func Cell(s string) string { return strings.Join(strings.Fields(Text(s)), " ") }
