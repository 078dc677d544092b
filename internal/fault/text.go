package fault

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// most is how much of a caller's text a message repeats, in bytes.
const most = 120

// Clip makes a text of a caller's fit for a message: valid UTF-8 and, beside an
// ellipsis that shows what is missing, at most 120 bytes that end with a whole
// character.
func Clip(text string) string { return clip(text, most) }

func clip(text string, most int) string {
	cut := len(text) > most
	if cut {
		n := most
		for n > most-utf8.UTFMax && n > 0 && !utf8.RuneStart(text[n]) {
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

// Printable makes a text from inside a sandbox fit for a log line or an error: valid
// UTF-8, no control characters but newline and tab, and at most limit bytes beside
// the ellipsis that shows what is missing.
func Printable(text string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == utf8.RuneError || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, clip(text, limit))
}

// Meant is the end of a message about a name that is not known: it asks whether the
// nearest of the known ones was meant, and is empty where none is near.
func Meant(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// Nearest returns the known name that name was probably meant to be, or "": one that is
// spelled nearly the same, contains name, or begins it.
func Nearest(name string, known []string) string {
	best, least := "", 3
	if len(name) > 64 {
		return ""
	}
	name = strings.ToLower(name)
	for _, k := range known {
		if d := distance(name, k); d < least && d < len(k) {
			best, least = k, d
		}
	}
	if best != "" || len(name) < 3 {
		return best
	}
	// Else the one that needs the fewest letters more than name, or is the longest
	// beginning of name.
	least = math.MaxInt
	for _, k := range known {
		longer := len(k) - len(name)
		if k != "" && (strings.Contains(k, name) || strings.HasPrefix(name, k)) && max(longer, -longer) < least {
			best, least = k, max(longer, -longer)
		}
	}
	return best
}

// distance is Levenshtein's.
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
