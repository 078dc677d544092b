package tui

import (
	"fmt"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"

	"sandlot/internal/fault"
)

// maxText is how much of a text is drawn, in bytes.
const maxText = 256 << 10

// maxMarks is how many combining characters may stand on one another.
const maxMarks = 2

// clean returns a text of others on any number of lines. What cannot be seen, or changes how other text is shown, is
// written as an escape.
func clean(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	var b strings.Builder
	marks := 0
	for _, r := range text {
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == '\n':
			b.WriteByte('\n')
		case r == '\t':
			b.WriteString("    ")
		case r > 0xffff && !seen(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		case !seen(r) || marks > maxMarks:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// seen reports whether a character is shown as it is. Of letters that are written from right to left the order on the
// screen is the terminal's affair: those are shown.
func seen(r rune) bool { return unicode.IsPrint(r) && !fault.Invisible(r) }

// word returns a text of others on one line.
func word(text string) string {
	const most = 2 << 10
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.Join(strings.Fields(clean(text)), " ")
}

// cut shortens a clean text to a width, and says so.
func cut(text string, width int) string {
	if width <= 0 {
		return ""
	}
	if len(text) <= width || lipgloss.Width(text) <= width { // a byte is one column at most
		return text
	}
	n := 0
	for i, r := range text {
		w := lipgloss.Width(string(r))
		if n+w > width-1 {
			return text[:i] + "…"
		}
		n += w
	}
	return text
}

// counted returns a number of things: "1 tool", "2 tools".
func counted(n int, one, many string) string {
	if n != 1 {
		one = many
	}
	return fmt.Sprintf("%d %s", n, one)
}

// pad cuts a clean text to a width, and fills it up.
func pad(text string, width int) string {
	text = cut(text, width)
	return text + strings.Repeat(" ", max(0, width-lipgloss.Width(text)))
}

// wrap breaks a clean text into lines of a width: at spaces, if there are any.
func wrap(text string, width int) (lines []string) {
	width = max(width, 2)
	for paragraph := range strings.SplitSeq(text, "\n") {
		lines = append(lines, wrapLine(paragraph, width)...)
	}
	return lines
}

func wrapLine(text string, width int) (lines []string) {
	start, space, n := 0, -1, 0
	for i, r := range text {
		w := lipgloss.Width(string(r))
		if n+w > width {
			at, next := i, i
			if space > start {
				at, next = space, space+1
			}
			lines = append(lines, text[start:at])
			start, space = next, -1
			n = lipgloss.Width(text[start:i])
		}
		if r == ' ' {
			space = i
		}
		n += w
	}
	return append(lines, text[start:])
}

// Styles are of the terminal's own 16 colours, so that they suit its background. Nothing is told by a colour alone.
var (
	plainText = lipgloss.NewStyle()
	bold      = plainText.Bold(true)
	faint     = plainText.Faint(true)
	selected  = plainText.Reverse(true)
	good      = plainText.Foreground(lipgloss.Color("2"))
	warning   = plainText.Foreground(lipgloss.Color("3"))
	bad       = plainText.Foreground(lipgloss.Color("1"))
	accent    = plainText.Foreground(lipgloss.Color("6"))
)
