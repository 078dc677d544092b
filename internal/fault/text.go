package fault

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxClip is how many bytes of a client's text a message repeats.
const maxClip = 120

// Clip makes a client's text fit for a message: it replaces invalid UTF-8, and cuts the text
// after at most 120 bytes, between two characters. An ellipsis marks the cut.
func Clip(text string) string { return clip(text, maxClip) }

func clip(text string, limit int) string {
	cut := len(text) > limit
	if cut {
		n := limit
		for n > limit-utf8.UTFMax && n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if cut {
		text += "…"
	}
	return text
}

// Invisible reports whether a character shows as nothing, or changes how others show: control characters, formats,
// what Unicode lets programs ignore (fillers of Hangul, joiners, selectors of variants, tags), and blanks that are not
// spaces.
func Invisible(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0:
		return true
	case r < unicode.MaxLatin1 && r != 0xad:
		return false
	case r == 0x2028, r == 0x2029: // separators of lines and paragraphs
		return true
	case r == 0x2800, r == 0x16fe4, r == 0x1d159: // a pattern of Braille without dots, a filler, a note without a head
		return true
	case r >= 0xfff0 && r <= 0xfff8, r >= 0xe0000 && r <= 0xe0fff:
		return true
	}
	return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Printable makes a text from a sandbox fit for a log line or an error: it replaces invalid
// UTF-8, removes invisible characters except newline and tab, and cuts the text after at most
// limit bytes. An ellipsis marks the cut.
func Printable(text string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == utf8.RuneError || unicode.IsPrint(r) && !Invisible(r) {
			return r
		}
		return -1
	}, clip(text, limit))
}

// Name makes a name from a sandbox or a stranger fit for one line of a listing: a name that could look like something
// else is quoted, with escapes for what cannot be seen. It is cut after at most limit bytes.
func Name(text string, limit int) string {
	if clear := Printable(text, limit); clear == text && !strings.ContainsAny(text, "\n\t\uFFFD") &&
		strings.TrimSpace(text) == text && !strings.HasPrefix(text, `"`) && !strings.Contains(text, " -> ") {
		return text
	}
	if len(text) > limit {
		return quote(text[:limit]) + "…"
	}
	return quote(text)
}

// quote is strconv.Quote, with escapes for all invisible characters.
func quote(text string) string {
	var b strings.Builder
	for _, r := range strconv.Quote(text) {
		switch {
		case !Invisible(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// DidYouMean returns the end of a message about an unknown name: "; did you mean ...?" with
// the nearest known name, or "" if no known name is near.
func DidYouMean(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// Nearest returns the known name that was probably meant by name: one with nearly the same
// spelling, one that contains name, or one that name begins with. It returns "" if there is
// none.
func Nearest(name string, known []string) string {
	nearest, leastDistance := "", 3
	if len(name) > 64 {
		return ""
	}
	name = strings.ToLower(name)
	for _, k := range known {
		if d := distance(name, k); d < leastDistance && d < len(k) {
			nearest, leastDistance = k, d
		}
	}
	if nearest != "" || len(name) < 3 {
		return nearest
	}
	// No spelling is near. Choose the shortest known name that contains name, or the longest
	// that name begins with.
	leastDistance = math.MaxInt
	for _, k := range known {
		longer := len(k) - len(name)
		if k != "" && (strings.Contains(k, name) || strings.HasPrefix(name, k)) &&
			max(longer, -longer) < leastDistance {
			nearest, leastDistance = k, max(longer, -longer)
		}
	}
	return nearest
}

// distance returns the Levenshtein distance of two texts, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

var (
	// strongError matches lines of a program's output that say what went wrong; weakError those that may. Lines that
	// only introduce others are introduction.
	strongError = regexp.MustCompile(`(?i)^\W*((npm|yarn|pnpm|pip|uv|cargo|go)[:!]? +(err!|error)|error|fatal|panic|[\w.]*(error|exception)\b)|` +
		`no such file|not found|permission denied`)
	weakError = regexp.MustCompile(
		`(?i)error|cannot|could not|not found|no such|exception|fail|usage|denied|missing|invalid`)
	introduction = regexp.MustCompile(`(?i)^\W*(traceback|npm (err!|error) (code|errno|syscall|path|a complete log)|` +
		`(npm )?warn|\S*warning|.*deprecat|file "|at )`)
)

// Telling returns the line of a program's output that most likely says what went wrong, at most 300 bytes of it: it
// belongs at the beginning of an error, since the ends of long texts are not read, and are cut. It is empty for an empty
// output.
func Telling(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(Printable(line, 300)); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	for _, pattern := range []*regexp.Regexp{strongError, weakError} {
		for _, line := range lines {
			if pattern.MatchString(line) && !introduction.MatchString(line) {
				return line
			}
		}
	}
	return lines[len(lines)-1]
}
